//! What clients do: they hang up, send one order several times, or send slowly.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fault_proxy::{Direction, Effect};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use super::overload::overload;
use super::report::Refusals;
use crate::fault::Fault;
use crate::http;

pub(super) static DRILLS: [Drill; 4] = [
    Drill {
        name: "hang-up-storm",
        teaches: "A server drops the handler of a client that hangs up, at any await. What it had begun must not leak \
                  into the next request.",
        question: "Hundreds of clients send an order and hang up at once. Which orders exist? What is wrong with the \
                   connection that the next client gets?",
        claim: "Clients that hang up leave whole orders or none, and the orders of the others are as safe as before.",
        system: Subject::Proxied,
        steps: Some(|run| Box::pin(hang_up(run))),
        // A slow database and twice the load: some wait for longer than the service lets them.
        refusals: Refusals::AreExpected,
        ..ROW
    },
    Drill {
        name: "same-key-storm",
        teaches: "The key is a primary key in the order's own transaction. The database decides who was first.",
        question: "Twenty requests with one Idempotency-Key arrive at the same moment. How many orders, how many \
                   answers?",
        claim: "However many requests carry one key, there is one order, and each client that is answered gets its id.",
        outage: Duration::ZERO,
        steps: Some(|run| Box::pin(send_together(run))),
        ..ROW
    },
    Drill {
        name: "slow-clients",
        teaches: "A request that is not complete yet must cost little, and must not last forever.",
        question: "600 clients send one byte a second. How many good orders are still accepted?",
        claim: "Clients that never finish their request are disconnected, and good orders are accepted meanwhile.",
        outage: Duration::from_secs(15),
        steps: Some(|run| Box::pin(crawl(run))),
        ..ROW
    },
    Drill {
        name: "overload",
        teaches: "A queue that never empties makes every answer late and gains nothing. A bound on the wait keeps the \
                  accepted orders as many as before, and the refusals early.",
        question: "Clients offer two to ten times what the service can accept. How many orders are accepted? What do the \
                   other clients see, and after how long?",
        claim: "Under any load the service accepts at least half of the orders that the system can complete. It refuses \
                every other one with 503 before its client gives up, resets no connection, and the relay keeps pace.",
        outage: Duration::ZERO,
        steps: Some(|run| Box::pin(overload(run))),
        ..ROW
    },
];

const ROW: Drill = Drill { group: Group::Client, ..Drill::ROW };

/// Between two clients that hang up. Together with the load, more than one request is always in progress.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a client waits before it hangs up, at most, in milliseconds: the handler is at any of its steps.
const LONGEST_WAIT: u64 = 15;
/// So that a client hangs up while an answer of the database is on its way, and not only while it is awaited.
const LATE_ANSWERS: Fault<'_> = Fault::network(
    "clients send an order and hang up within 15 ms; the database's answers take 50 ms longer",
    &["orders-database"],
    Effect::Delay(Duration::from_millis(50)),
    Direction::TowardClient,
);

const KEYS: usize = 50;
const CLIENTS_PER_KEY: usize = 20;

const SLOW_CLIENTS: usize = 600;
/// A client that has sent so many has kept its connection busy for some seconds.
const SLOW_BYTES: usize = 5;
const BYTE_INTERVAL: Duration = Duration::from_secs(1);
/// Longer than the service waits for the head of a request.
const LONGEST: Duration = Duration::from_secs(40);

async fn hang_up(run: &DrillRun<'_>) -> Result<()> {
    let (fault, address) = (LATE_ANSWERS, address(run)?);
    let late = run.inject(&fault).await?;
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
    run.repair(late).await?;
    run.end().await?;
    let unknown = run.orders_of(customer).await?;
    run.may_exist(sent);
    run.injected(format!("{sent} clients sent an order and hung up"), sent > 100);
    run.injected(format!("{unknown} of their orders exist, although no client knows"), unknown > 0);
    Ok(())
}

/// The host and the port of the order service.
fn address(run: &DrillRun<'_>) -> Result<String> {
    let address = run.system.orders_url().strip_prefix("http://");
    Ok(address.context("the address is not http")?.to_owned())
}

async fn send_together(run: &DrillRun<'_>) -> Result<()> {
    let client = http::client()?;
    let url = format!("{}/orders", run.system.orders_url());
    let (customer, mut answered, mut others) = (Uuid::new_v4(), 0_usize, 0_usize);
    let order = json!({ "customerId": customer, "lines": [{ "sku": "TEA-001", "quantity": 1 }] });
    run.phase(
        "storm",
        format!("{CLIENTS_PER_KEY} clients send the same order at once, with each of {KEYS} keys"),
    );
    let mut different = vec![];
    for _ in 0..KEYS {
        let key = Uuid::new_v4().to_string();
        let requests = (0..CLIENTS_PER_KEY)
            .map(|_| http::place(client.post(&url).header("Idempotency-Key", &key).json(&order)));
        let mut ids = BTreeSet::new();
        for answer in join_all(requests).await {
            match answer {
                Ok(id) => {
                    ids.insert(id);
                    answered += 1;
                }
                // For example 503 with Retry-After, while another request with the key holds its row.
                Err(_) => others += 1,
            }
        }
        ids.iter().for_each(|id| run.acknowledge(*id));
        if ids.len() > 1 {
            different.push(key);
        }
    }
    let exist = run.orders_of(customer).await?;
    run.may_exist(others as u64);
    run.injected(
        format!("{answered} requests were answered with 201, {others} otherwise"),
        answered > 2 * KEYS,
    );
    run.promised(
        format!("{exist} orders exist for {KEYS} keys; different answers for {different:?}"),
        exist <= KEYS && different.is_empty(),
    );
    Ok(())
}

/// How long a client waits for an answer, and tries again.
pub(super) const RETRY_DEADLINE: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// An order that its client places again and again, under one key.
pub(super) struct RetriedOrder<'a> {
    run: &'a DrillRun<'a>,
    pub(super) key: String,
    pub(super) customer: Uuid,
}

/// A 201.
pub(super) struct Accepted {
    /// Whether it is the answer of an order that existed already.
    pub(super) is_repeated: bool,
}

impl<'a> RetriedOrder<'a> {
    pub(super) fn new(run: &'a DrillRun<'a>, customer: Uuid) -> Self {
        Self { run, key: format!("drill-{}", Uuid::new_v4()), customer }
    }

    /// Places it once. `None`: it was refused, or not answered in time.
    pub(super) async fn place(&self, deadline: Duration) -> Result<Option<Accepted>> {
        let order = json!({ "customerId": self.customer, "lines": [{ "sku": "TEA-001", "quantity": 1 }] });
        let request = http::order_request(self.run.system.orders_url(), &order)?;
        let request = request.header("Idempotency-Key", &self.key).timeout(deadline);
        match request.send().await {
            Ok(answer) if answer.status() == 201 => {
                let is_repeated = answer.headers().contains_key("Idempotent-Replayed");
                let order: Value = answer.json().await?;
                self.run.acknowledge(order["id"].as_str().context("201 without an id")?.parse()?);
                Ok(Some(Accepted { is_repeated }))
            }
            _ => {
                self.run.may_exist(1);
                Ok(None)
            }
        }
    }

    /// Places it again and again. Each attempt is given up after `attempt`.
    pub(super) async fn place_until(
        &self,
        deadline: Duration,
        attempt: Duration,
    ) -> Result<Option<Accepted>> {
        let end = Instant::now() + deadline;
        while Instant::now() < end {
            sleep(RETRY_PAUSE).await;
            let left = end.saturating_duration_since(Instant::now());
            if let Some(accepted) = self.place(left.min(attempt)).await? {
                return Ok(Some(accepted));
            }
        }
        Ok(None)
    }
}

async fn crawl(run: &DrillRun<'_>) -> Result<()> {
    let address = address(run)?;
    run.phase("outage", format!("{SLOW_CLIENTS} clients send one byte a second"));
    let end = Instant::now() + LONGEST;
    let clients = join_all((0..SLOW_CLIENTS).map(|_| send_slowly(&address, end)));
    let ((), clients) = tokio::join!(run.accepted_meanwhile(), clients);
    let slow = clients.iter().filter(|client| client.bytes >= SLOW_BYTES).count();
    let disconnected = clients.iter().filter(|client| client.disconnected).count();
    run.injected(
        format!("{slow} of {SLOW_CLIENTS} clients sent {SLOW_BYTES} bytes or more, one a second"),
        slow == SLOW_CLIENTS,
    );
    run.promised(
        format!("{disconnected} of {SLOW_CLIENTS} slow clients were disconnected"),
        disconnected == SLOW_CLIENTS,
    );
    Ok(())
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
