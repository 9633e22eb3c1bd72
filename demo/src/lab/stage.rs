//! A system of one's own, and the count at the end.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use load_tests::{Answer, Load, Summary};
use serde_json::{Value, json};
use sqlx::PgPool;
use testbed::{Instances, System, SystemOptions, TestDatabase, eventually};
use uuid::Uuid;

use crate::audit::{self, Audit};
use crate::variant::Variant;

/// How long a condition may take to come true on a busy machine. Nothing is measured by it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How the system is to be set up.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// How many processes of each service.
    pub instances: Instances,
    /// More settings: those of the services, and `DRILL_…` for drill builds.
    pub settings: Vec<(String, String)>,
    /// Whether the drill builds of the services are started.
    pub drill: bool,
    /// What takes the orders in the real service's place.
    pub variant: Option<Variant>,
}

impl Setup {
    /// With one more setting.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.settings.push((name.to_owned(), value.into()));
        self
    }

    /// In drill builds, which strike at `point` (such as `relay-confirmed:kill`) once, when `once` does not exist yet.
    #[must_use]
    pub fn striking(self, point: impl Into<String>, once: &Path) -> Self {
        let setup = self.with("DRILL_POINT", point).with("DRILL_ONCE", once.to_string_lossy());
        Self { drill: true, ..setup }
    }
}

/// Three services, as processes, and what their clients were promised.
#[derive(Debug)]
pub struct Stage {
    /// The processes.
    pub system: System,
    /// For requests of one's own.
    pub client: reqwest::Client,
    /// Reads all three schemas.
    pub auditor: PgPool,
    /// `None` where the database belongs to the caller.
    pub database: Option<TestDatabase>,
    acknowledged: Arc<Mutex<Vec<Uuid>>>,
    variant: Option<Variant>,
}

impl Stage {
    /// One process of each service, ready.
    pub async fn set(amqp_url: &str) -> Result<Self> {
        Self::ready(amqp_url, Setup::default()).await
    }

    /// Started, and ready.
    pub async fn ready(amqp_url: &str, setup: Setup) -> Result<Self> {
        let stage = Self::raise(amqp_url, setup).await?;
        stage.system.wait_ready(PATIENCE).await?;
        Ok(stage)
    }

    /// Started, and perhaps not ready for a long time.
    pub async fn raise(amqp_url: &str, setup: Setup) -> Result<Self> {
        let database = testbed::database().await?;
        let mut options = SystemOptions::new(database.urls().clone(), amqp_url);
        options.instances = setup.instances;
        options.env = setup.settings;
        options.drill = setup.drill;
        options.variant = setup.variant.map(Variant::name);
        let stage = Self::around(System::start(options).await?, &database.url("auditor")).await?;
        Ok(Self { database: Some(database), variant: setup.variant, ..stage })
    }

    /// Around a system that was started already.
    pub async fn around(system: System, auditor_url: &str) -> Result<Self> {
        let auditor = PgPool::connect_lazy(auditor_url)?;
        let client = reqwest::Client::new();
        Ok(Self { system, client, auditor, database: None, acknowledged: Arc::default(), variant: None })
    }

    /// The database's URL for a login.
    pub fn database_url(&self, login: &str) -> Result<String> {
        Ok(self.database.as_ref().context("the database is not this stage's own")?.url(login))
    }

    /// Places one order, which has to be accepted.
    pub async fn order(&self) -> Result<Uuid> {
        let lines = json!([{ "sku": "TEA-001", "quantity": 2 }, { "sku": "MUG-001", "quantity": 1 }]);
        self.order_of(Uuid::new_v4(), lines).await
    }

    /// Places one order of somebody for something, which has to be accepted.
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

    /// Lets the payment provider fail: a list of faults, as `PUT /faults` takes it.
    pub async fn provider_faults(&self, faults: Value) -> Result<()> {
        let url = format!("{}/faults", self.system.url("provider")?);
        let answer = self.client.put(url).json(&faults).send().await?;
        ensure!(answer.status() == 200, "the faults were answered with {}", answer.status());
        Ok(())
    }

    /// An order as a client sees it.
    pub async fn read(&self, id: Uuid) -> Result<Value> {
        let url = format!("{}/orders/{id}", self.system.orders_url());
        Ok(self.client.get(url).send().await?.error_for_status()?.json().await?)
    }

    /// Takes an order back.
    pub async fn cancel(&self, id: Uuid) -> Result<()> {
        let url = format!("{}/orders/{id}/cancellation", self.system.orders_url());
        let response = self.client.post(url).send().await?;
        ensure!(response.status() == 200, "a cancellation was answered with {}", response.status());
        Ok(())
    }

    /// Notes an order that a client holds an acknowledgement for.
    pub fn note(&self, id: Uuid) {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }

    /// For noting orders from elsewhere.
    pub(crate) fn ledger(&self) -> impl Fn(Uuid) + Send + Sync + 'static {
        let acknowledged = self.acknowledged.clone();
        move |id| acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(id)
    }

    /// Starts a load that arrives evenly, whatever becomes of the system; await the handle for its end.
    pub fn load(&self, rate: u32, for_: Duration) -> tokio::task::JoinHandle<Result<Summary>> {
        self.run(Load::new(self.system.orders_url(), rate, for_))
    }

    /// Starts a load; await the handle for its end.
    pub fn run(&self, load: Load) -> tokio::task::JoinHandle<Result<Summary>> {
        let note = self.ledger();
        tokio::spawn(load_tests::run(load, move |outcome| {
            if let Answer::Accepted(id) = outcome.answer {
                note(id);
            }
        }))
    }

    /// What is there, against what was promised, in one snapshot.
    pub async fn audit(&self) -> Result<Audit> {
        let acknowledged = self.acknowledged();
        // As one statement over one snapshot; the query is our own.
        let query = sqlx::AssertSqlSafe(audit::query(&acknowledged, self.variant));
        let json: String = sqlx::query_scalar(query).fetch_one(&self.auditor).await?;
        Audit::parse(&json)
    }

    /// Waits until nothing is under way any more, and returns the count. Nothing is missing, doubled or made up.
    pub async fn held(&self) -> Result<Audit> {
        let waited =
            eventually("every accepted order to be applied by both services", PATIENCE, async || {
                let audit = self.audit().await?;
                ensure!(!audit.beyond_hope(), "broken: {:?}", audit.findings);
                ensure!(audit.at_rest(), "under way: {audit:?}");
                Ok(Some(audit))
            });
        let audit = waited.await?;
        ensure!(audit.findings.is_empty(), "{:?}", audit.findings);
        ensure!(audit.acknowledged > 0, "nothing was accepted, so nothing was tested");
        Ok(audit)
    }

    /// A counter of a process, added up over its labels.
    pub async fn counter(&self, process: &str, name: &str) -> Result<f64> {
        let metrics =
            self.client.get(format!("{}/metrics", self.system.url(process)?)).send().await?.text().await?;
        let values = metrics.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
        });
        values.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?)).sum()
    }

    /// The orders that were acknowledged so far, oldest first.
    pub fn acknowledged(&self) -> Vec<Uuid> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many orders were acknowledged so far.
    pub fn accepted(&self) -> usize {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Starts every process again that is not running, and waits until all are ready.
    pub async fn revive(&self) -> Result<()> {
        for name in self.system.names() {
            if self.system.pid(name).is_none() {
                self.system.start_again(name).await?;
            }
        }
        self.system.wait_ready(PATIENCE).await
    }
}
