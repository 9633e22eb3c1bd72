//! The proxy as a process: routes from the command line, faults over the control API.

use std::{
    io::{self, IsTerminal as _, Write as _},
    net::SocketAddr,
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::Parser;
use fault_proxy::{DEFAULT_MAX_CONNECTIONS, Proxy, Route};
use serde_json::json;
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};
use tracing_subscriber::EnvFilter;

/// A name resolution blocks its thread and cannot be cancelled. The process does not wait longer for it.
const SHUTDOWN_DEADLINE: Duration = Duration::from_millis(300);

/// Forwards TCP connections and injects network faults.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// A route as name=listen,upstream. listen is an address with a port, or a port on 127.0.0.1; port 0 takes a
    /// free one. upstream is a host and a port. Repeat the option for further routes.
    #[arg(long = "route", required = true, value_name = "NAME=LISTEN,UPSTREAM")]
    routes: Vec<Route>,

    /// Where the control API listens. Loopback only.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    control: SocketAddr,

    /// How many connections each route carries at a time. Further ones are reset.
    #[arg(long, default_value_t = DEFAULT_MAX_CONNECTIONS, value_name = "COUNT")]
    max_connections: usize,

    /// Permits routes to listen on private and unspecified addresses, as in a container network.
    #[arg(long)]
    container_network: bool,

    /// What is logged to the standard error stream: a level, or a filter.
    #[arg(long, default_value = "info", value_name = "FILTER")]
    log: EnvFilter,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = Runtime::new().context("failed to start the runtime")?;
    let ended = runtime.block_on(run(arguments));
    runtime.shutdown_timeout(SHUTDOWN_DEADLINE);
    ended
}

async fn run(arguments: Arguments) -> Result<()> {
    let log = tracing_subscriber::fmt().with_env_filter(arguments.log).with_writer(io::stderr);
    log.with_ansi(io::stderr().is_terminal()).init();
    // Before the addresses are printed: a caller may stop the process as soon as it has read them.
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    let (max_connections, container_network) = (arguments.max_connections, arguments.container_network);
    let routes = arguments.routes.into_iter();
    let routes = routes.map(|route| Route { max_connections, container_network, ..route }).collect();
    let mut proxy = Proxy::start(routes).await?;
    let control = proxy.serve_control(arguments.control).await?;
    let addresses = json!({ "control": control, "routes": proxy.addresses() });
    writeln!(io::stdout(), "{addresses}").context("failed to print the addresses")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
