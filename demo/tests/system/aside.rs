//! What one bad message leaves behind, and what an operator does about it.

use anyhow::{Context, ensure};
use demo::{
    lab::{PATIENCE, Stage},
    seeds::BACK_TO_SEEDS,
};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use testbed::eventually;
use uuid::Uuid;

use crate::delivery::publish;

/// A question to a service's operators' door. With a body it is a POST.
async fn ask(stage: &Stage, service: &str, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
    let url = format!("{}{path}", stage.system.admin_url(service)?);
    let request = match body {
        Some(body) => stage.client.post(url).json(&body),
        None => stage.client.get(url),
    };
    let answer = request.bearer_auth(stage.system.admin_token()).send().await?;
    let (status, body) = (answer.status(), answer.text().await?);
    ensure!(status.is_success(), "{service} answered {status}: {body}");
    Ok(serde_json::from_str(&body)?)
}

/// Waits for so many letters at a service, and returns them.
async fn letters(stage: &Stage, service: &str, count: usize) -> anyhow::Result<Vec<Value>> {
    eventually("the letters to lie in the table", PATIENCE, async || {
        let page = ask(stage, service, "/admin/dead-letters", None).await?;
        let items = page["items"].as_array().context("no items")?.clone();
        Ok((items.len() == count).then_some(items))
    })
    .await
}

#[tokio::test]
async fn a_poison_message_can_be_looked_at_tried_again_and_given_up() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::set(&vhost.url()).await?;
    publish(&stage, &vhost, "{\"this is\": not json", "poison").await?;
    stage.order().await?;
    for service in ["inventory", "billing"] {
        let url = format!("{}/admin/dead-letters", stage.system.admin_url(service)?);
        assert_eq!(stage.client.get(&url).send().await?.status(), 401);
        let guess = stage.client.get(&url).bearer_auth("sixteen-letters-and-more");
        assert_eq!(guess.send().await?.status(), 401);
        let public = format!("{}/admin/dead-letters", stage.system.url(service)?);
        let public = stage.client.get(public).bearer_auth(stage.system.admin_token());
        assert_eq!(public.send().await?.status(), 404);

        let letter = &letters(&stage, service, 1).await?[0];
        assert_eq!((&letter["reason"], &letter["messageId"]), (&json!("malformed"), &json!("poison")));
        let shown = ask(&stage, service, "/admin/dead-letters/1", None).await?;
        assert_eq!(shown["body"], "{\"this is\": not json");
        assert_eq!(shown["routingKey"], "order.created");
        let path = "/admin/dead-letters/replay";
        let again = ask(&stage, service, path, Some(json!({ "all": true }))).await?;
        assert_eq!(again["items"][0]["outcome"], "still-fails", "{again}");
        eventually("the letter to be counted", PATIENCE, async || {
            Ok((stage.counter(service, "inbox_dead_letters").await? == 1.0).then_some(()))
        })
        .await?;
    }
    let audit = stage.held().await?;
    assert_eq!((audit.set_aside(false), audit.set_aside(true)), (2, 0), "{:?}", audit.aside);

    for service in ["inventory", "billing"] {
        let body = json!({ "ids": [1], "note": "a test sent it" });
        let done = ask(&stage, service, "/admin/dead-letters/discard", Some(body)).await?;
        assert_eq!(done, json!({ "discarded": [1], "untouched": [] }));
        letters(&stage, service, 0).await?;
        assert!(stage.system.log(service)?.contains("dead letters were discarded"));
    }
    let audit = stage.held().await?;
    assert_eq!((audit.set_aside(false), audit.set_aside(true)), (0, 2), "{:?}", audit.aside);
    Ok(())
}

#[tokio::test]
async fn events_that_met_a_defect_are_set_aside_and_applied_once_after_it_is_mended() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::set(&vhost.url()).await?;
    let database = stage.database.as_ref().context("a database of our own")?;
    let mut admin = PgConnection::connect(&database.admin_url()).await?;
    sqlx::query("alter table billing.payments rename column traceparent to trace")
        .execute(&mut admin)
        .await?;
    for _ in 0..3 {
        stage.order().await?;
    }
    let set_aside = letters(&stage, "billing", 3).await?;
    assert_eq!(
        (&set_aside[0]["reason"], &set_aside[0]["eventType"]),
        (&json!("unexpected"), &json!("OrderCreated"))
    );
    let replay = async |body: Value| ask(&stage, "billing", "/admin/dead-letters/replay", Some(body)).await;
    assert_eq!(replay(json!({ "all": true })).await?["items"][2]["outcome"], "still-fails");

    sqlx::query("alter table billing.payments rename column trace to traceparent")
        .execute(&mut admin)
        .await?;
    eventually("the two others to have applied theirs", PATIENCE, async || {
        let audit = stage.audit().await?;
        Ok((audit.put_aside == 9 && audit.set_aside(false) == 3).then_some(()))
    })
    .await?;
    assert!(stage.audit().await?.findings.is_empty(), "set aside is not missing");
    let outcomes = |page: &Value| -> Vec<Value> {
        page["items"].as_array().into_iter().flatten().map(|item| item["outcome"].clone()).collect()
    };
    let ids: Vec<_> = set_aside.iter().map(|letter| letter["id"].clone()).collect();
    assert_eq!(outcomes(&replay(json!({ "all": true })).await?), ["applied"; 3]);
    assert_eq!(outcomes(&replay(json!({ "ids": ids })).await?), ["unchanged"; 3]);
    let audit = stage.held().await?;
    assert_eq!((audit.in_billing, audit.set_aside(false)), (3, 0));

    // And all of it published once more: copies are recognised, effects stay as they are.
    let events: Vec<_> = set_aside.iter().map(|letter| letter["eventId"].clone()).collect();
    let again = ask(&stage, "orders", "/admin/published/replay", Some(json!({ "ids": events }))).await?;
    assert_eq!(outcomes(&again), ["owed"; 3]);
    eventually("both services to have dropped the copies", PATIENCE, async || {
        let inventory = stage.counter("inventory", "inbox_duplicates_total").await?;
        let billing = stage.counter("billing", "inbox_duplicates_total").await?;
        // Billing has seen each of them in the second replay too.
        Ok((inventory >= 3.0 && billing >= 6.0).then_some(()))
    })
    .await?;
    stage.held().await?;
    Ok(())
}

#[tokio::test]
async fn after_a_reset_nothing_is_left_and_the_next_order_goes_its_way() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let stage = Stage::set(&vhost.url()).await?;
    let taken_back = stage.order().await?;
    stage.cancel(taken_back).await?;
    let with_a_key = stage.client.post(format!("{}/orders", stage.system.orders_url())).json(&json!({
        "customerId": taken_back, "lines": [{ "sku": "TEA-001", "quantity": 1 }],
    }));
    with_a_key.header("idempotency-key", "k").send().await?.error_for_status()?;
    stage.held().await?;

    let database = stage.database.as_ref().context("a database of our own")?;
    let mut admin = PgConnection::connect(&database.admin_url()).await?;
    sqlx::raw_sql(BACK_TO_SEEDS).execute(&mut admin).await?;
    let audit = async |acknowledged: &[Uuid]| {
        let query = sqlx::AssertSqlSafe(demo::audit::query(acknowledged, None));
        let json: String = sqlx::query_scalar(query).fetch_one(&stage.auditor).await?;
        demo::audit::Audit::parse(&json)
    };
    let empty = audit(&[]).await?;
    assert!(empty.at_rest() && empty.findings.is_empty(), "{empty:?}");
    assert_eq!((empty.orders, empty.events, empty.cancelled, empty.set_aside(true)), (0, 0, 0, 0));
    let next = stage.order().await?;
    eventually("the next order to be applied", PATIENCE, async || {
        let audit = audit(&[next]).await?;
        Ok((audit.at_rest() && audit.orders == 1 && audit.findings.is_empty()).then_some(()))
    })
    .await
}
