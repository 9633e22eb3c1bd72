use anyhow::Context as _;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{DEADLINE, Orders};

async fn cancel(orders: &Orders, id: &str) -> anyhow::Result<(u16, Value)> {
    let answer = orders.ask(orders.client.post(format!("{}/orders/{id}/cancellation", orders.url))).await?;
    Ok((answer.status, answer.body))
}

#[tokio::test]
async fn cancelled_order_has_its_status_and_two_events_in_order() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let placed = orders.place().await?;
    let id = placed["id"].as_str().unwrap();
    let (status, cancelled) = cancel(&orders, id).await?;
    assert_eq!((status, &cancelled["status"]), (200, &json!("cancelled")));

    let (_, found) = orders.get(&format!("/orders/{id}")).await?;
    assert_eq!(found["status"], "cancelled");
    let history: Vec<_> = found["history"].as_array().unwrap().iter().map(|event| &event["type"]).collect();
    assert_eq!(history, [&json!("OrderCreated"), &json!("OrderCancelled")]);
    assert_eq!(found["history"][1]["sequence"], 2);
    Ok(())
}

#[tokio::test]
async fn event_keeps_the_body_of_its_moment_when_its_order_changes() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let placed = orders.place().await?;
    let body = async || {
        let sql = "select payload::text from orders.outbox where event_type = 'OrderCreated' and published_at is null";
        sqlx::query_scalar::<_, String>(sql).fetch_one(&orders.auditor).await
    };
    let before = body().await?;
    let data = &serde_json::from_str::<Value>(&before)?["data"];
    assert_eq!((&data["orderId"], &data["total"]), (&placed["id"], &placed["total"]));
    assert_eq!(cancel(&orders, placed["id"].as_str().unwrap()).await?.0, 200);
    assert_eq!(body().await?, before);
    Ok(())
}

#[tokio::test]
async fn twenty_concurrent_cancellations_cancel_once_and_get_the_same_answer() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let placed = orders.place().await?;
    let id = placed["id"].as_str().unwrap().to_owned();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let request = orders.client.post(format!("{}/orders/{id}/cancellation", orders.url));
        // A busy machine answers some with 503 or 409: one waits for the other's lock.
        clients.spawn(testbed::eventually_send("an answer", DEADLINE, move || {
            let request = request.try_clone();
            async move {
                let answer = request.context("the request has no body")?.send().await?;
                Ok(Some(answer.error_for_status()?.json::<Value>().await?))
            }
        }));
    }
    let mut answers = vec![];
    while let Some(answer) = clients.join_next().await {
        answers.push(answer??);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(cancel(&orders, &id).await?.1, answers[0], "a later cancellation gets another answer");
    let (placed, _, events) = orders.rows().await?;
    assert_eq!((placed, events), (1, 2));
    Ok(())
}

#[tokio::test]
async fn cancellation_of_an_unknown_order_gets_404() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    for id in [Uuid::new_v4().to_string(), Uuid::nil().to_string(), "1".into(), "%00".into()] {
        let (status, problem) = cancel(&orders, &id).await?;
        assert_eq!((status, &problem["type"]), (404, &json!("urn:shop:problem:no-such-order")), "{id}");
    }
    assert_eq!(orders.rows().await?, (0, 0, 0));
    Ok(())
}
