//! A system of one's own, and the count at the end.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, ensure};
use demo::audit::{self, Audit};
use load_tests::{Answer, Load, Summary};
use serde_json::{Value, json};
use sqlx::PgPool;
use testbed::{Instances, System, SystemOptions, TestDatabase, eventually};
use uuid::Uuid;

/// How long a condition may take to come true on a busy machine. Nothing is measured by it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Stage {
    pub(crate) system: System,
    pub(crate) client: reqwest::Client,
    pub(crate) auditor: PgPool,
    /// `None` where the database belongs to the test.
    pub(crate) database: Option<TestDatabase>,
    /// What clients were promised.
    acknowledged: Arc<Mutex<Vec<Uuid>>>,
}

impl Stage {
    /// One process of each service, ready.
    pub(crate) async fn set(amqp_url: &str) -> anyhow::Result<Self> {
        let stage = Self::raise(amqp_url, Instances::default(), &[]).await?;
        stage.system.wait_ready(PATIENCE).await?;
        Ok(stage)
    }

    /// Started, and perhaps not ready for a long time.
    pub(crate) async fn raise(
        amqp_url: &str,
        instances: Instances,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        let mut options = SystemOptions::new(database.urls().clone(), amqp_url);
        options.instances = instances;
        options.env = settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let auditor = database.url("auditor");
        let stage = Self::around(System::start(options).await?, &auditor).await?;
        Ok(Self { database: Some(database), ..stage })
    }

    /// Around a system that was started already.
    pub(crate) async fn around(system: System, auditor_url: &str) -> anyhow::Result<Self> {
        let auditor = PgPool::connect_lazy(auditor_url)?;
        Ok(Self {
            system,
            client: reqwest::Client::new(),
            auditor,
            database: None,
            acknowledged: Arc::default(),
        })
    }

    /// Places one order, which has to be accepted.
    pub(crate) async fn order(&self) -> anyhow::Result<Uuid> {
        let body = json!({ "customerId": Uuid::new_v4(), "lines": [
            { "sku": "TEA-001", "quantity": 2 }, { "sku": "MUG-001", "quantity": 1 },
        ] });
        let response =
            self.client.post(format!("{}/orders", self.system.orders_url())).json(&body).send().await?;
        ensure!(response.status() == 201, "an order was answered with {}", response.status());
        let order: Value = response.json().await?;
        let id = order["id"].as_str().context("no id")?.parse()?;
        self.acknowledged.lock().unwrap().push(id);
        Ok(id)
    }

    /// Starts a load that arrives evenly, whatever becomes of the system; await the handle for its end.
    pub(crate) fn load(&self, rate: u32, for_: Duration) -> tokio::task::JoinHandle<anyhow::Result<Summary>> {
        let load = Load::new(self.system.orders_url(), rate, for_);
        let acknowledged = self.acknowledged.clone();
        tokio::spawn(load_tests::run(load, move |outcome| {
            if let Answer::Accepted(id) = outcome.answer {
                acknowledged.lock().unwrap().push(id);
            }
        }))
    }

    pub(crate) async fn audit(&self) -> anyhow::Result<Audit> {
        let acknowledged = self.acknowledged.lock().unwrap().clone();
        // As one statement over one snapshot; the query is our own.
        let query = sqlx::AssertSqlSafe(audit::query(&acknowledged));
        let json: String = sqlx::query_scalar(query).fetch_one(&self.auditor).await?;
        Audit::parse(&json)
    }

    /// Waits until nothing is under way any more, and returns the count. Nothing is missing, doubled or made up.
    pub(crate) async fn held(&self) -> anyhow::Result<Audit> {
        let waited =
            eventually("every accepted order to be applied by both services", PATIENCE, async || {
                let audit = self.audit().await?;
                ensure!(!audit.beyond_hope(), "broken: {:?}", audit.findings);
                ensure!(audit.at_rest(), "under way: {} owed, {:?}", audit.owed, audit.findings);
                Ok(Some(audit))
            });
        let audit = waited.await?;
        ensure!(audit.findings.is_empty(), "{:?}", audit.findings);
        ensure!(audit.acknowledged > 0, "nothing was accepted, so nothing was tested");
        Ok(audit)
    }

    /// A counter of a service, added up over its labels.
    pub(crate) async fn counter(&self, service: &str, name: &str) -> anyhow::Result<f64> {
        let metrics =
            self.client.get(format!("{}/metrics", self.system.url(service)?)).send().await?.text().await?;
        let values = metrics.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
        });
        values.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?)).sum()
    }

    /// How many orders were acknowledged so far.
    pub(crate) fn accepted(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }
}
