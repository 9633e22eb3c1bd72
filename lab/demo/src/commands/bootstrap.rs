//! `demo bootstrap`: the setup step of the containers. Settings come from the environment, as for the services.

use std::time::Duration;

use anyhow::{Context as _, Result};
use testbed::Passwords;

use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// How long the first start of a database server may take on a slow disk.
const DATABASE_DEADLINE: Duration = Duration::from_secs(120);

/// Waits for the database, then creates the logins and schemas and sets the passwords. It can run again at any time.
pub(crate) async fn run(terminal: &Terminal) -> Result<Verdict> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let admin_url = variable("ADMIN_DATABASE_URL")?;
    let passwords = Passwords {
        orders: variable("ORDERS_DB_PASSWORD")?,
        inventory: variable("INVENTORY_DB_PASSWORD")?,
        billing: variable("BILLING_DB_PASSWORD")?,
        provider: variable("PROVIDER_DB_PASSWORD")?,
        auditor: variable("AUDITOR_DB_PASSWORD")?,
    };
    testbed::wait_for_database(&admin_url, DATABASE_DEADLINE).await?;
    testbed::bootstrap(&admin_url, &passwords).await?;
    terminal.print("The logins and their schemas are ready.");
    Ok(Verdict::Held)
}
