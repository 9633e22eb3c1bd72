//! The faults that experiments need.

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use sqlx::{Connection as _, PgConnection};
use testbed::{TestVhost, eventually};
use uuid::Uuid;

use super::super::{PATIENCE, Stage};

/// The file by which a process says that it has struck. Removed when dropped.
pub(super) struct Once(PathBuf);

impl Once {
    pub(super) fn new() -> Self {
        Self(std::env::temp_dir().join(format!("drill-{}", Uuid::new_v4())))
    }

    pub(super) fn path(&self) -> &PathBuf {
        &self.0
    }

    /// Waits until some process has reached the point.
    pub(super) async fn struck(&self) -> Result<()> {
        eventually("the point to be reached", PATIENCE, async || Ok(self.0.exists().then_some(()))).await
    }

    /// The same, and says which process it was.
    pub(super) async fn struck_by(&self) -> Result<u32> {
        eventually("the point to be reached", PATIENCE, async || {
            Ok(std::fs::read_to_string(&self.0).ok().and_then(|pid| pid.parse().ok()))
        })
        .await
    }

    /// Until it is armed again, nobody strikes.
    pub(super) fn disarm(&self) -> Result<()> {
        std::fs::write(&self.0, "disarmed").context("cannot disarm")
    }

    /// Whoever reaches the point next strikes.
    pub(super) fn arm(&self) -> Result<()> {
        std::fs::remove_file(&self.0).context("cannot arm")
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Lets a process that has frozen itself go on.
pub(super) fn thaw(pid: u32) -> Result<()> {
    let done = Command::new("kill").args(["-CONT", &pid.to_string()]).status().context("cannot run kill")?;
    ensure!(done.success(), "process {pid} could not be thawed");
    Ok(())
}

/// Waits until a process is gone: a kill by its own hand takes a moment to be seen from outside.
pub(super) async fn gone(stage: &Stage, process: &str) -> Result<()> {
    eventually(&format!("{process} to be gone"), PATIENCE, async || {
        Ok(stage.system.pid(process).is_none().then_some(()))
    })
    .await
}

/// Takes the bindings for creations away. Nobody notices until something is published.
async fn unbind(stage: &Stage, vhost: &TestVhost) -> Result<()> {
    for queue in ["inventory.events", "billing.events"] {
        let (api, vhost) = (vhost.api_url(), vhost.name());
        let url = format!("{api}/api/bindings/{vhost}/e/shop.events/q/{queue}/order.created");
        let answer = stage.client.delete(url).send().await?;
        ensure!(answer.status().is_success(), "the binding of {queue} was not deleted: {}", answer.status());
    }
    Ok(())
}

/// Unbinds while a relay of the order service is frozen with events in hand, and lets that one go on. The other services
/// have relays too, each of which would declare what is missing again: they are kept still until it is done.
pub(super) async fn unbind_before(stage: &Stage, vhost: &TestVhost, frozen: u32) -> Result<()> {
    let others = ["inventory", "billing"];
    for service in others {
        stage.system.pause(service)?;
    }
    unbind(stage, vhost).await?;
    thaw(frozen)?;
    // Whoever trusts the wrong answer is soon done; whoever does not has bound the queues again, or is about to.
    let _ = eventually("the events to be out of hand", Duration::from_secs(2), async || {
        Ok((stage.audit().await?.owed == 0).then_some(()))
    })
    .await;
    for service in others {
        stage.system.resume(service)?;
    }
    Ok(())
}

/// Holds all lanes, so that nothing is published until it is dropped.
pub(super) struct Lanes {
    _held: PgConnection,
}

impl Lanes {
    pub(super) async fn hold(stage: &Stage) -> Result<Self> {
        let mut connection = PgConnection::connect(&stage.database_url("orders")?).await?;
        sqlx::query("begin").execute(&mut connection).await?;
        sqlx::query("select from outbox_lanes for update").execute(&mut connection).await?;
        Ok(Self { _held: connection })
    }
}

/// Another writer than the API: copies an order with its event, in a transaction that the caller commits. Nobody is
/// woken.
pub(super) async fn copy_order(connection: &mut PgConnection, original: Uuid) -> Result<Uuid> {
    let (copy, event) = (Uuid::now_v7(), Uuid::now_v7());
    for sql in [
        "insert into orders (id, customer_id, status, total_amount, currency)
         select $2, customer_id, 'pending', total_amount, currency from orders where id = $1 and $3::uuid is not null",
        "insert into order_lines (order_id, line_number, sku, quantity, unit_price)
         select $2, line_number, sku, quantity, unit_price from order_lines
         where order_id = $1 and $3::uuid is not null",
        "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                             payload, headers, lane)
         select $3, aggregate_type, $2, aggregate_version, event_type, schema_version,
                replace(replace(payload::text, event_id::text, $3::text), $1::text, $2::text)::json, headers, lane
         from outbox where aggregate_id = $1 and aggregate_version = 1",
    ] {
        let done = sqlx::query(sql).bind(original).bind(copy).bind(event).execute(&mut *connection).await?;
        ensure!(done.rows_affected() > 0, "there is nothing to copy of order {original}");
    }
    Ok(copy)
}

/// Waits until as many orders are applied by both services.
pub(super) async fn applied(stage: &Stage, orders: u64, patience: Duration) -> Result<()> {
    eventually(&format!("{orders} orders to be applied"), patience, async || {
        let audit = stage.audit().await?;
        ensure!(
            audit.in_inventory >= orders && audit.in_billing >= orders,
            "{} in inventory, {} in billing",
            audit.in_inventory,
            audit.in_billing
        );
        Ok(Some(()))
    })
    .await
}
