//! `cargo demo queries`: renews `.sqlx`, which lets the compiler check SQL statements without a database.

use anyhow::{Context as _, Result};
use testbed::{DatabaseUrls, Passwords, Postgres};

use crate::choice::Choice;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// Checks every statement against tables that this checkout's migrations create. With `check` it writes nothing, and a
/// difference to the committed files is an error.
pub(crate) async fn run(choice: Choice, check: bool, terminal: &Terminal) -> Result<Verdict> {
    let root = testbed::workspace_root().context("queries are prepared in a checkout")?;
    let home = choice.for_servers(terminal).await?;
    choice.install_servers(home, terminal).await?;
    let postgres = Postgres::private_in(home).await?;
    let (admin_url, passwords) = (postgres.admin_url("postgres"), Passwords::all("queries"));
    testbed::bootstrap(&admin_url, &passwords).await?;
    testbed::migrate(&DatabaseUrls::new(&admin_url, &passwords)?).await?;

    let mut cargo = testbed::cargo();
    cargo.args(["sqlx", "prepare", "--workspace"]).args(check.then_some("--check"));
    // One connection for all crates: the types do not depend on the login.
    let search_path = "options=-csearch_path%3Dorders,inventory,billing,provider";
    let join = if admin_url.contains('?') { '&' } else { '?' };
    cargo
        .args(["--", "--all-targets"])
        .current_dir(root)
        .env("DATABASE_URL", format!("{admin_url}{join}{search_path}"));
    let status = cargo.kill_on_drop(true).status().await.context("failed to run cargo")?;
    if status.success() {
        return Ok(Verdict::Held);
    }
    terminal.print(
        "If `cargo sqlx` is missing: cargo install sqlx-cli@0.9.0 --no-default-features --features postgres",
    );
    Ok(Verdict::Broken)
}
