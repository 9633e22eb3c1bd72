//! The order service's relay reads the write-ahead log, and its slot is gone: it halts, and an operator lets it go on.

use std::time::Duration;

use anyhow::Result;
use sqlx::{Connection as _, PgConnection};
use testbed::{eventually, longer};

use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use super::failover::fail_over;
use super::report::Refusals;
use crate::databases::Replication;
use crate::fault::Fault;
use crate::lab::Setup;
use crate::own_system::OwnSystem;
use crate::part::BROKER;

pub(super) static DRILLS: [Drill; 2] = [
    Drill {
        name: "log-slot-lost",
        teaches: "A slot keeps log for as long as its reader needs, until the disk is full. A bound protects the disk, and then the \
                  reader has lost its place: it must say so.",
        question: "The broker is away, and the server removes log that the relay has not read. Which events are never published?",
        claim: "A relay whose slot is lost publishes nothing until an operator drops the slot. Then it publishes what is pending in \
                the table, and nothing is lost.",
        outage: Duration::from_secs(4),
        system: Subject::Own(|| with_log_relay(None)),
        steps: Some(|run| Box::pin(lose_the_slot(run))),
        ..ROW
    },
    Drill {
        name: "log-failover",
        teaches: "Before PostgreSQL 17 a replication slot belongs to one server: after a fail-over, a relay that reads the log needs \
                  an operator. From 17 on the standby has a copy.",
        question: "The primary dies, and its synchronous standby takes over. Does the relay find its slot there, or begin a new one, \
                   and what of the events before it?",
        claim: "After a fail-over to a server without its slot the relay publishes nothing until an operator drops the slot; to a \
                server with a copy it goes on by itself. Nothing is lost.",
        outage: Duration::from_secs(4),
        system: Subject::Own(|| with_log_relay(Some(Replication::Synchronous))),
        steps: Some(|run| Box::pin(fail_over_with_slot(run))),
        refusals: Refusals::AreExpected,
        ..ROW
    },
];

/// How long the first copy of a slot may take. It waits for as long as the slot needs an older catalog than the standby has kept.
const COPY_DEADLINE: Duration = Duration::from_secs(180);

const ROW: Drill = Drill { group: Group::Database, ..Drill::ROW };

fn with_log_relay(standby: Option<Replication>) -> OwnSystem {
    OwnSystem { standby, ..Setup::default().with("ORDERS_RELAY", "log").into() }
}

async fn lose_the_slot(run: &DrillRun<'_>) -> Result<()> {
    let databases = &run.system.own()?.databases;
    let primary = databases.primary();
    databases.execute_at(primary, "alter system set max_slot_wal_keep_size = '16MB'").await?;
    databases.execute_at(primary, "select pg_reload_conf()").await?;
    let killed = run.inject(&Fault::Kill(BROKER)).await?;
    run.accepted_meanwhile().await;
    // Three segments of log, as hours of load would write them, and the checkpoint that removes them.
    for _ in 0..3 {
        databases
            .execute_at(primary, "select pg_logical_emit_message(false, '', 'x'), pg_switch_wal()")
            .await?;
    }
    databases.execute_at(primary, "checkpoint").await?;
    run.phase("lost", "the server has removed log that the relay had not acknowledged");
    run.repair(killed).await?;
    stay_halted(run).await?;
    let pending = "select (count(*))::text from orders.outbox where published_at is null";
    let pending: u64 = run.system.number(pending).await?;
    run.injected(format!("{pending} events were pending when the slot was dropped"), pending > 0);
    drop_the_slot(run).await
}

async fn fail_over_with_slot(run: &DrillRun<'_>) -> Result<()> {
    let databases = &run.system.own()?.databases;
    let standby = databases.standby()?;
    let copies = databases
        .read_at(standby, "select (current_setting('server_version_num')::int >= 170000)::text")
        .await?
        == "true";
    if copies {
        let copied = "select exists (select from pg_replication_slots where slot_type = 'logical' and not temporary)::text";
        let what = "the standby to have a copy of the slot";
        let copied = eventually(what, longer(COPY_DEADLINE), async || {
            Ok((databases.read_at(standby, copied).await? == "true").then_some(()))
        });
        copied.await?;
        run.phase("copied", "the standby has a copy of the slot");
    }
    fail_over(run, databases).await?;
    if copies {
        let published = run.published().await?;
        run.until_promised("the relay goes on with the copy, and no operator", async || {
            Ok(run.published().await? > published)
        })
        .await;
        run.accepted_meanwhile().await;
        let halted = run.system.metric("orders", "outbox_log_halted").await?;
        run.promised("outbox_log_halted is 0", halted == 0.0);
    } else {
        stay_halted(run).await?;
        drop_the_slot(run).await?;
    }
    databases.renew_standby().await?;
    databases.wait_for_standby(true).await
}

/// Waits until the relay has halted, and observes that it stays so while orders are accepted.
async fn stay_halted(run: &DrillRun<'_>) -> Result<()> {
    run.until_promised("outbox_log_halted is 1", async || {
        Ok(run.system.metric("orders", "outbox_log_halted").await? == 1.0)
    })
    .await;
    let published = run.published().await?;
    run.accepted_meanwhile().await;
    let published = run.published().await? - published;
    run.promised(format!("the halted relay has published {published} events"), published == 0.0);
    Ok(())
}

async fn drop_the_slot(run: &DrillRun<'_>) -> Result<()> {
    let mut operator = PgConnection::connect(&run.system.own()?.databases.admin_url("shop")?).await?;
    let dropped = sqlx::raw_sql("select orders.outbox_log_drop()").execute(&mut operator).await;
    run.promised("the operator could drop the slot, because no relay had begun another", dropped.is_ok());
    operator.close().await?;
    run.phase("repair", "an operator has called outbox_log_drop()");
    run.until_promised("the relay goes on with a new slot", async || {
        let state =
            "select coalesce((select active and halted is null from orders.outbox_log_state()), false)::text";
        let mut operator = PgConnection::connect(&run.system.own()?.databases.admin_url("shop")?).await?;
        let active: String = sqlx::query_scalar(state).fetch_one(&mut operator).await?;
        operator.close().await?;
        Ok(active == "true")
    })
    .await;
    Ok(())
}
