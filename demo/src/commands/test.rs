//! `cargo demo test`: every test, with what it needs started and stopped around it.

use std::process::Stdio;

use anyhow::{Context as _, Result};
use testbed::{Home, Postgres, Rabbitmq, build_drill_services, build_services, build_variants};

use crate::choice::Choice;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// One start of both servers for all test processes; each test has a database and a virtual host of its own.
pub(crate) async fn run(choice: Choice, args: &[String], terminal: &Terminal) -> Result<Verdict> {
    let root = testbed::workspace_root().context("tests are run in a checkout")?;
    let home = choice.of_servers(terminal).await?;
    let (place, word) = match home {
        Home::Docker => ("in containers", "docker"),
        Home::Local => ("from this machine's binaries", "local"),
    };
    terminal.say(format!("Starting PostgreSQL and RabbitMQ {place} …"));
    let (postgres, rabbitmq) = tokio::try_join!(Postgres::private_in(home), Rabbitmq::private_in(home))?;
    terminal.say("Building the services …");
    build_services(!terminal.json()).await?;
    build_drill_services(!terminal.json()).await?;
    build_variants(!terminal.json()).await?;

    let mut cargo = testbed::cargo();
    cargo.args(["test", "--release"]).current_dir(root);
    // Cargo takes "all" for the answer when both are given.
    let some = args.iter().any(|arg| arg.starts_with("-p") || arg.starts_with("--package"));
    if !some {
        cargo.arg("--workspace");
    }
    cargo.args(args);
    cargo
        .env("TESTBED_POSTGRES_URL", postgres.admin_url("postgres"))
        .env("TESTBED_RABBITMQ_URL", rabbitmq.base_url())
        .env("TESTBED_RABBITMQ_API", rabbitmq.api_url())
        // For the tests that want servers of their own.
        .env("TESTBED_WITH", word)
        // A build of the services by each test process would only find that nothing has changed.
        .env("TESTBED_PREBUILT", "1");
    if terminal.json() {
        cargo.stdout(Stdio::null());
    }
    let status = cargo.kill_on_drop(true).status().await.context("cannot run cargo")?;
    terminal.document(&serde_json::json!({ "passed": status.success() }))?;
    Ok(if status.success() { Verdict::Held } else { Verdict::Broken })
}
