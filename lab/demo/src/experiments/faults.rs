//! The faults that experiments inject.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sqlx::PgConnection;
use testbed::eventually;

use super::judge::{Breach, judge};
use crate::lab::{CONDITION_DEADLINE, CrashFile, Setup, await_stop, resume_process};
use crate::running_system::RunningSystem;

/// Kills the first process that gets to a crash point while an order is placed, and starts it again. `only`: of this service.
pub(super) async fn killed_at(
    point: &str,
    only: Option<&'static str>,
    setup: Setup,
) -> Result<Option<Breach>> {
    let once = CrashFile::new();
    let setup = match only {
        Some(service) => setup.crashing_in(service, point, once.path()),
        None => setup.crashing_at(point, once.path()),
    };
    let system = RunningSystem::shared(setup).await?;
    // The process may be gone before it has answered: then nothing was acknowledged.
    system.ended(once.process_by(async || system.order_once().await.map(drop)).await?).await?;
    system.revive().await?;
    system.order().await?;
    judge(&system).await
}

/// Deletes the bindings for creations.
async fn unbind(system: &RunningSystem) -> Result<()> {
    let (api, vhost) = (system.broker_api()?, system.vhost());
    for queue in ["inventory.events", "billing.events"] {
        api.delete(&format!("bindings/{vhost}/e/shop.events/q/{queue}/order.created")).await?;
    }
    Ok(())
}

/// Deletes the bindings while a relay of the order service is frozen after its claim, and continues that relay. The
/// other services have relays too, which would restore the bindings: they are frozen until it has decided about each event.
/// After a fixed time it may not have published yet, and a late publish finds the bindings restored.
pub(super) async fn unbind_before_thaw(system: &RunningSystem, frozen: u32) -> Result<()> {
    let others = ["inventory", "billing"];
    for service in others {
        system.processes()?.pause(service)?;
        let pid = system.processes()?.pid(service).with_context(|| format!("{service} is not running"))?;
        await_stop(pid).await?;
    }
    unbind(system).await?;
    resume_process(frozen)?;
    eventually("the relay to mark each event, or to record its refusal", CONDITION_DEADLINE, async || {
        let undecided = "select count(*)::text from orders.outbox
                         where published_at is null and last_error is null";
        Ok((system.number::<u64>(undecided).await? == 0).then_some(()))
    })
    .await?;
    for service in others {
        system.processes()?.resume(service)?;
    }
    Ok(())
}

/// Locks all lanes: no relay publishes until the returned session is dropped.
pub(super) async fn hold_lanes(system: &RunningSystem) -> Result<PgConnection> {
    let mut session = system.connect("orders").await?;
    sqlx::raw_sql("begin; select from outbox_lanes for update").execute(&mut session).await?;
    Ok(session)
}

/// Waits until both services have applied so many orders.
pub(super) async fn applied(system: &RunningSystem, orders: u64, deadline: Duration) -> Result<()> {
    eventually(&format!("{orders} orders to be applied"), deadline, async || {
        let audit = system.reconcile_acknowledged().await?;
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
