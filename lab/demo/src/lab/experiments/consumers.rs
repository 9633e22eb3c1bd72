//! The consumer: acknowledge after the commit, record with the effect, set aside what can never be applied.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use testbed::eventually;
use uuid::Uuid;

use super::{
    super::{BrokerApi, CONDITION_DEADLINE, CrashFile, Setup},
    faults::{applied, stage},
    judge::{Breach, judge},
};
use crate::reconciliation::Kind;

pub(super) async fn published_again(setup: Setup) -> Result<Option<Breach>> {
    let (stage, _vhost) = stage(setup).await?;
    for _ in 0..5 {
        stage.order().await?;
    }
    stage.held().await?;
    // The complete system keeps its records.
    let _ = eventually("the records to be erased", Duration::from_secs(5), async || {
        let records = "select count(*) from inventory.processed_events";
        let records: i64 = sqlx::query_scalar(records).fetch_one(&stage.auditor).await?;
        Ok((records == 0).then_some(()))
    })
    .await;
    let mut orders = PgConnection::connect(&stage.database_url("orders")?).await?;
    sqlx::query("update outbox set published_at = null").execute(&mut orders).await?;
    sqlx::query("select outbox_wake()").execute(&mut orders).await?;
    eventually("all events to be published again", CONDITION_DEADLINE, async || {
        Ok((stage.reconcile().await?.pending == 0).then_some(()))
    })
    .await?;
    // The sixth order comes after the copies: when it is applied, so are they.
    stage.order().await?;
    applied(&stage, 6, CONDITION_DEADLINE).await?;
    judge(&stage).await
}

/// A well-formed answer about an order that does not exist: the order service can never apply it.
pub(super) async fn poison(setup: Setup) -> Result<Option<Breach>> {
    let (stage, vhost) = stage(setup).await?;
    stage.order().await?;
    stage.held().await?;
    let (id, reservation) = (Uuid::now_v7(), Uuid::now_v7());
    let event = json!({
        "specversion": "1.0", "id": id, "source": "/inventory", "type": "StockReserved", "subject": reservation,
        "time": "2026-01-01T00:00:00Z", "datacontenttype": "application/json",
        "dataschema": "urn:shop:StockReserved:1", "sequence": 1,
        "data": { "reservationId": reservation, "orderId": Uuid::now_v7() },
    });
    let api = BrokerApi::new(vhost.api_url(), vhost.name())?;
    api.publish("orders.events", &event.to_string(), &id.to_string()).await?;
    for _ in 0..5 {
        stage.order().await?;
    }
    let aside =
        eventually("the message to be set aside with its reason", Duration::from_secs(12), async || {
            let counted = stage.counter("orders", "inbox_dead_lettered_total{reason=\"permanent\"}").await?;
            Ok((counted >= 1.0).then_some(()))
        });
    if aside.await.is_err() {
        return Ok(Breach::new("I11", "a bad message was not set aside with its reason within 12 s"));
    }
    judge(&stage).await
}

/// Each time, the process dies after it has received a group and before it has begun a transaction.
pub(super) async fn crash_loop(setup: Setup) -> Result<Option<Breach>> {
    let once = CrashFile::new();
    once.disarm()?;
    let (stage, _vhost) = stage(setup.crashing_at("group-received:kill", once.path())).await?;
    stage.order().await?;
    // With the answers: one that inventory had not published yet would stay pending while it is killed.
    stage.held().await?;
    stage.system.kill("inventory").await?;
    for _ in 0..40 {
        stage.order().await?;
    }
    eventually(
        "the other services to be done, so that only inventory crashes",
        CONDITION_DEADLINE,
        async || {
            let audit = stage.reconcile().await?;
            let done = audit.pending + audit.payments_pending + audit.count(Kind::Missing, "billing") == 0;
            Ok((audit.in_billing >= 41 && done).then_some(()))
        },
    )
    .await?;
    // Twice in a group, five times alone. The eighth time it is set aside, and the next one crashes.
    for _ in 0..9 {
        once.arm()?;
        stage.system.start_again("inventory").await?;
        stage.ended(once.process().await?).await?;
    }
    stage.revive().await?;
    let found = judge(&stage).await?;
    // All the others were held together with it at each crash.
    let aside = stage.reconcile().await?.waiting_for_operator();
    if found.is_none() && aside != 1 {
        return Ok(Breach::new("I11", format!("{aside} messages are set aside")));
    }
    Ok(found)
}
