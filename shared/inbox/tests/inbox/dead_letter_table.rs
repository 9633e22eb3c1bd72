use inbox::DeadLetterTable;
use messaging::{DeadLetter, DeadLetterStore};
use serde_json::json;
use uuid::Uuid;

use crate::support::{BILLING, TestInbox};

fn letter(body: &[u8]) -> DeadLetter {
    DeadLetter {
        queue: "billing.events",
        arrival: new_arrival(),
        message_id: Some("poison".into()),
        reason: "malformed".into(),
        detail: "malformed: not JSON".into(),
        headers: json!({ "reason": "malformed" }),
        routing_key: "order.created".into(),
        body: body.to_vec(),
    }
}

fn new_arrival() -> Option<String> {
    Some(Uuid::now_v7().to_string())
}

#[tokio::test]
async fn dead_letter_delivered_again_is_one_row_even_after_it_is_resolved() -> anyhow::Result<()> {
    let inbox = TestInbox::new().await?;
    let table = DeadLetterTable::new(inbox.pool.clone(), BILLING);
    let rows = async || {
        sqlx::query_scalar::<_, i64>("select count(*) from dead_letters").fetch_one(&inbox.pool).await
    };
    let first = letter(b"\xff\x00 not json");
    for _ in 0..3 {
        table.save(&first).await?;
    }
    // A consumer that crashes between setting a message aside and acknowledging it sets it aside twice.
    table.save(&DeadLetter { arrival: new_arrival(), ..first.clone() }).await?;
    assert_eq!(rows().await?, 1);

    let discard =
        "update dead_letters set resolved_at = clock_timestamp(), resolution = 'discarded', note = 'a test'";
    sqlx::query(discard).execute(&inbox.pool).await?;
    table.save(&first).await?;
    assert_eq!(rows().await?, 1, "the resolved dead letter was delivered again");
    // The same message, set aside again after that, is a new row for the operator.
    table.save(&DeadLetter { arrival: new_arrival(), ..first.clone() }).await?;
    assert_eq!(rows().await?, 2);
    // Other bytes under the same id are another message.
    table.save(&letter(b"other")).await?;
    assert_eq!(rows().await?, 3);
    Ok(())
}

#[tokio::test]
async fn message_of_sixteen_mebibytes_is_saved_with_its_bytes() -> anyhow::Result<()> {
    let inbox = TestInbox::new().await?;
    let body = vec![0xff; 16 * 1024 * 1024];
    DeadLetterTable::new(inbox.pool.clone(), BILLING).save(&letter(&body)).await?;
    let saved: Vec<u8> = sqlx::query_scalar("select body from dead_letters").fetch_one(&inbox.pool).await?;
    assert!(saved == body, "{} bytes were saved", saved.len());
    Ok(())
}

#[tokio::test]
async fn attempts_at_an_event_are_counted_until_one_ends() -> anyhow::Result<()> {
    let inbox = TestInbox::new().await?;
    let table = DeadLetterTable::new(inbox.pool.clone(), BILLING);
    let (one, other) = (Uuid::now_v7(), Uuid::now_v7());
    for expected in 1..=3 {
        assert_eq!(table.begin_attempt("billing.events", one).await?, expected);
    }
    assert_eq!(table.begin_attempt("billing.events", other).await?, 1);
    assert_eq!(table.begin_attempt("orders.events", one).await?, 1, "another consumer's attempts count");
    table.end_attempts("billing.events", one).await?;
    assert_eq!(table.begin_attempt("billing.events", one).await?, 1);
    assert_eq!(table.begin_attempt("billing.events", other).await?, 2);
    Ok(())
}
