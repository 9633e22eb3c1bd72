//! `cargo demo board`: a live page over the running system. `demo up` starts it too.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use tokio::net::TcpListener;

use crate::Verdict;
use crate::board;
use crate::choice::Choice;
use crate::network_system::NetworkSystem;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;

/// Serves the page until it is interrupted.
pub(crate) async fn run(choice: Choice, address: SocketAddr, terminal: &Terminal) -> Result<Verdict> {
    // In a container the published port decides who can reach it.
    ensure!(
        address.ip().is_loopback() || NetworkSystem::from_env().is_some(),
        "a program that reaches the board can break the system: outside of a container it listens on loopback only"
    );
    let system = RunningSystem::require(choice).await?;
    let listener =
        TcpListener::bind(address).await.with_context(|| format!("failed to listen on {address}"))?;
    terminal.print(format!("The board: http://localhost:{}", listener.local_addr()?.port()));
    board::serve(listener, system, choice).await?;
    Ok(Verdict::Held)
}
