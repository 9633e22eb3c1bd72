//! `demo bootstrap`: the setup step of the containers. Settings come from the environment, as for the services.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testbed::{DatabaseUrls, eventually, sql};

use crate::Verdict;
use crate::terminal::Terminal;

/// How long the first start of a database server may take on a slow disk.
const DATABASE_DEADLINE: Duration = Duration::from_secs(120);

/// Waits for the database, then creates the logins and schemas and sets the passwords; with `LOG_RELAY` the services
/// may read the write-ahead log. It can run again at any time.
pub(crate) async fn run(terminal: &Terminal) -> Result<Verdict> {
    check_passwords(std::env::vars())?;
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let admin_url = variable("ADMIN_DATABASE_URL")?;
    let password = |login: &str| variable(&format!("{}_DB_PASSWORD", login.to_uppercase()));
    let urls = DatabaseUrls::new(&admin_url, password)?;
    eventually("the database to accept connections", DATABASE_DEADLINE, async || {
        sql::execute(&admin_url, "select 1", DATABASE_DEADLINE).await.map(Some)
    })
    .await?;
    testbed::bootstrap(&urls).await?;
    if std::env::var("LOG_RELAY").is_ok_and(|allowed| allowed == "yes") {
        testbed::allow_log_relay(&admin_url).await?;
    }
    terminal.print("The logins and their schemas are ready.");
    Ok(Verdict::Held)
}

/// Compose puts passwords into URLs and into a JSON document as they are. One that would need quoting there is another password for
/// the client than for the server.
fn check_passwords(mut variables: impl Iterator<Item = (String, String)>) -> Result<()> {
    let invalid = variables.find(|(name, value)| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._~-".contains(c);
        name.ends_with("_PASSWORD") && (value.is_empty() || !value.chars().all(allowed))
    });
    let name = invalid.map(|(name, _)| name).unwrap_or_default();
    ensure!(
        name.is_empty(),
        "{name}: one or more of A-Z a-z 0-9 . _ ~ -, because Compose puts it into URLs as it is"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_that_need_quoting_in_a_url_are_refused_by_name() {
        let check =
            |name: &str, value: &str| check_passwords([(name.to_owned(), value.to_owned())].into_iter());
        for allowed in ["orders", "0aZ._~-"] {
            assert!(check("ORDERS_DB_PASSWORD", allowed).is_ok(), "{allowed}");
        }
        for invalid in ["", "p@ss", "p/ss", "p#ss", "p%40", "p:ss", "p ss", "pä", "p\"ss", "p\\ss"] {
            let error = check("ORDERS_DB_PASSWORD", invalid).unwrap_err().to_string();
            assert!(error.starts_with("ORDERS_DB_PASSWORD: ") && !error.contains("p@ss"), "{error}");
        }
        assert!(check("ADMIN_DATABASE_URL", "postgres://a:b@c/d").is_ok());
    }
}
