//! Clients that send a request slowly, to keep connections busy.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "slow-clients",
    group: Group::Client,
    teaches: "A request that is not complete yet must cost little, and must not last for ever.",
    question: "600 clients send one byte a second. How many good orders are still accepted?",
    claim: "Clients that never finish their request are disconnected, and good orders are accepted meanwhile.",
    outage: Duration::from_secs(15),
    system: Subject::Running,
    run: |run| Box::pin(crawl(run)),
};

const CLIENTS: usize = 600;
/// A client that has sent so many has kept its connection busy for some seconds.
const SLOW_BYTES: usize = 5;
const BYTE_INTERVAL: Duration = Duration::from_secs(1);
/// Longer than the service waits for the head of a request.
const LONGEST: Duration = Duration::from_secs(40);

async fn crawl(run: &DrillRun<'_>) -> Result<Report> {
    let address =
        run.system.orders_url().strip_prefix("http://").context("the address is not http")?.to_owned();
    let load = run.steady().await;
    run.phase("outage", format!("{CLIENTS} clients send one byte a second"));
    let end = Instant::now() + LONGEST;
    let clients = join_all((0..CLIENTS).map(|_| send_slowly(&address, end)));
    let (accepted, clients) = tokio::join!(run.accepted_meanwhile(), clients);
    let slow = clients.iter().filter(|client| client.bytes >= SLOW_BYTES).count();
    let disconnected = clients.iter().filter(|client| client.disconnected).count();
    let summary = run.end(load).await?;
    let sent = Fact {
        what: format!("{slow} of {CLIENTS} clients sent {SLOW_BYTES} bytes or more, one a second"),
        observed: slow == CLIENTS,
    };
    let mut report = run.report(vec![accepted, sent], summary, Refusals::BreakTheClaim).await?;
    if disconnected < CLIENTS {
        report.refute(format!("{disconnected} of {CLIENTS} slow clients were disconnected"));
    }
    Ok(report)
}

/// A client that sends slowly. One that could not connect has sent nothing.
#[derive(Default)]
struct SlowClient {
    bytes: usize,
    /// Whether the service ended the connection.
    disconnected: bool,
}

/// Sends the head of a request byte by byte, until the service ends the connection, or until `end`.
async fn send_slowly(address: &str, end: Instant) -> SlowClient {
    let mut client = SlowClient::default();
    let Ok(mut socket) = TcpStream::connect(address).await else { return client };
    let head = b"POST /orders HTTP/1.1\r\nhost: localhost\r\nx-slow: ";
    for byte in head.iter().chain(std::iter::repeat(&b'a')) {
        if Instant::now() > end {
            break;
        }
        // A write succeeds once more after the peer has closed, so this notices it one byte later.
        if socket.write_all(&[*byte]).await.is_err() {
            client.disconnected = true;
            break;
        }
        client.bytes += 1;
        sleep(BYTE_INTERVAL).await;
    }
    client
}
