use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::support::{DEADLINE, Orders, order};

/// The status, whether the answer is marked as a repetition, and the body.
type Answer = (u16, bool, Value);

async fn place(orders: &Orders, key: &str, body: &Value) -> anyhow::Result<Answer> {
    let request = orders.client.post(format!("{}/orders", orders.url)).header("idempotency-key", key);
    let answer = orders.ask(request.json(body)).await?;
    let repeated = answer.headers.get("idempotent-replayed").is_some_and(|value| value == "true");
    if answer.status == 201 {
        assert!(answer.headers["location"].to_str()?.starts_with("/orders/"));
    }
    Ok((answer.status, repeated, answer.body))
}

/// Retries with the same key, as a client does, until the answer is final: a busy machine answers some with 503, 409 or 504.
/// After the last one the order may exist, so all final answers may be repetitions: also returns whether there was one.
async fn place_with_retries(orders: &Orders, key: &str, body: &Value) -> anyhow::Result<(Answer, bool)> {
    let mut timed_out = false;
    testbed::eventually("a final answer", DEADLINE, async || {
        let answer = place(orders, key, body).await?;
        timed_out |= answer.0 == 504;
        Ok((![409, 503, 504].contains(&answer.0)).then_some((answer, timed_out)))
    })
    .await
}

fn kind(problem: &Value) -> &str {
    problem["type"].as_str().unwrap().trim_start_matches("urn:shop:problem:")
}

#[tokio::test]
async fn repetition_under_the_same_key_gets_the_first_answer_and_no_second_order() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let (body, key) = (order(), format!("\"{}\"", Uuid::new_v4()));
    let (status, repeated, first) = place(&orders, &key, &body).await?;
    assert_eq!((status, repeated), (201, false));
    assert_eq!(place(&orders, &key, &body).await?, (201, true, first.clone()));
    assert_eq!(
        place(&orders, key.trim_matches('"'), &body).await?,
        (201, true, first.clone()),
        "without quotes"
    );

    // The first answer, even after the order was cancelled.
    let id = first["id"].as_str().unwrap();
    let cancelled = orders.client.post(format!("{}/orders/{id}/cancellation", orders.url)).send().await?;
    assert_eq!(cancelled.status(), 200);
    assert_eq!(place(&orders, &key, &body).await?, (201, true, first));
    assert_eq!(orders.rows().await?, (1, 1, 2));

    assert_eq!(orders.post(&body).await?.0, 201, "without a key it must be another order");
    assert!(!place(&orders, "another", &body).await?.1, "with another key it must be another order");
    assert_eq!(orders.rows().await?, (3, 3, 4));
    Ok(())
}

#[tokio::test]
async fn fifty_concurrent_requests_with_one_key_make_one_order_and_get_one_answer() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    for _ in 0..10 {
        let (body, key) = (order(), Uuid::new_v4().to_string());
        let requests = (0..50).map(|_| place_with_retries(&orders, &key, &body));
        let answers = futures_util::future::try_join_all(requests).await?;
        let first = answers.iter().filter(|((_, repeated, _), _)| !repeated).count();
        let one_timed_out = answers.iter().any(|(_, timed_out)| *timed_out);
        assert!(first == 1 || first == 0 && one_timed_out, "{first} first answers: {answers:?}");
        for ((status, _, answer), _) in &answers {
            assert_eq!((*status, answer), (201, &answers[0].0.2));
        }
    }
    assert_eq!(orders.rows().await?, (10, 10, 10));
    Ok(())
}

#[tokio::test]
async fn reused_key_with_another_order_is_refused_and_writes_nothing() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let body = order();
    let (_, _, first) = place(&orders, "k", &body).await?;
    let (sku, quantity) = (json!("TEA-001"), json!(2));
    let others = [
        json!({ "customerId": Uuid::new_v4(), "lines": body["lines"] }),
        json!({ "customerId": body["customerId"], "lines": [{ "sku": sku, "quantity": 3 }] }),
        json!({ "customerId": body["customerId"], "lines": [{ "sku": "TEA-002", "quantity": quantity }] }),
        json!({ "customerId": body["customerId"], "lines": [
            { "sku": sku, "quantity": quantity }, { "sku": "MUG-001", "quantity": 1 },
        ] }),
    ];
    for other in others {
        let (status, _, problem) = place(&orders, "k", &other).await?;
        assert_eq!((status, kind(&problem)), (422, "idempotency-key-reused"), "{other}");
    }
    assert_eq!(orders.rows().await?, (1, 1, 1));
    assert_eq!(place(&orders, "k", &body).await?, (201, true, first));
    Ok(())
}

#[tokio::test]
async fn refused_order_does_not_use_up_its_key() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let invalid = json!({ "customerId": Uuid::new_v4(), "lines": [{ "sku": "COFFEE", "quantity": 2 }] });
    assert_eq!(place(&orders, "k", &invalid).await?.0, 422);
    let (status, repeated, _) = place(&orders, "k", &order()).await?;
    assert_eq!((status, repeated), (201, false));
    Ok(())
}

#[tokio::test]
async fn invalid_key_is_refused_and_writes_nothing() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let bad: [&[u8]; 7] =
        [b"", b"\"\"", b"\"open", &[b'x'; 256], "\"k\u{e4}se\"".as_bytes(), b"a b", b"\xff\xfe"];
    for key in bad {
        let request = orders.client.post(format!("{}/orders", orders.url)).header("idempotency-key", key);
        let response = request.json(&order()).send().await?;
        assert_eq!(response.status(), 400, "{key:?}");
        assert_eq!(kind(&response.json().await?), "bad-idempotency-key", "{key:?}");
    }
    let twice = orders.client.post(format!("{}/orders", orders.url)).json(&order());
    let twice = twice.header("idempotency-key", "a").header("idempotency-key", "a").send().await?;
    assert_eq!(twice.status(), 400);
    assert_eq!(orders.rows().await?, (0, 0, 0));
    Ok(())
}

#[tokio::test]
async fn key_of_an_unfinished_request_gets_409_and_is_free_after_its_rollback() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    // To the database, this is an instance that lost its connection in the middle of its statement.
    let mut other = PgConnection::connect(&orders.database.url("orders")).await?;
    let mut unfinished = other.begin().await?;
    sqlx::query(
        "with o as (insert into orders (id, customer_id, status, total_amount, currency)
                    values (gen_random_uuid(), gen_random_uuid(), 'pending', 1, 'EUR') returning id)
         insert into idempotency_keys (key, order_id) select 'k', id from o",
    )
    .execute(&mut *unfinished)
    .await?;
    let body = order();
    let (status, _, problem) = place(&orders, "k", &body).await?;
    assert_eq!((status, kind(&problem)), (409, "idempotency-key-in-use"));
    unfinished.rollback().await?;
    let (status, repeated, _) = place(&orders, "k", &body).await?;
    assert_eq!((status, repeated), (201, false));
    assert_eq!(orders.rows().await?, (1, 1, 1));
    Ok(())
}

#[tokio::test]
async fn key_is_erased_after_its_retention_and_not_before() -> anyhow::Result<()> {
    let orders = Orders::start_with(&[("ORDERS_KEEP_IDEMPOTENCY_KEYS", "2h")]).await?;
    let body = order();
    for key in ["young", "old"] {
        place(&orders, key, &body).await?;
    }
    let mut database = PgConnection::connect(&orders.database.url("orders")).await?;
    // Far from the limit: the restart takes some seconds, in which the young one gets older.
    sqlx::query(
        "update idempotency_keys set created_at = clock_timestamp() - case key when 'old' then interval '121 min'
                                                                            else interval '100 min' end",
    )
    .execute(&mut database)
    .await?;
    // Retention runs at the start and once a minute.
    orders.service.restart().await?;
    testbed::eventually("the old key to be erased", DEADLINE, async || {
        let keys: Vec<String> =
            sqlx::query_scalar("select key from orders.idempotency_keys").fetch_all(&orders.auditor).await?;
        Ok((keys == ["young"]).then_some(()))
    })
    .await?;
    assert!(place(&orders, "young", &body).await?.1);
    assert!(!place(&orders, "old", &body).await?.1);
    Ok(())
}
