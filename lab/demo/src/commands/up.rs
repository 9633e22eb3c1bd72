//! `cargo demo up`: starts the system and keeps it running.

use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use testbed::Home;
use testbed::guard::GuardedProcess;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Duration, interval};
use uuid::Uuid;

use crate::Verdict;
use crate::choice::Choice;
use crate::compose::Compose;
use crate::control;
use crate::interrupt::{interrupted, or_interrupted};
use crate::local_system::LocalSystem;
use crate::own_system::OwnSystem;
use crate::paths;
use crate::running_system::RunningSystem;
use crate::state::{State, for_psql};
use crate::terminal::Terminal;
use crate::without::is_copy;

/// How often `demo up` checks that all processes run.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Stays in the foreground. Ctrl-C stops everything that it started. A cluster has `nodes` of RabbitMQ; of each
/// service run `instances`.
pub(crate) async fn run(
    choice: Choice,
    nodes: usize,
    instances: usize,
    terminal: &Terminal,
) -> Result<Verdict> {
    if let Some(system) = RunningSystem::find(choice.with).await? {
        bail!("a system is running already, at {}; `cargo demo down` stops it", system.orders_url());
    }
    match choice.for_system(terminal).await? {
        Home::Local => local(choice, nodes, instances, terminal).await,
        Home::Docker => {
            ensure!(
                nodes == 1,
                "a cluster needs `--with local`; in containers, `docker compose -f compose.yaml -f compose.cluster.yaml \
                 up --build --wait` starts one"
            );
            ensure!(
                instances == 1,
                "several instances need `--with local`; in containers, `PARTITIONS=4 docker compose -f compose.yaml \
                 -f compose.scale.yaml up --wait` starts them"
            );
            containers(terminal).await
        }
    }
}

async fn local(choice: Choice, nodes: usize, instances: usize, terminal: &Terminal) -> Result<Verdict> {
    let servers = choice.start_servers(Home::Local, nodes, terminal);
    let system = tokio::select! {
        system = LocalSystem::start(servers, OwnSystem::for_people(instances), terminal) => system?,
        stop = interrupted() => return stop.map(|()| Verdict::Interrupted),
    };
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let addresses = system.addresses()?;
    let state = State {
        orders_database_url: addresses.databases["orders"].clone(),
        control: listener.local_addr()?.to_string(),
        token: Uuid::new_v4().simple().to_string(),
        admin_psql: for_psql(&addresses.admin_url)?,
        auditor_psql: for_psql(&addresses.auditor_url)?,
        addresses,
    };
    state.write()?;
    let (system, stop) = (Arc::new(system), Arc::new(Notify::new()));
    // From now on other commands find the system, and the board is one of them.
    let mut serving =
        tokio::spawn(control::serve(listener, state.token.clone(), system.clone(), stop.clone()));
    let board = tokio::select! {
        board = start_board(Home::Local) => board,
        stop = interrupted() => {
            State::remove();
            return stop.map(|()| Verdict::Interrupted);
        }
    };
    let addresses = &state.addresses;
    print_first_steps(terminal, &addresses.orders_url);
    print_board(terminal, &board);
    for number in 2..=instances {
        let name = format!("orders-{number}");
        terminal.print(format!("  {name:<12}{}", system.processes.url(&name)?));
    }
    terminal.print(format!("  inventory   {}/metrics", addresses.inventory_url));
    terminal.print(format!("  billing     {}/metrics", addresses.billing_url));
    terminal.print(format!("  provider    {}/faults", addresses.provider_url));
    terminal.print(format!("  database    psql '{}'", state.auditor_psql));
    // Without its administrator: what a program prints ends up in logs.
    let rabbitmq = addresses.rabbitmq_api.rsplit_once('@').map_or("", |(_, address)| address);
    terminal
        .print(format!("  RabbitMQ    http://{rabbitmq}  (its login is in {})", paths::state().display()));
    terminal.print(format!("  logs        {}", system.processes.logs().display()));
    terminal.print("");
    terminal.print("Ctrl-C stops everything.");
    // Not the file itself: it holds passwords.
    terminal.document(&serde_json::json!({ "ordersUrl": addresses.orders_url, "state": paths::state() }))?;

    tokio::select! {
        interrupted = interrupted() => interrupted?,
        () = stop.notified() => {}
        // It never ends by itself: an end is a panic.
        _ = &mut serving => terminal.print("The commands of other terminals are no longer served."),
        () = print_failures(&system, terminal) => {}
    }
    terminal.print("Stopping …");
    drop(board);
    if !serving.is_finished() {
        serving.abort();
        let _ = serving.await;
    }
    // If a client's connection still uses the system, the processes are killed with this one.
    let stopped = match Arc::try_unwrap(system) {
        Ok(system) => system.stop().await,
        Err(_) => Ok(()),
    };
    // Last: `demo down` waits until this file is removed, and then erases the logs.
    State::remove();
    stopped?;
    Ok(Verdict::Held)
}

/// Prints at once which service has ended by itself. It is not restarted, so that its state can be examined.
async fn print_failures(system: &LocalSystem, terminal: &Terminal) {
    let mut interval = interval(CHECK_INTERVAL);
    let mut printed = None;
    loop {
        interval.tick().await;
        let failure = system.check_alive().err().map(|reason| format!("{reason:#}"));
        if failure != printed
            && let Some(reason) = &failure
        {
            terminal.print(reason);
        }
        printed = failure;
    }
}

async fn containers(terminal: &Terminal) -> Result<Verdict> {
    ensure!(!is_copy(), "the images have all protections: use --with local");
    let compose = Compose::new()?;
    let up = or_interrupted(async { compose.up(terminal).await.map(|()| Verdict::Held) }).await;
    if let Ok(Verdict::Held) = up {
        let url = compose.orders_url().await?.unwrap_or_default();
        let board = tokio::select! {
            board = start_board(Home::Docker) => board,
            stop = interrupted() => {
                stop?;
                compose.down(false).await?;
                return Ok(Verdict::Interrupted);
            }
        };
        print_first_steps(terminal, &url);
        print_board(terminal, &board);
        terminal.print("  Nothing else is published: `docker compose logs`, `docker compose exec postgres psql -U auditor shop`");
        terminal.print("");
        terminal.print("Ctrl-C stops everything and keeps the data; `cargo demo down` erases it.");
        terminal.document(&serde_json::json!({ "ordersUrl": url }))?;
        interrupted().await?;
    }
    terminal.print("Stopping …");
    compose.down(false).await?;
    up
}

/// The board's port, if it is free.
const BOARD_PORT: u16 = 8090;

/// How long the board may take to listen.
const BOARD_DEADLINE: Duration = Duration::from_secs(20);

/// Starts the board as a separate process: whatever happens to it, the system goes on. It ends with the returned value.
async fn start_board(home: Home) -> Result<(String, GuardedProcess)> {
    let port = if testbed::is_free(BOARD_PORT) { BOARD_PORT } else { testbed::free_port()? };
    let mut command = Command::new(std::env::current_exe()?);
    let with = if home == Home::Local { "local" } else { "docker" };
    command.args(["--with", with, "board", "--address", &format!("127.0.0.1:{port}")]);
    let mut process = GuardedProcess::spawn(&command, &paths::home().join("board.log"))?;
    let listening = testbed::eventually("the board", BOARD_DEADLINE, async || {
        // One that has ended will never listen.
        if process.exit_status()?.is_some() {
            return Ok(Some(false));
        }
        Ok(Some(TcpStream::connect(("127.0.0.1", port)).await.map(|_| true)?))
    });
    ensure!(
        listening.await.with_context(|| process.log_tail())?,
        "the board has ended; {}",
        process.log_tail()
    );
    Ok((format!("http://localhost:{port}"), process))
}

fn print_board(terminal: &Terminal, board: &Result<(String, GuardedProcess)>) {
    match board {
        Ok((url, _)) => terminal.print(format!("  board       {url}  (see it, break it, read the verdict)")),
        // Everything else works without it.
        Err(error) => terminal.print(format!("  board       {error:#}")),
    }
}

fn print_first_steps(terminal: &Terminal, url: &str) {
    terminal.print("");
    terminal.print("The system is running. Place an order:");
    terminal.print("");
    let order = r#"{"customerId": "3f8a4b52-0e0d-4a57-9a53-5b2a9c1f7e10", "lines": [{"sku": "TEA-001", "quantity": 2}]}"#;
    terminal.print(format!("  curl --json '{order}' {url}/orders"));
    terminal.print("");
    terminal.print(
        "In another terminal: `cargo demo order`, `cargo demo drill broker-kill`, `cargo demo verify`.",
    );
    terminal.print("");
    terminal.print(format!("  orders      {url}"));
}
