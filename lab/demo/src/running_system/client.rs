//! What tests and experiments do as clients of a system. It remembers the orders that were acknowledged to them.

use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use load_tests::{Answer, Load, Outcome, Summary};
use serde_json::{Value, json};
use testbed::eventually;
use uuid::Uuid;

use super::RunningSystem;
use crate::http;
use crate::lab::CONDITION_DEADLINE;
use crate::load::RunningLoad;
use crate::reconciliation::{Ending, Reconciliation, Wait, settle};

impl RunningSystem {
    /// Places one order of two lines, which must be accepted.
    pub async fn order(&self) -> Result<Uuid> {
        let lines = json!([{ "sku": "TEA-001", "quantity": 2 }, { "sku": "MUG-001", "quantity": 1 }]);
        self.order_of(Uuid::new_v4(), lines).await
    }

    /// Places one order of a customer, which must be accepted.
    pub async fn order_of(&self, customer: Uuid, lines: Value) -> Result<Uuid> {
        let body = json!({ "customerId": customer, "lines": lines });
        // A test may freeze a process meanwhile.
        let request = http::order_request(self.orders_url(), &body)?.timeout(CONDITION_DEADLINE);
        let id = http::place(request).await?;
        self.note(id);
        Ok(id)
    }

    /// Reads an order as a client does.
    pub async fn read_order(&self, id: Uuid) -> Result<Value> {
        let page = http::get(&format!("{}/orders/{id}", self.orders_url())).await?;
        serde_json::from_str(&page).context("failed to read an order")
    }

    /// Cancels an order, which must be accepted.
    pub async fn cancel(&self, id: Uuid) -> Result<()> {
        let url = format!("{}/orders/{id}/cancellation", self.orders_url());
        let response = http::client()?.post(url).timeout(CONDITION_DEADLINE).send().await?;
        ensure!(response.status() == 200, "a cancellation was answered with {}", response.status());
        Ok(())
    }

    /// Reads `/readyz` of a process: the status, and what it reports about its parts.
    pub async fn health(&self, process: &str) -> Result<(u16, Value)> {
        let response = http::client()?.get(format!("{}/readyz", self.url(process)?)).send().await?;
        Ok((response.status().as_u16(), response.json().await?))
    }

    /// Records that an order was acknowledged to a client.
    pub fn note(&self, id: Uuid) {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }

    /// The orders that were acknowledged so far, oldest first.
    pub fn acknowledged(&self) -> Vec<Uuid> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Places orders at a constant rate.
    pub async fn load(&self, rate: u32, for_: Duration) -> Result<Summary> {
        load_tests::run(Load::new(self.orders_url(), rate, for_), self.recorder()).await
    }

    /// Starts a load with a constant rate, which runs until it is stopped.
    pub fn load_until_stopped(&self, rate: u32) -> RunningLoad {
        let load = Load::new(self.orders_url(), rate, Duration::MAX);
        RunningLoad::start(load, self.recorder())
    }

    fn recorder(&self) -> impl Fn(Outcome) + Send + Sync + 'static {
        let acknowledged = self.acknowledged.clone();
        move |outcome| {
            if let Answer::Accepted(id) = outcome.answer {
                acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(id);
            }
        }
    }

    /// Compares the records of all services with the acknowledged orders, in one snapshot.
    pub async fn reconcile_acknowledged(&self) -> Result<Reconciliation> {
        self.reconcile(&self.acknowledged()).await
    }

    /// Waits until nothing is pending, and fails if a promise is broken, or if no order was accepted.
    pub async fn held(&self) -> Result<Reconciliation> {
        let wait = Wait::until_decided(CONDITION_DEADLINE);
        let settled = settle(wait, async || self.reconcile_acknowledged().await).await?;
        let reconciliation = settled.reconciliation;
        ensure!(reconciliation.findings.is_empty(), "{:?}", reconciliation.findings);
        ensure!(settled.ending == Ending::Quiescent, "still in progress: {reconciliation:?}");
        ensure!(reconciliation.acknowledged > 0, "no order was accepted, so nothing was tested");
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
