//! A system for one test: its processes, its orders, and the reconciliation at the end.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use flaws::{Flaw, LeftOut};
use load_tests::{Answer, Load, Outcome, Summary};
use serde_json::{Value, json};
use sqlx::PgPool;
use testbed::{DatabaseUrls, Setup, System, SystemOptions, TestDatabase, eventually};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::{
    http,
    load::StoppableLoad,
    metrics,
    reconciliation::{self, Ending, Reconciliation, Wait, settle},
};

/// How long a condition may take to come true on a busy machine. It measures nothing.
pub const CONDITION_DEADLINE: Duration = Duration::from_secs(60);

/// The setup with one protection left out. A flaw that exists only in memory changes nothing.
pub(crate) fn leave_out(setup: Setup, flaw: Flaw) -> Setup {
    match flaw.row().left_out {
        LeftOut::Part => Setup { lab: true, ..setup.with("SABOTAGE", flaw.name()) },
        LeftOut::Settings(settings) => {
            settings.iter().fold(setup, |setup, (name, value)| setup.with(name, *value))
        }
        LeftOut::Variant => Setup { variant: Some(flaw.name()), ..setup },
        LeftOut::InMemory => setup,
    }
}

/// The processes of a system, and the orders that were acknowledged to its clients.
#[derive(Debug)]
pub struct Stage {
    pub system: System,
    /// For requests of the test's own.
    pub client: reqwest::Client,
    /// Reads the schemas of all services.
    pub auditor: PgPool,
    /// `None` if the database belongs to the caller.
    pub database: Option<TestDatabase>,
    acknowledged: Arc<Mutex<Vec<Uuid>>>,
    variant: Option<Flaw>,
}

impl Stage {
    /// Starts one process of each service, and waits until they are ready.
    pub async fn with_defaults(amqp_url: &str) -> Result<Self> {
        Self::ready(amqp_url, Setup::default()).await
    }

    /// Starts a system, and waits until it is ready.
    pub async fn ready(amqp_url: &str, setup: Setup) -> Result<Self> {
        Self::ready_on(testbed::database().await?, amqp_url, setup).await
    }

    /// Starts a system on a database that the caller has created, and waits until it is ready.
    pub async fn ready_on(database: TestDatabase, amqp_url: &str, setup: Setup) -> Result<Self> {
        let stage = Self::start_on(database, amqp_url, setup).await?;
        stage.system.wait_ready(CONDITION_DEADLINE).await?;
        Ok(stage)
    }

    /// Starts a system. It may not be ready for a long time.
    pub async fn start(amqp_url: &str, setup: Setup) -> Result<Self> {
        Self::start_on(testbed::database().await?, amqp_url, setup).await
    }

    async fn start_on(database: TestDatabase, amqp_url: &str, setup: Setup) -> Result<Self> {
        let stage = Self::start_with(database.urls(), amqp_url, setup).await?;
        Ok(Self { database: Some(database), ..stage })
    }

    /// Starts a system on a database of the caller's. It may not be ready for a long time.
    pub async fn start_with(urls: &DatabaseUrls, amqp_url: &str, setup: Setup) -> Result<Self> {
        let variant = setup.variant.and_then(Flaw::named);
        let system = System::start(SystemOptions::new(urls.clone(), amqp_url, setup)).await?;
        Ok(Self { variant, ..Self::around(system, &urls.auditor).await? })
    }

    /// Uses a system that was started already.
    pub async fn around(system: System, auditor_url: &str) -> Result<Self> {
        let auditor = PgPool::connect_lazy(auditor_url)?;
        let client = reqwest::Client::new();
        Ok(Self { system, client, auditor, database: None, acknowledged: Arc::default(), variant: None })
    }

    /// The database's URL for a login.
    pub fn database_url(&self, login: &str) -> Result<String> {
        Ok(self.database.as_ref().context("the database belongs to the caller")?.url(login))
    }

    /// Places one order of two lines, which has to be accepted.
    pub async fn order(&self) -> Result<Uuid> {
        let lines = json!([{ "sku": "TEA-001", "quantity": 2 }, { "sku": "MUG-001", "quantity": 1 }]);
        self.order_of(Uuid::new_v4(), lines).await
    }

    /// Places one order of a customer, which has to be accepted.
    pub async fn order_of(&self, customer: Uuid, lines: Value) -> Result<Uuid> {
        let body = json!({ "customerId": customer, "lines": lines });
        let response =
            self.client.post(format!("{}/orders", self.system.orders_url())).json(&body).send().await?;
        ensure!(response.status() == 201, "an order was answered with {}", response.status());
        let order: Value = response.json().await?;
        let id = order["id"].as_str().context("no id")?.parse()?;
        self.note(id);
        Ok(id)
    }

    /// Sets the faults of the payment provider: a list as `PUT /faults` accepts it.
    pub async fn provider_faults(&self, faults: Value) -> Result<()> {
        let url = format!("{}/faults", self.system.url("provider")?);
        let response = self.client.put(url).json(&faults).send().await?;
        ensure!(response.status() == 200, "the faults were answered with {}", response.status());
        Ok(())
    }

    /// Reads an order as a client does.
    pub async fn read(&self, id: Uuid) -> Result<Value> {
        let url = format!("{}/orders/{id}", self.system.orders_url());
        Ok(self.client.get(url).send().await?.error_for_status()?.json().await?)
    }

    /// Cancels an order, which has to be accepted.
    pub async fn cancel(&self, id: Uuid) -> Result<()> {
        let url = format!("{}/orders/{id}/cancellation", self.system.orders_url());
        let response = self.client.post(url).send().await?;
        ensure!(response.status() == 200, "a cancellation was answered with {}", response.status());
        Ok(())
    }

    /// Sends a request to a process's admin API, which has to be accepted. With a body it is a POST.
    pub async fn admin(&self, process: &str, path: &str, body: Option<Value>) -> Result<Value> {
        let url = format!("{}{path}", self.system.admin_url(process)?);
        let body = body.map(|body| body.to_string());
        let (status, answer) = http::admin_request(&url, self.system.admin_token(), body.as_deref()).await?;
        ensure!(status == 200, "{process} answered {status}: {answer}");
        Ok(serde_json::from_str(&answer)?)
    }

    /// Reads `/readyz` of a process: the status, and what it reports about its parts.
    pub async fn health(&self, process: &str) -> Result<(u16, Value)> {
        let response = self.client.get(format!("{}/readyz", self.system.url(process)?)).send().await?;
        Ok((response.status().as_u16(), response.json().await?))
    }

    /// Records that an order was acknowledged to a client.
    pub fn note(&self, id: Uuid) {
        record(&self.acknowledged, id);
    }

    /// Starts a load with a constant rate. The handle's result is its summary.
    pub fn load(&self, rate: u32, for_: Duration) -> JoinHandle<Result<Summary>> {
        let load = Load::new(self.system.orders_url(), rate, for_);
        tokio::spawn(load_tests::run(load, self.recorder(|_| {})))
    }

    /// Starts a load with a constant rate, which runs until it is stopped.
    pub fn load_until_stopped(&self, rate: u32) -> StoppableLoad {
        self.run_until_stopped(Load::new(self.system.orders_url(), rate, Duration::MAX))
    }

    /// Starts a load, which runs until it is stopped.
    pub fn run_until_stopped(&self, load: Load) -> StoppableLoad {
        StoppableLoad::run(load, self.recorder(|_| {}))
    }

    /// Returns a callback for a load that records every accepted order, and then calls `on_accepted`.
    pub(crate) fn recorder(
        &self,
        on_accepted: impl Fn(Uuid) + Send + Sync + 'static,
    ) -> impl Fn(Outcome) + Send + Sync + 'static {
        let acknowledged = self.acknowledged.clone();
        move |outcome| {
            if let Answer::Accepted(id) = outcome.answer {
                record(&acknowledged, id);
                on_accepted(id);
            }
        }
    }

    /// Compares the records of all services with the acknowledged orders, in one snapshot.
    pub async fn reconcile(&self) -> Result<Reconciliation> {
        self.reconcile_with(&self.acknowledged()).await
    }

    /// The same with other acknowledged orders.
    pub async fn reconcile_with(&self, acknowledged: &[Uuid]) -> Result<Reconciliation> {
        // The query is this crate's own, and one statement, so it reads one snapshot.
        let query = sqlx::AssertSqlSafe(reconciliation::query(acknowledged, self.variant));
        let json: String = sqlx::query_scalar(query).fetch_one(&self.auditor).await?;
        Reconciliation::parse(&json)
    }

    /// Waits until nothing is pending, and fails if a promise is broken, or if no order was accepted.
    pub async fn held(&self) -> Result<Reconciliation> {
        let wait = Wait::until_decided(CONDITION_DEADLINE);
        let settled = settle(wait, async || self.reconcile().await).await?;
        let reconciliation = settled.reconciliation;
        ensure!(reconciliation.findings.is_empty(), "{:?}", reconciliation.findings);
        ensure!(settled.ending == Ending::Quiescent, "still in progress: {reconciliation:?}");
        ensure!(reconciliation.acknowledged > 0, "no order was accepted, so nothing was tested");
        Ok(reconciliation)
    }

    /// Reads a metric of a process, added up over its labels.
    pub async fn counter(&self, process: &str, name: &str) -> Result<f64> {
        let page =
            self.client.get(format!("{}/metrics", self.system.url(process)?)).send().await?.text().await?;
        Ok(metrics::sum(&page, name)?)
    }

    /// The orders that were acknowledged so far, oldest first.
    pub fn acknowledged(&self) -> Vec<Uuid> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many orders were acknowledged so far.
    pub fn accepted(&self) -> usize {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Waits until a process has ended. One that kills itself still runs for a moment.
    pub async fn ended(&self, pid: u32) -> Result<()> {
        eventually(&format!("process {pid} to end"), CONDITION_DEADLINE, async || {
            let runs = self.system.names().any(|name| self.system.pid(name) == Some(pid));
            Ok((!runs).then_some(()))
        })
        .await
    }

    /// Starts every process that is not running, and waits until all are ready.
    pub async fn revive(&self) -> Result<()> {
        for name in self.system.names() {
            if self.system.pid(name).is_none() {
                self.system.start_again(name).await?;
            }
        }
        self.system.wait_ready(CONDITION_DEADLINE).await
    }
}

fn record(acknowledged: &Mutex<Vec<Uuid>>, id: Uuid) {
    acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(id);
}
