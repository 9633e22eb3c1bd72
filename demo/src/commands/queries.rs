//! `cargo demo queries`: what the compiler knows of the database, kept in `.sqlx` so that a clone builds without one.

use anyhow::{Context as _, Result};
use testbed::{DatabaseUrls, Passwords, Postgres};

use crate::choice::Choice;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// Every statement is checked against tables made by this checkout's migrations; with `check`, nothing is written,
/// and a difference to what is committed is an error.
pub(crate) async fn run(choice: Choice, check: bool, terminal: &Terminal) -> Result<Verdict> {
    let root = testbed::workspace_root().context("queries are prepared in a checkout")?;
    let postgres = Postgres::private_in(choice.of_servers(terminal).await?).await?;
    let (admin_url, passwords) = (postgres.admin_url("postgres"), Passwords::all("queries"));
    testbed::bootstrap(&admin_url, &passwords).await?;
    testbed::migrate(&DatabaseUrls::new(&admin_url, &passwords)?).await?;

    let mut cargo = testbed::cargo();
    cargo.args(["sqlx", "prepare", "--workspace"]).args(check.then_some("--check"));
    // One connection for all crates: whose tables are whose does not matter to the types.
    let search_path = "options=-csearch_path%3Dorders,inventory,billing,provider";
    let join = if admin_url.contains('?') { '&' } else { '?' };
    cargo
        // As `cargo clippy --release` checks it, so that dependencies are not checked twice.
        .args(["--", "--all-targets", "--release"])
        .current_dir(root)
        .env("DATABASE_URL", format!("{admin_url}{join}{search_path}"));
    let status = cargo.kill_on_drop(true).status().await.context("cannot run cargo")?;
    if status.success() {
        return Ok(Verdict::Held);
    }
    terminal.say(
        "If cargo knows no `sqlx`: cargo install sqlx-cli@0.9.0 --no-default-features --features postgres",
    );
    Ok(Verdict::Broken)
}
