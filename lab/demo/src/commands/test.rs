//! `cargo demo test`: every test, with the servers that it needs started before and stopped after.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use testbed::{Home, SLOWDOWN, build_lab, fewer, slowdown};

use crate::Verdict;
use crate::choice::Choice;
use crate::terminal::Terminal;

/// What to test, and how often.
#[derive(Debug, clap::Args)]
pub(crate) struct TestOptions {
    /// Run the tests so many times, and stop at the first run that fails.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,
    /// Run two busy loops beside the tests: a test that needs an idle machine fails then.
    #[arg(long)]
    pub(crate) beside_load: bool,
    /// For cargo: `cargo demo test -- -p outbox`.
    #[arg(last = true)]
    pub(crate) args: Vec<String>,
}

impl TestOptions {
    /// One run with these arguments for cargo.
    pub(crate) fn once(args: Vec<String>) -> Self {
        Self { repeat: 1, beside_load: false, args }
    }
}

/// From here on a line says so.
const NOTABLY_SLOWER: f64 = 1.5;

/// Runs all test programs, also after one has failed; cargo names those that failed at the end. The servers are started
/// once for all of them; each test has a private database and virtual host.
pub(crate) async fn run(choice: Choice, options: &TestOptions, terminal: &Terminal) -> Result<Verdict> {
    let root = testbed::workspace_root().context("tests run in a checkout")?;
    let home = choice.for_servers(terminal).await?;
    terminal.print("Building the services and the lab programs …");
    let ((), (postgres, rabbitmq)) =
        tokio::try_join!(build_lab(!terminal.json()), choice.start_servers(home, 1, terminal))?;

    let _busy = options.beside_load.then(BusyLoops::start);
    let slower = slowdown();
    if slower >= NOTABLY_SLOWER {
        terminal.print(format!(
            "This machine is {slower:.1} times as slow as the reference machine: deadlines are as many times longer, and \
             fewer tests run at a time."
        ));
    }
    let mut passed = true;
    for number in 1..=options.repeat {
        if options.repeat > 1 {
            terminal.print(format!("Run {number} of {} …", options.repeat));
        }
        let mut cargo = testbed::cargo();
        cargo.args(["test", "--no-fail-fast"]).args(testbed::profile_option()).current_dir(&root);
        // Cargo tests everything when both are given.
        let some = options.args.iter().any(|arg| arg.starts_with("-p") || arg.starts_with("--package"));
        if !some {
            cargo.arg("--workspace");
        }
        cargo.args(&options.args);
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            // Most tests wait for a server or a service, so there are twice as many at a time as cores; fewer if the cores
            // are slow.
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let most = u32::try_from(2 * cores).unwrap_or(u32::MAX);
            cargo.env("RUST_TEST_THREADS", fewer(most).to_string());
        }
        cargo
            .env("TESTBED_POSTGRES_URL", postgres.admin_url("postgres"))
            .env("TESTBED_RABBITMQ_URL", rabbitmq.first().base_url())
            .env("TESTBED_RABBITMQ_API", rabbitmq.first().api_url())
            // For the tests that start private servers.
            .env("TESTBED_WITH", if home == Home::Docker { "docker" } else { "local" })
            .env(SLOWDOWN, slower.to_string())
            // The services are built: without this every test program would ask cargo again.
            .env("TESTBED_PREBUILT", "1");
        if terminal.json() {
            cargo.stdout(Stdio::null());
        }
        passed = cargo.kill_on_drop(true).status().await.context("failed to run cargo")?.success();
        if !passed {
            break;
        }
    }
    terminal.document(&serde_json::json!({ "passed": passed }))?;
    Ok(if passed { Verdict::Held } else { Verdict::Broken })
}

/// Two threads that use all the time they get.
struct BusyLoops(Arc<AtomicBool>);

impl BusyLoops {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let stop = stop.clone();
            std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {});
        }
        Self(stop)
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
