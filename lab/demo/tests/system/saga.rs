//! Orders from their acceptance to their end, and the compensation of cancelled ones.

use anyhow::Context as _;
use demo::RunningSystem;
use demo::lab::{CONDITION_DEADLINE, Setup};
use demo::reconciliation::Reconciliation;
use serde_json::{Value, json};
use testbed::eventually;
use uuid::Uuid;

/// A customer that the payment provider's stand-in always declines.
fn declined_customer() -> anyhow::Result<Uuid> {
    Ok(format!("dec11ed0{}", &Uuid::new_v4().to_string()[8..]).parse()?)
}

/// The event types of an order's history.
fn history(order: &Value) -> Vec<&str> {
    order["history"].as_array().into_iter().flatten().filter_map(|event| event["type"].as_str()).collect()
}

#[tokio::test]
async fn each_order_ends_and_its_history_shows_how() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default()).await?;
    let good = system.order().await?;
    let too_much = json!([{ "sku": "POT-003", "quantity": 500 }]);
    let scarce = system.order_of(Uuid::new_v4(), too_much).await?;
    let declined =
        system.order_of(declined_customer()?, json!([{ "sku": "TEA-001", "quantity": 1 }])).await?;
    let result = system.held().await?;
    assert_eq!((result.confirmed, result.cancelled), (1, 2));
    assert_eq!((result.charged - result.refunded, result.reserved), (2 * 625 + 1450, 3));

    let order = system.read_order(good).await?;
    let types = history(&order);
    assert_eq!(
        (&order["status"], types.first(), types.last()),
        (&json!("confirmed"), Some(&"OrderCreated"), Some(&"OrderConfirmed"))
    );
    assert!(types.contains(&"StockReserved") && types.contains(&"PaymentCaptured"), "{types:?}");
    for event in order["history"].as_array().context("no history")? {
        let ours = event["source"] == "/orders";
        assert_eq!(
            (event["publishedAt"].is_string(), event["appliedAt"].is_string()),
            (ours, !ours),
            "{event}"
        );
    }
    for (id, cause, answers) in [
        (scarce, "outOfStock", ["StockRejected", "PaymentCaptured", "PaymentRefunded"]),
        (declined, "paymentDeclined", ["PaymentDeclined", "StockReserved", "StockReleased"]),
    ] {
        let order = system.read_order(id).await?;
        assert_eq!((&order["status"], &order["cause"]), (&json!("cancelled"), &json!(cause)));
        let types = history(&order);
        // A payment that billing had not requested when it applied the cancellation is never made.
        let void = !types.contains(&"PaymentCaptured") && cause == "outOfStock";
        assert!(void || answers.iter().all(|answer| types.contains(answer)), "{types:?}");
    }
    Ok(())
}

#[tokio::test]
async fn cancelling_a_confirmed_order_releases_its_stock_and_refunds_its_charge() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default()).await?;
    let id = system.order().await?;
    assert_eq!(system.held().await?.confirmed, 1);
    system.cancel(id).await?;
    let result = system.held().await?;
    assert_eq!((result.confirmed, result.cancelled, result.reserved), (0, 1, 0));
    assert_eq!((result.charged, result.refunded), (2700, 2700));
    let order = system.read_order(id).await?;
    let types = history(&order);
    assert!(types.contains(&"StockReleased") && types.contains(&"PaymentRefunded"), "{types:?}");
    assert_eq!(order["cause"], "customer");
    Ok(())
}

#[tokio::test]
async fn unanswered_order_is_listed_then_cancelled_and_late_answers_are_compensated() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default().with("ORDERS_ANSWER_WITHIN", "2m")).await?;
    system.processes()?.kill("inventory").await?;
    let id = system.order().await?;
    let open = async || system.admin("orders", "/admin/open-orders", None).await;
    eventually(
        "the list and the gauge to show that the order waits for inventory only",
        CONDITION_DEADLINE,
        async || {
            let listed = open().await?;
            let gauge = system.metric("orders", "orders_open").await?;
            Ok((listed[0]["id"] == id.to_string()
                && listed[0]["waitingFor"] == json!(["inventory"])
                && gauge == 1.0)
                .then_some(()))
        },
    )
    .await?;
    system.execute_as("orders", AN_HOUR_AGO).await?;
    system.until_status(id, "cancelled").await?;
    assert_eq!(system.read_order(id).await?["cause"], "timedOut");
    assert_eq!(open().await?, json!([]));
    // Inventory finds the creation and the cancellation in its queue. Billing has refunded the charge before.
    system.processes()?.start_again("inventory").await?;
    let result = system.held().await?;
    assert_eq!((result.confirmed, result.cancelled, result.reserved), (0, 1, 0));
    assert_eq!((result.charged, result.refunded), (2700, 2700));
    Ok(())
}

/// What was never published was never asked. A younger order that no service answers is cancelled meanwhile.
#[tokio::test]
async fn order_whose_event_was_never_published_is_not_cancelled() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default().with("ORDERS_ANSWER_WITHIN", "4s")).await?;
    let mut admin = system.connect("admin").await?;
    // As after a refusal by the broker: the event waits for its next attempt.
    sqlx::raw_sql(
        "create function public.back_off() returns trigger language plpgsql as
         $$ begin new.attempts = 1; new.available_at = clock_timestamp() + interval '5 minutes'; return new; end $$;
         create trigger back_off before insert on orders.outbox for each row execute function public.back_off()",
    )
    .execute(&mut admin)
    .await?;
    let unasked = system.order().await?;
    sqlx::query("drop trigger back_off on orders.outbox").execute(&mut admin).await?;
    system.processes()?.kill("inventory").await?;
    let unanswered = system.order().await?;
    system.until_status(unanswered, "cancelled").await?;
    assert_eq!(system.read_order(unasked).await?["status"], "pending");
    system.processes()?.start_again("inventory").await?;
    sqlx::query("update orders.outbox set available_at = clock_timestamp()").execute(&mut admin).await?;
    system.held().await?;
    Ok(())
}

/// The oldest unanswered order is locked by another session, so it cannot be cancelled now.
#[tokio::test]
async fn unanswered_order_that_is_locked_does_not_keep_younger_ones_open() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default().with("ORDERS_ANSWER_WITHIN", "2m")).await?;
    system.processes()?.pause("inventory")?;
    let (locked, free) = (system.order().await?, system.order().await?);
    let mut admin = system.connect("orders").await?;
    sqlx::raw_sql("set idle_in_transaction_session_timeout = 0").execute(&mut admin).await?;
    // The consumer has applied the answers: it would wait for the lock.
    eventually("billing's answers to be applied", CONDITION_DEADLINE, async || {
        let paid: i64 = sqlx::query_scalar("select count(*) from orders where status = 'paid'")
            .fetch_one(&mut admin)
            .await?;
        Ok((paid == 2).then_some(()))
    })
    .await?;
    // Both are late only when the time of publishing has changed too.
    system.until_published().await?;
    sqlx::query("update orders set placed_at = placed_at - interval '1 hour'").execute(&mut admin).await?;
    sqlx::raw_sql("begin").execute(&mut admin).await?;
    sqlx::query("select from orders where id = $1 for update").bind(locked).execute(&mut admin).await?;
    sqlx::query("update outbox set published_at = published_at - interval '1 hour'")
        .execute(&mut system.connect("orders").await?)
        .await?;
    system.until_status(free, "cancelled").await?;
    assert_ne!(system.read_order(locked).await?["status"], "cancelled");
    sqlx::raw_sql("commit").execute(&mut admin).await?;
    system.until_status(locked, "cancelled").await?;
    system.processes()?.resume("inventory")?;
    assert_eq!(system.held().await?.cancelled, 2);
    Ok(())
}

/// The order service is down for longer than `ORDERS_ANSWER_WITHIN`. The answers are in its queue when it starts again.
#[tokio::test]
async fn order_that_was_answered_while_orders_was_down_is_not_cancelled() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default().with("ORDERS_ANSWER_WITHIN", "2m")).await?;
    // Inventory answers only after the order service was killed. The order is older than the limit when that is up
    // again.
    system.processes()?.pause("inventory")?;
    system.order().await?;
    system.until_records("the payment", |found| found.charges == 1 && found.pending == 0).await?;
    system.processes()?.kill("orders").await?;
    system.processes()?.resume("inventory")?;
    system.until_records("inventory's answer", |found| found.in_inventory == 1 && found.pending == 0).await?;
    system.execute_as("orders", AN_HOUR_AGO).await?;
    system.processes()?.start_again("orders").await?;
    system.processes()?.wait_ready(CONDITION_DEADLINE).await?;
    assert_eq!(system.held().await?.confirmed, 1);
    Ok(())
}

/// The answer came, and the order service could not apply it: an operator decides what becomes of the order.
#[tokio::test]
async fn order_whose_answer_is_a_dead_letter_is_not_cancelled_until_the_letter_is_resolved()
-> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default().with("ORDERS_ANSWER_WITHIN", "2m")).await?;
    let refuse = "create function refuse() returns trigger language plpgsql as
                  $$ begin raise exception 'a defect' using errcode = 'check_violation'; end $$;
                  create trigger refuse before insert on answers for each row execute function refuse()";
    system.execute_as("orders", refuse).await?;
    let answered = system.order().await?;
    system.until_metric("orders", "inbox_dead_letters", 2.0).await?;
    system.execute_as("orders", "drop trigger refuse on answers").await?;
    system.processes()?.pause("inventory")?;
    let unanswered = system.order().await?;
    system.until_published().await?;
    system.execute_as("orders", AN_HOUR_AGO).await?;
    system.until_status(unanswered, "cancelled").await?;
    assert_eq!(system.read_order(answered).await?["status"], "pending", "it is the older one");
    system.processes()?.resume("inventory")?;
    let replay = json!({ "all": true });
    let replayed = system.admin("orders", "/admin/dead-letters/replay", Some(&replay)).await?;
    assert_eq!(replayed["items"][0]["outcome"], "applied", "{replayed}");
    let result = system.held().await?;
    assert_eq!((result.confirmed, result.cancelled), (1, 1));
    Ok(())
}

/// The database's clock was a month ahead when an order was placed and published, and was set back. How long the order has
/// waited is counted from when that is seen.
#[tokio::test]
async fn order_that_was_dated_by_a_clock_that_was_ahead_times_out() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default().with("ORDERS_ANSWER_WITHIN", "4s")).await?;
    system.processes()?.pause("inventory")?;
    let order = system.order().await?;
    system.until_published().await?;
    let ahead = "update orders set placed_at = placed_at + interval '1 month';
                 update outbox set published_at = published_at + interval '1 month'";
    system.execute_as("orders", ahead).await?;
    system.until_status(order, "cancelled").await?;
    system.processes()?.resume("inventory")?;
    system.held().await?;
    Ok(())
}

/// A refund is not as old as its charge.
#[tokio::test]
async fn refund_waits_since_the_cancellation_and_not_since_the_charge() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default()).await?;
    let order = system.order().await?;
    system.held().await?;
    system.execute_as("billing", "update payments set asked_at = asked_at - interval '1 day'").await?;
    system.processes()?.kill("provider").await?;
    system.cancel(order).await?;
    system.until_metric("billing", "payments_pending", 1.0).await?;
    let age = system.metric("billing", "payments_oldest_pending_seconds").await?;
    assert!((0.0..3600.0).contains(&age), "{age}");
    system.processes()?.start_again("provider").await?;
    system.held().await?;
    Ok(())
}

/// A proxy that the environment names is for other programs of the machine.
#[tokio::test]
async fn payments_do_not_go_through_a_proxy_of_the_environment() -> anyhow::Result<()> {
    let absent = "http://127.0.0.1:9";
    let setup = Setup::default().with("HTTP_PROXY", absent).with("http_proxy", absent);
    let system = RunningSystem::shared(setup).await?;
    system.order().await?;
    assert_eq!(system.held().await?.confirmed, 1);
    Ok(())
}

/// As if the orders had been placed, and their events published, an hour ago.
const AN_HOUR_AGO: &str = "update orders set placed_at = placed_at - interval '1 hour';
                           update outbox set published_at = published_at - interval '1 hour'";

/// So many answers wait that applying them takes longer than the order service is patient with its consumer. Before the
/// queue was looked at, each of these orders was cancelled as unanswered, and its customer refunded.
#[tokio::test]
async fn orders_whose_answers_wait_in_the_queue_are_not_cancelled_however_long_that_takes()
-> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default().with("ORDERS_ANSWER_WITHIN", "2m")).await?;
    // Nothing is applied while this transaction is open: no other session can write into the table.
    let mut blocker = system.connect("orders").await?;
    sqlx::raw_sql("set idle_in_transaction_session_timeout = 0").execute(&mut blocker).await?;
    sqlx::raw_sql("begin; lock table processed_events in share mode").execute(&mut blocker).await?;
    for _ in 0..30 {
        system.order().await?;
    }
    let answered = |found: &Reconciliation| (found.in_inventory, found.charges, found.pending) == (30, 30, 0);
    system.until_records("the answers of inventory and billing", answered).await?;
    system.processes()?.kill("orders").await?;
    sqlx::raw_sql(AN_HOUR_AGO).execute(&mut blocker).await?;
    system.processes()?.start_again("orders").await?;
    system.processes()?.wait_ready(CONDITION_DEADLINE).await?;
    // Longer than the ten checks, of a second each, after which an empty queue lets unanswered orders be cancelled.
    eventually("the consumer to have tried its first answer for 13 s", CONDITION_DEADLINE * 2, async || {
        Ok((system.metric("orders", "inbox_applying_seconds").await? >= 13.0).then_some(()))
    })
    .await?;
    sqlx::raw_sql("commit").execute(&mut blocker).await?;
    let result = system.held().await?;
    assert_eq!((result.confirmed, result.cancelled), (30, 0));
    Ok(())
}

/// The consumer had caught up and then cannot go on, while the database answers everything else. It does not look at its queue
/// meanwhile, so what it found there before says nothing of the answers that have arrived since.
#[tokio::test]
async fn orders_whose_answers_wait_behind_a_stalled_consumer_are_not_cancelled() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default().with("ORDERS_ANSWER_WITHIN", "2m")).await?;
    let mut admin = system.connect("orders").await?;
    sqlx::raw_sql("set idle_in_transaction_session_timeout = 0").execute(&mut admin).await?;
    // An unanswered order is cancelled: the consumer has caught up.
    system.processes()?.pause("inventory")?;
    let unanswered = system.order().await?;
    system.until_published().await?;
    sqlx::raw_sql(AN_HOUR_AGO).execute(&mut admin).await?;
    system.until_status(unanswered, "cancelled").await?;
    system.processes()?.resume("inventory")?;
    system.held().await?;
    // Nothing is applied while this transaction is open: no other session can write into the table.
    sqlx::raw_sql("begin; lock table processed_events in share mode").execute(&mut admin).await?;
    for _ in 0..5 {
        system.order().await?;
    }
    let applying = "inbox_applying_seconds";
    system.until_metric("orders", applying, 13.0).await?;
    system
        .until_records("inventory's answers", |found| found.in_inventory == 6 && found.pending == 0)
        .await?;
    let mut writer = system.connect("orders").await?;
    sqlx::raw_sql(AN_HOUR_AGO).execute(&mut writer).await?;
    // Five checks of a second each. Before the age of the last look counted, one was enough.
    system.until_metric("orders", applying, system.metric("orders", applying).await? + 5.0).await?;
    sqlx::raw_sql("commit").execute(&mut admin).await?;
    let result = system.held().await?;
    assert_eq!((result.confirmed, result.cancelled), (5, 1));
    Ok(())
}
