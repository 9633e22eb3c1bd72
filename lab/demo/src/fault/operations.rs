//! Steps that several faults share.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::time::timeout;

use crate::http;
use crate::lab::BrokerApi;
use crate::part::SERVICES;
use crate::running_system::RunningSystem;

/// The policy that makes a queue full.
pub(super) const FULL: &str = "policies/shop/full";

/// The path of a service's queue in the broker's API.
pub(super) fn queue(service: &str) -> String {
    format!("queues/shop/{service}.events")
}

/// How long an administrator's statement may take. A frozen database never answers.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(20);

/// Waits for the process that reaches the system's crash point. Returns its name and its id.
pub(crate) async fn reach_crash_point(system: &RunningSystem) -> Result<(String, u32)> {
    let processes = system.processes()?;
    let before: Vec<_> =
        processes.names().filter_map(|name| Some((name.to_owned(), processes.pid(name)?))).collect();
    let crash = system.crash()?;
    crash.arm()?;
    let pid = crash.process().await?;
    before
        .into_iter()
        .find(|(_, known)| *known == pid)
        .context("an unknown process has reached the crash point")
}

/// Locks a table until the returned session is closed, as the administrator of a system's own server.
pub(super) async fn lock_table(system: &RunningSystem, table: &str) -> Result<PgConnection> {
    let lock = format!(
        "set idle_in_transaction_session_timeout = 0; begin; lock table {table} in access exclusive mode"
    );
    let locking = async {
        let mut session = system.connect("admin").await?;
        sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut session).await?;
        Ok(session)
    };
    timeout(STATEMENT_DEADLINE, locking).await.with_context(|| format!("failed to lock {table} in time"))?
}

/// Publishes a message again under its id: it was taken out of a queue, and may have another body now.
pub(crate) async fn publish_copy(api: &BrokerApi, message: &Value, payload: Option<&str>) -> Result<()> {
    let key = message["routing_key"].as_str().context("a message without a routing key")?;
    let payload = payload.or(message["payload"].as_str()).context("a message without a payload")?;
    api.publish_as("shop.events", key, payload, &message["properties"]).await
}

/// Sets the faults of the payment provider.
pub(super) async fn set_provider(system: &RunningSystem, faults: Value) -> Result<()> {
    let url = format!("{}/faults", system.addresses()?.provider_url);
    let answer = http::client()?.put(url).json(&faults).send().await?;
    ensure!(answer.status() == 200, "the provider's faults were answered with {}", answer.status());
    Ok(())
}

/// The processes of the services.
pub(super) fn pids(system: &RunningSystem) -> Result<Vec<Option<u32>>> {
    let processes = system.processes()?;
    Ok(SERVICES.map(|service| processes.pid(service)).to_vec())
}

/// A process in words.
pub(super) fn process(pid: Option<u32>) -> String {
    pid.map_or("no process".to_owned(), |pid| format!("process {pid}"))
}
