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
const BYTE_INTERVAL: Duration = Duration::from_secs(1);
/// Longer than the service waits for the head of a request.
const LONGEST: Duration = Duration::from_secs(40);

async fn crawl(run: &DrillRun<'_>) -> Result<Report> {
    let address =
        run.system.orders_url().strip_prefix("http://").context("the address is not http")?.to_owned();
    let load = run.steady().await;
    run.phase("outage", format!("{CLIENTS} clients send one byte a second"));
    let end = Instant::now() + LONGEST;
    let clients = join_all((0..CLIENTS).map(|_| disconnected_before(&address, end)));
    let (accepted, disconnected) = tokio::join!(run.accepted_meanwhile(), clients);
    let disconnected = disconnected.into_iter().filter(|ended| *ended).count();
    let summary = run.end(load).await?;
    let sent = Fact { what: format!("{CLIENTS} clients sent one byte a second"), observed: true };
    let mut report = run.report(vec![accepted, sent], summary, Refusals::BreakTheClaim).await?;
    if disconnected < CLIENTS {
        report.refute(format!("{disconnected} of {CLIENTS} slow clients were disconnected"));
    }
    Ok(report)
}

/// Sends the head of a request byte by byte. Whether the service ends the connection before `end`.
async fn disconnected_before(address: &str, end: Instant) -> bool {
    let Ok(mut socket) = TcpStream::connect(address).await else { return true };
    let head = b"POST /orders HTTP/1.1\r\nhost: localhost\r\nx-slow: ";
    for byte in head.iter().chain(std::iter::repeat(&b'a')) {
        // A write succeeds once more after the peer has closed, so this notices it one byte later.
        if Instant::now() > end {
            return false;
        }
        if socket.write_all(&[*byte]).await.is_err() {
            return true;
        }
        sleep(BYTE_INTERVAL).await;
    }
    false
}
