//! What tests and experiments do as clients of a system. It remembers the orders that were acknowledged to them.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use load_tests::{Answer, Load, Outcome, Summary};
use serde_json::{Value, json};
use testbed::{eventually, fewer, longer};
use uuid::Uuid;

use super::RunningSystem;
use crate::http;
use crate::lab::CONDITION_DEADLINE;
use crate::load::RunningLoad;
use crate::reconciliation::{Ending, Reconciliation, Settled, Wait, settle};

/// How long one attempt may take. The service answers within 8 s, unless a test has frozen it.
const ATTEMPT_DEADLINE: Duration = Duration::from_secs(30);

/// How many requests a load of a test has in flight. Each uses processor time, so this bounds the load on a machine that is
/// slower than was measured.
const MAX_IN_FLIGHT: usize = 16;

/// The clients of a system.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// The orders that were acknowledged to them, oldest first.
    acknowledged: Vec<Uuid>,
    /// What the last order or cancellation that was not accepted was answered.
    last_refusal: Option<String>,
}

impl RunningSystem {
    /// Places one order of two lines, and tries again with the same key until it is accepted.
    pub async fn order(&self) -> Result<Uuid> {
        self.order_of(Uuid::new_v4(), two_lines()).await
    }

    /// Places so many orders, eight at a time.
    pub async fn orders(&self, count: usize) -> Result<Vec<Uuid>> {
        stream::iter(0..count).map(|_| self.order()).buffer_unordered(8).try_collect().await
    }

    /// Places one order of a customer, and tries again with the same key until it is accepted.
    pub async fn order_of(&self, customer: Uuid, lines: Value) -> Result<Uuid> {
        let (key, body) = (Uuid::new_v4(), json!({ "customerId": customer, "lines": lines }));
        http::retried("an order to be accepted", CONDITION_DEADLINE, async || {
            self.send_order(&body, Some(key)).await
        })
        .await
    }

    /// Sends one order once: for those to whom an order that is not accepted says something.
    pub async fn order_once(&self) -> Result<Uuid> {
        let body = json!({ "customerId": Uuid::new_v4(), "lines": two_lines() });
        self.send_order(&body, None).await
    }

    async fn send_order(&self, body: &Value, key: Option<Uuid>) -> Result<Uuid> {
        let mut request = http::order_request(self.orders_url(), body)?.timeout(ATTEMPT_DEADLINE);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key.to_string());
        }
        let answer = http::place(request).await;
        match &answer {
            Ok(id) => self.note(*id),
            Err(error) => self.clients().last_refusal = Some(format!("{error:#}")),
        }
        answer
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the clients were answered, for the error of a wait that they were part of.
    pub fn was_answered(&self) -> String {
        let Clients { acknowledged, last_refusal } = &*self.clients();
        let refusal = last_refusal.as_deref().unwrap_or("none");
        format!("{} orders were accepted; the last refusal: {refusal}", acknowledged.len())
    }

    /// Reads an order as a client does.
    pub async fn read_order(&self, id: Uuid) -> Result<Value> {
        let page = http::get(&format!("{}/orders/{id}", self.orders_url())).await?;
        serde_json::from_str(&page).context("failed to read an order")
    }

    /// Cancels an order, and tries again until that is accepted.
    pub async fn cancel(&self, id: Uuid) -> Result<()> {
        self.cancel_at(self.orders_url(), id).await
    }

    /// The same, at another instance.
    pub async fn cancel_at(&self, orders_url: &str, id: Uuid) -> Result<()> {
        let attempt = async || http::cancel(orders_url, id, ATTEMPT_DEADLINE).await;
        http::retried("a cancellation to be accepted", CONDITION_DEADLINE, attempt).await
    }

    /// Sends one cancellation once: see [`order_once`](Self::order_once).
    pub async fn cancel_once(&self, id: Uuid) -> Result<()> {
        http::cancel(self.orders_url(), id, ATTEMPT_DEADLINE).await
    }

    /// Reads `/readyz` of a process: the status, and what it reports about its parts.
    pub async fn health(&self, process: &str) -> Result<(u16, Value)> {
        let response = http::client()?.get(format!("{}/readyz", self.url(process)?)).send().await?;
        Ok((response.status().as_u16(), response.json().await?))
    }

    /// Records that an order was acknowledged to a client.
    pub fn note(&self, id: Uuid) {
        self.clients().acknowledged.push(id);
    }

    /// The orders that were acknowledged so far, oldest first.
    pub fn acknowledged(&self) -> Vec<Uuid> {
        self.clients().acknowledged.clone()
    }

    /// Places orders at a constant rate, which is lower on a slow machine. Some must be accepted.
    pub async fn load(&self, rate: u32, for_: Duration) -> Result<Summary> {
        let summary = load_tests::run(self.load_of(rate, for_), self.recorder()).await?;
        ensure!(summary.accepted > 0, "no order was accepted: {summary} {:?}", summary.failures);
        Ok(summary)
    }

    /// Starts a load with a constant rate, lower on a slow machine, which runs until it is stopped.
    pub fn load_until_stopped(&self, rate: u32) -> RunningLoad {
        RunningLoad::start(self.load_of(rate, Duration::MAX), self.recorder())
    }

    fn load_of(&self, rate: u32, for_: Duration) -> Load {
        Load { max_in_flight: MAX_IN_FLIGHT, ..Load::new(self.orders_url(), fewer(rate), for_) }
    }

    fn recorder(&self) -> impl Fn(Outcome) + Send + Sync + 'static {
        let clients = self.clients.clone();
        move |outcome| {
            let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
            match outcome.answer {
                Answer::Accepted(id) => clients.acknowledged.push(id),
                Answer::Shed => {}
                refusal => clients.last_refusal = Some(format!("{refusal:?}")),
            }
        }
    }

    /// Waits until so many orders were accepted.
    pub async fn until_accepted(&self, count: usize) -> Result<()> {
        eventually(&format!("{count} orders to be accepted"), CONDITION_DEADLINE, async || {
            ensure!(self.clients().acknowledged.len() >= count, "{}", self.was_answered());
            Ok(Some(()))
        })
        .await
    }

    /// Compares the records of all services with the acknowledged orders, in one snapshot.
    pub async fn reconcile_acknowledged(&self) -> Result<Reconciliation> {
        self.reconcile(&self.acknowledged()).await
    }

    /// Reads the records until the wait ends, for those who keep no ledger.
    pub async fn settle_acknowledged(&self, wait: Wait) -> Result<Settled> {
        settle(wait, async || self.reconcile_acknowledged().await, async || self.transit().await).await
    }

    /// Waits until nothing is pending, and fails if a promise is broken, or if no order was accepted.
    pub async fn held(&self) -> Result<Reconciliation> {
        let wait = Wait::until_decided(longer(CONDITION_DEADLINE));
        let Settled { reconciliation, ending } = self.settle_acknowledged(wait).await?;
        ensure!(
            ending == Ending::Quiescent && reconciliation.findings.is_empty(),
            "{ending:?}: {reconciliation:?}"
        );
        ensure!(reconciliation.acknowledged > 0, "nothing was tested: {}", self.was_answered());
        Ok(reconciliation)
    }

    /// Waits until the records and the acknowledged orders are so.
    pub async fn until_records(&self, what: &str, are_so: impl Fn(&Reconciliation) -> bool) -> Result<()> {
        eventually(what, CONDITION_DEADLINE, async || {
            Ok(are_so(&self.reconcile_acknowledged().await?).then_some(()))
        })
        .await
    }

    /// Waits until every event is published.
    pub async fn until_published(&self) -> Result<()> {
        self.until_records("all events to be published", |found| found.pending == 0).await
    }

    /// Waits until an order has this status.
    pub async fn until_status(&self, order: Uuid, status: &str) -> Result<()> {
        eventually(&format!("an order to be {status}"), CONDITION_DEADLINE, async || {
            Ok((self.read_order(order).await?["status"] == status).then_some(()))
        })
        .await
    }

    /// Waits until a metric of a process is at least this.
    pub async fn until_metric(&self, process: &str, name: &str, least: f64) -> Result<()> {
        eventually(&format!("{name} of {process} to be {least}"), CONDITION_DEADLINE, async || {
            Ok((self.metric(process, name).await? >= least).then_some(()))
        })
        .await
    }

    /// Waits until a process has ended. One that kills itself still runs for a moment.
    pub async fn ended(&self, pid: u32) -> Result<()> {
        let processes = self.processes()?;
        eventually(&format!("process {pid} to end"), CONDITION_DEADLINE, async || {
            let runs = processes.names().any(|name| processes.pid(name) == Some(pid));
            Ok((!runs).then_some(()))
        })
        .await
    }

    /// Starts every process that is not running, and waits until all are ready.
    pub async fn revive(&self) -> Result<()> {
        let processes = self.processes()?;
        for name in processes.names() {
            if processes.pid(name).is_none() {
                processes.start_again(name).await?;
            }
        }
        processes.wait_ready(CONDITION_DEADLINE).await
    }
}

fn two_lines() -> Value {
    json!([{ "sku": "TEA-001", "quantity": 2 }, { "sku": "MUG-001", "quantity": 1 }])
}
