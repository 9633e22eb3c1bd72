//! Messages that a service has set aside, and what an operator does with them.

use anyhow::Context;
use demo::lab::{CONDITION_DEADLINE, Setup};
use demo::{RunningSystem, seeds::RESET_TO_SEEDS};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use testbed::eventually;

use crate::delivery::publish;

/// Makes every insert into a table fail, for a reason that no service knows.
fn defect(table: &str) -> String {
    format!(
        "create function public.fail() returns trigger language plpgsql as
         $$ begin raise exception 'a defect'; end $$;
         create trigger defect before insert on {table} execute function public.fail()"
    )
}

/// Waits until a service has so many dead letters, and returns them.
async fn dead_letters(system: &RunningSystem, service: &str, count: usize) -> anyhow::Result<Vec<Value>> {
    eventually("the dead letters to be in the table", CONDITION_DEADLINE, async || {
        let page = system.admin(service, "/admin/dead-letters", None).await?;
        let items = page["items"].as_array().context("no items")?.clone();
        Ok((items.len() == count).then_some(items))
    })
    .await
}

#[tokio::test]
async fn poison_message_can_be_shown_replayed_and_discarded() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default()).await?;
    publish(&system, "{\"this is\": not json", "poison").await?;
    system.order().await?;
    let client = reqwest::Client::new();
    for service in ["inventory", "billing"] {
        let without_token = format!("{}/admin/dead-letters", system.processes()?.admin_url(service)?);
        assert_eq!(client.get(without_token).send().await?.status(), 401);
        let public = format!("{}/admin/dead-letters", system.url(service)?);
        let public = client.get(public).bearer_auth(system.processes()?.admin_token());
        assert_eq!(public.send().await?.status(), 404);

        let letter = &dead_letters(&system, service, 1).await?[0];
        assert_eq!((&letter["reason"], &letter["messageId"]), (&json!("malformed"), &json!("poison")));
        let shown = system.admin(service, "/admin/dead-letters/1", None).await?;
        assert_eq!(shown["body"], "{\"this is\": not json");
        assert_eq!(shown["routingKey"], "order.created");
        let path = "/admin/dead-letters/replay";
        let again = system.admin(service, path, Some(&json!({ "all": true }))).await?;
        assert_eq!(again["items"][0]["outcome"], "still-fails", "{again}");
        system.until_metric(service, "inbox_dead_letters", 1.0).await?;
        assert_eq!(system.metric(service, "inbox_dead_letters").await?, 1.0, "{service}");
    }
    let result = system.held().await?;
    assert_eq!((result.waiting_for_operator(), result.discarded()), (2, 0), "{:?}", result.set_aside);

    for service in ["inventory", "billing"] {
        let body = json!({ "ids": [1], "note": "a test sent it" });
        let done = system.admin(service, "/admin/dead-letters/discard", Some(&body)).await?;
        assert_eq!(done, json!({ "discarded": [1], "untouched": [] }));
        dead_letters(&system, service, 0).await?;
        eventually("the log to show it", CONDITION_DEADLINE, async || {
            Ok(system.processes()?.log(service)?.contains("dead letters discarded").then_some(()))
        })
        .await?;
    }
    let result = system.held().await?;
    assert_eq!((result.waiting_for_operator(), result.discarded()), (0, 2), "{:?}", result.set_aside);
    Ok(())
}

/// An order is cancelled while its creation is a dead letter at inventory. Applied at once, the cancellation would find
/// nothing to release.
#[tokio::test]
async fn cancellation_waits_behind_a_creation_that_is_a_dead_letter_and_follows_it_in_a_replay()
-> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default()).await?;
    let mut admin = system.connect("admin").await?;
    sqlx::raw_sql(AssertSqlSafe(defect("inventory.reservations"))).execute(&mut admin).await?;
    let order = system.order().await?;
    dead_letters(&system, "inventory", 1).await?;
    system.cancel(order).await?;
    let letters = dead_letters(&system, "inventory", 2).await?;
    let (creation, cancelled) = (&letters[0], &letters[1]);
    assert_eq!((&creation["eventType"], &creation["waitingBehind"]), (&json!("OrderCreated"), &json!(1)));
    assert_eq!((&cancelled["eventType"], &cancelled["reason"]), (&json!("OrderCancelled"), &json!("behind")));
    assert_eq!(creation["aggregateId"], cancelled["aggregateId"]);

    // Other orders go on, and what waits cannot be replayed past what it waits for.
    sqlx::query("drop trigger defect on inventory.reservations").execute(&mut admin).await?;
    system.order().await?;
    let replay =
        async |body: Value| system.admin("inventory", "/admin/dead-letters/replay", Some(&body)).await;
    let outcomes = |page: &Value| -> Vec<Value> {
        page["items"].as_array().into_iter().flatten().map(|item| item["outcome"].clone()).collect()
    };
    let (first, second) = (json!([creation["id"]]), json!([cancelled["id"]]));
    let alone = replay(json!({ "ids": second })).await?;
    assert_eq!(
        (&alone["items"][0]["outcome"], &alone["items"][0]["reason"]),
        (&json!("still-fails"), &json!("behind"))
    );
    let dry = replay(json!({ "ids": first, "dryRun": true })).await?;
    assert_eq!(outcomes(&dry), ["would-be-applied"; 2], "{dry}");
    dead_letters(&system, "inventory", 2).await?;

    let replayed = replay(json!({ "ids": first })).await?;
    assert_eq!(outcomes(&replayed), ["applied"; 2], "{replayed}");
    system.held().await?;
    let state = "select state from inventory.reservations where order_id = $1";
    let state: String = sqlx::query_scalar(state).bind(order).fetch_one(&mut admin).await?;
    let came_first = "select came_first from inventory.cancelled_orders where order_id = $1";
    let came_first: bool = sqlx::query_scalar(came_first).bind(order).fetch_one(&mut admin).await?;
    assert_eq!((state.as_str(), came_first), ("released", false));
    Ok(())
}

#[tokio::test]
async fn reset_leaves_the_seed_data_only_and_the_next_order_is_applied() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default()).await?;
    let cancelled = system.order().await?;
    system.cancel(cancelled).await?;
    system.held().await?;

    for login in ["orders", "inventory", "billing", "provider"] {
        sqlx::raw_sql(RESET_TO_SEEDS).execute(&mut system.connect(login).await?).await?;
    }
    let empty = system.reconcile(&[]).await?;
    assert!(empty.is_quiescent() && empty.findings.is_empty(), "{empty:?}");
    assert_eq!((empty.orders, empty.events, empty.cancelled, empty.discarded()), (0, 0, 0, 0));
    let next = system.order().await?;
    eventually("the next order to be applied", CONDITION_DEADLINE, async || {
        let result = system.reconcile(&[next]).await?;
        Ok((result.is_quiescent() && result.orders == 1 && result.findings.is_empty()).then_some(()))
    })
    .await
}
