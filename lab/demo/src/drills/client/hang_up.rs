//! Clients that send an order and hang up.

use std::time::Duration;

use anyhow::{Context as _, Result};
use fault_proxy::{Direction, Effect};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::own_system::database_route;

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "hang-up-storm",
    group: Group::Client,
    teaches: "A server drops the handler of a client that hangs up, at any await. What it had begun must not leak into \
              the next request.",
    question: "Hundreds of clients send an order and hang up at once. Which orders exist? What is wrong with the connection \
               that the next client gets?",
    claim: "Clients that hang up leave whole orders or none, and the orders of the others are as safe as before.",
    outage: Duration::from_secs(10),
    system: Subject::Proxied,
    run: |run| Box::pin(hang_up(run)),
};

/// Between two clients. Together with the load, more than one request is always in progress.
const PAUSE: Duration = Duration::from_millis(10);
/// So that a client hangs up while an answer of the database is on its way, and not only while it is awaited.
const ANSWER_DELAY: Duration = Duration::from_millis(50);
/// How long a client waits before it hangs up, at most: the handler is at any of its steps.
const LONGEST_WAIT: u64 = 15;

async fn hang_up(run: &DrillRun<'_>) -> Result<Report> {
    let (load, route) = (run.steady().await, database_route("orders"));
    run.proxies()?.set(&route, Effect::Delay(ANSWER_DELAY), Direction::TowardClient).await?;
    run.phase(
        "outage",
        "clients send an order and hang up within 15 ms; the database's answers take 50 ms longer",
    );
    let address =
        run.system.orders_url().strip_prefix("http://").context("the address is not http")?.to_owned();
    let customer = Uuid::new_v4();
    // More than one line, for a writer that takes a transaction only then.
    let lines = json!([{ "sku": "TEA-001", "quantity": 1 }, { "sku": "MUG-001", "quantity": 1 }]);
    let order = json!({ "customerId": customer, "lines": lines }).to_string();
    let (end, mut sent) = (Instant::now() + run.outage, 0_u64);
    while Instant::now() < end {
        let mut socket = TcpStream::connect(&address).await?;
        let head = format!(
            "POST /orders HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            order.len()
        );
        socket.write_all(head.as_bytes()).await?;
        socket.write_all(order.as_bytes()).await?;
        sleep(Duration::from_millis(fastrand::u64(0..LONGEST_WAIT))).await;
        drop(socket);
        sent += 1;
        sleep(PAUSE).await;
    }
    run.proxies()?.clear(&route).await?;
    let summary = run.end(load).await?;
    let unknown = format!("select count(*)::text from orders.orders where customer_id = '{customer}'");
    let unknown: u64 = run.system.read(&unknown).await?.trim().parse()?;
    let facts = vec![
        Fact { what: format!("{sent} clients sent an order and hung up"), observed: sent > 100 },
        Fact {
            what: format!("{unknown} of their orders exist, although no client knows"),
            observed: unknown > 0,
        },
    ];
    run.report(facts, summary, Refusals::BreakTheClaim).await
}
