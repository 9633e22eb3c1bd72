//! `cargo demo queries`: renews `.sqlx`, which lets the compiler check SQL statements without a database.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use testbed::{DatabaseUrls, Postgres};

use crate::Verdict;
use crate::choice::Choice;
use crate::terminal::Terminal;

/// Lets the compiler check every statement against tables that this checkout's migrations create, and write down what it
/// found. With `check` it changes nothing, and a difference to the committed files is an error.
pub(crate) async fn run(choice: Choice, check: bool, terminal: &Terminal) -> Result<Verdict> {
    let root = testbed::workspace_root().context("queries are prepared in a checkout")?;
    let home = choice.for_servers(terminal).await?;
    choice.install_servers(home, terminal).await?;
    let postgres = Postgres::private_in(home).await?;
    let admin_url = postgres.admin_url("postgres");
    let urls = DatabaseUrls::new(&admin_url, |_| Ok("queries".to_owned()))?;
    testbed::bootstrap(&urls).await?;
    testbed::migrate(&urls).await?;

    // The directory of the lints (`.ci/static`), where the dependencies are checked already.
    let target = root.join("target/checks");
    let found = target.join("queries");
    if found.exists() {
        fs::remove_dir_all(&found).context("failed to delete the statements of an earlier run")?;
    }
    fs::create_dir_all(&found)?;
    // Cargo does not know that a database decides, so it would not compile again.
    cargo(&root, &target, &["clean", "--quiet", "--workspace"], &[]).await?;
    // One connection for all crates: the types do not depend on the login.
    let database = format!("{admin_url}?options=-csearch_path%3Dorders,inventory,billing,provider");
    let found_in = found.to_string_lossy();
    let environment = [("DATABASE_URL", database.as_str()), ("SQLX_OFFLINE_DIR", &*found_in)];
    cargo(&root, &target, &["check", "--workspace", "--all-targets"], &environment).await?;

    let (committed, found) = (statements(&root.join(".sqlx"))?, statements(&found)?);
    ensure!(!found.is_empty(), "the compiler found no statement");
    let differs = |name: &&String| committed.get(*name) != found.get(*name);
    let mut changed: Vec<_> = committed.keys().chain(found.keys()).filter(differs).collect();
    changed.sort_unstable();
    changed.dedup();
    for name in &changed {
        let file = root.join(".sqlx").join(name);
        match found.get(*name) {
            _ if check => terminal.print(format!("differs: .sqlx/{name}")),
            Some(text) => fs::write(&file, text).with_context(|| format!("failed to write {name}"))?,
            None => fs::remove_file(&file).with_context(|| format!("failed to delete {name}"))?,
        }
    }
    terminal.print(format!("{} statements, {} differ from .sqlx", found.len(), changed.len()));
    Ok(if check && !changed.is_empty() { Verdict::Broken } else { Verdict::Held })
}

async fn cargo(root: &Path, target: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let mut cargo = testbed::cargo();
    cargo.args(arguments).arg("--target-dir").arg(target).current_dir(root);
    let status = cargo.envs(environment.iter().copied()).kill_on_drop(true).status().await;
    ensure!(status.context("failed to run cargo")?.success(), "failed to {} the workspace", arguments[0]);
    Ok(())
}

/// The files of a directory, by name.
fn statements(directory: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).with_context(|| format!("failed to read {}", directory.display()))? {
        let entry = entry?;
        let text = fs::read_to_string(entry.path())?;
        found.insert(entry.file_name().to_string_lossy().into_owned(), text);
    }
    Ok(found)
}
