//! Starts the provider in its own process.

use std::process::Command;

use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use sqlx::PgPool;
use testbed::{TestDatabase, TestService};
use uuid::Uuid;

/// The status, whether the answer is marked as a repetition, and the body.
type Answer = (u16, bool, Value);

pub(crate) struct Provider {
    pub(crate) service: TestService,
    pub(crate) client: Client,
    /// Connected as the auditor, which may read everything and write nothing.
    pub(crate) auditor: PgPool,
    pub(crate) database: TestDatabase,
}

impl Provider {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        let program = Command::new(env!("CARGO_BIN_EXE_payment-provider"));
        let settings = [("PROVIDER_DATABASE_URL", &*database.url("provider"))];
        let service = TestService::start(program, "PROVIDER_", &settings)?;
        service.ready().await?;
        let auditor = PgPool::connect(&database.url("auditor")).await?;
        Ok(Self { service, client: Client::new(), auditor, database })
    }

    fn request(&self, path: &str, key: Option<&str>, body: &Value) -> RequestBuilder {
        let request = self.client.post(format!("{}{path}", self.service.url())).json(body);
        if let Some(key) = key { request.header("idempotency-key", key) } else { request }
    }

    pub(crate) async fn charge(&self, key: Option<&str>, body: &Value) -> anyhow::Result<Answer> {
        send(self.request("/charges", key, body)).await
    }

    pub(crate) async fn refund(
        &self,
        key: Option<&str>,
        charge: &str,
        amount: i64,
    ) -> anyhow::Result<Answer> {
        send(self.request("/refunds", key, &json!({ "charge": charge, "amount": amount }))).await
    }

    /// Charges a new customer this amount, and returns the charge's id.
    pub(crate) async fn captured(&self, amount: i64) -> anyhow::Result<String> {
        let mut body = charge();
        body["amount"] = amount.into();
        let (status, _, charge) = self.charge(None, &body).await?;
        anyhow::ensure!(status == 201, "{charge}");
        Ok(charge["id"].as_str().unwrap().to_owned())
    }

    pub(crate) async fn put_faults(&self, list: &Value) -> anyhow::Result<Answer> {
        send(self.client.put(format!("{}/faults", self.service.url())).json(list)).await
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<(u16, Value)> {
        let (status, _, body) = send(self.client.get(format!("{}{path}", self.service.url()))).await?;
        Ok((status, body))
    }

    /// The numbers of charges, refunds and keys.
    pub(crate) async fn rows(&self) -> anyhow::Result<(i64, i64, i64)> {
        let sql = "select (select count(*) from charges), (select count(*) from refunds),
                          (select count(*) from known_keys)";
        Ok(sqlx::query_as(sql).fetch_one(&self.auditor).await?)
    }
}

async fn send(request: RequestBuilder) -> anyhow::Result<Answer> {
    let response = request.send().await?;
    let repeated = response.headers().get("idempotent-replayed").is_some_and(|value| value == "true");
    let status = response.status().as_u16();
    if status >= 400 {
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{status}");
    }
    Ok((status, repeated, response.json().await?))
}

/// A valid charge.
pub(crate) fn charge() -> Value {
    json!({ "reference": Uuid::new_v4(), "customerId": Uuid::new_v4(), "amount": 2_500, "currency": "EUR" })
}

/// The last part of a problem's `type`.
pub(crate) fn kind(problem: &Value) -> &str {
    problem["type"].as_str().unwrap().strip_prefix("urn:shop:problem:").unwrap()
}
