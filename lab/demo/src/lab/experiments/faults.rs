//! The faults that experiments inject.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sqlx::{Connection as _, PgConnection};
use testbed::{TestVhost, eventually};
use uuid::Uuid;

use super::{
    super::{BrokerApi, CONDITION_DEADLINE, CrashFile, Setup, Stage, await_stop, resume_process},
    judge::{Breach, judge},
};

/// A stage on a virtual host of the shared broker. Both exist until the experiment is over.
pub(super) async fn stage(setup: Setup) -> Result<(Stage, TestVhost)> {
    let vhost = testbed::vhost().await?;
    Ok((Stage::ready(&vhost.url(), setup).await?, vhost))
}

/// Kills the first process of any service that gets to a crash point while an order is placed, and starts it again.
pub(super) async fn killed_at(point: &str, setup: Setup) -> Result<Option<Breach>> {
    let once = CrashFile::new();
    killed(setup.crashing_at(point, once.path()), once).await
}

/// The same with a process of this service.
pub(super) async fn killed_in(service: &'static str, point: &str, setup: Setup) -> Result<Option<Breach>> {
    let once = CrashFile::new();
    killed(setup.crashing_in(service, point, once.path()), once).await
}

async fn killed(setup: Setup, once: CrashFile) -> Result<Option<Breach>> {
    let (stage, _vhost) = stage(setup).await?;
    // The process may be gone before it has answered: then nothing was acknowledged.
    let _ = stage.order().await;
    stage.ended(once.process().await?).await?;
    stage.revive().await?;
    stage.order().await?;
    judge(&stage).await
}

/// Deletes the bindings for creations.
async fn unbind(vhost: &TestVhost) -> Result<()> {
    let (api, vhost) = (BrokerApi::new(vhost.api_url(), vhost.name())?, vhost.name());
    for queue in ["inventory.events", "billing.events"] {
        api.delete(&format!("bindings/{vhost}/e/shop.events/q/{queue}/order.created")).await?;
    }
    Ok(())
}

/// Deletes the bindings while a relay of the order service is frozen after its claim, and continues that relay. The
/// other services have relays too, which would restore the bindings: they are frozen until it has decided about each event.
/// After a fixed time it may not have published yet, and a late publish finds the bindings restored.
pub(super) async fn unbind_before_thaw(stage: &Stage, vhost: &TestVhost, frozen: u32) -> Result<()> {
    let others = ["inventory", "billing"];
    for service in others {
        stage.system.pause(service)?;
        let pid = stage.system.pid(service).with_context(|| format!("{service} is not running"))?;
        await_stop(pid).await?;
    }
    unbind(vhost).await?;
    resume_process(frozen)?;
    eventually("the relay to mark each event, or to record its refusal", CONDITION_DEADLINE, async || {
        let undecided: i64 = sqlx::query_scalar(
            "select count(*) from orders.outbox where published_at is null and last_error is null",
        )
        .fetch_one(&stage.auditor)
        .await?;
        Ok((undecided == 0).then_some(()))
    })
    .await?;
    for service in others {
        stage.system.resume(service)?;
    }
    Ok(())
}

/// Locks all lanes, so that no relay publishes until it is dropped.
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

/// Copies an order with its event, as another writer would, in a transaction that the caller commits. Wakes no relay.
pub(crate) async fn copy_order(connection: &mut PgConnection, original: Uuid) -> Result<Uuid> {
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

/// Waits until both services have applied so many orders.
pub(super) async fn applied(stage: &Stage, orders: u64, deadline: Duration) -> Result<()> {
    eventually(&format!("{orders} orders to be applied"), deadline, async || {
        let audit = stage.reconcile().await?;
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
