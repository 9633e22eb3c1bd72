use messaging::{DeadLetter, DeadLetterStore};
use metrics_exporter_prometheus::PrometheusBuilder;
use testbed::eventually;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{BILLING, DEADLINE, TestInbox, event, event_of, letter};

/// What the broker has put into the dead-letter queue.
fn collected(body: &[u8]) -> DeadLetter {
    let message_id = Some("poison".into());
    DeadLetter { arrival: new_arrival(), message_id, body: body.to_vec(), ..letter(&event(), "malformed") }
}

fn new_arrival() -> Option<String> {
    Some(Uuid::now_v7().to_string())
}

#[tokio::test]
async fn dead_letter_delivered_again_is_one_row_even_after_it_is_resolved() -> anyhow::Result<()> {
    let TestInbox { pool, table, .. } = &TestInbox::new().await?;
    let rows =
        async || sqlx::query_scalar::<_, i64>("select count(*) from dead_letters").fetch_one(pool).await;
    let first = collected(b"\xff\x00 not json");
    for _ in 0..3 {
        table.save(&first).await?;
    }
    // A consumer that crashes between setting a message aside and acknowledging it sets it aside twice.
    table.save(&DeadLetter { arrival: new_arrival(), ..first.clone() }).await?;
    assert_eq!(rows().await?, 1);

    let discard =
        "update dead_letters set resolved_at = clock_timestamp(), resolution = 'discarded', note = 'a test'";
    sqlx::query(discard).execute(pool).await?;
    table.save(&first).await?;
    assert_eq!(rows().await?, 1, "the resolved dead letter was delivered again");
    // The same message, set aside again after that, is a new row for the operator.
    table.save(&DeadLetter { arrival: new_arrival(), ..first.clone() }).await?;
    assert_eq!(rows().await?, 2);
    // Other bytes under the same id are another message.
    table.save(&collected(b"other")).await?;
    assert_eq!(rows().await?, 3);
    Ok(())
}

#[tokio::test]
async fn message_of_sixteen_mebibytes_is_saved_with_its_bytes() -> anyhow::Result<()> {
    let TestInbox { pool, table, .. } = &TestInbox::new().await?;
    let body = vec![0xff; 16 * 1024 * 1024];
    table.save(&collected(&body)).await?;
    let saved: Vec<u8> = sqlx::query_scalar("select body from dead_letters").fetch_one(pool).await?;
    assert!(saved == body, "{} bytes were saved", saved.len());
    Ok(())
}

#[tokio::test]
async fn attempts_at_an_event_are_counted_until_one_ends() -> anyhow::Result<()> {
    let TestInbox { table, .. } = &TestInbox::new().await?;
    let (one, other) = (Uuid::now_v7(), Uuid::now_v7());
    for expected in 1..=3 {
        assert_eq!(table.begin_attempt(BILLING.queue, one).await?, expected);
    }
    assert_eq!(table.begin_attempt(BILLING.queue, other).await?, 1);
    assert_eq!(table.begin_attempt("orders.events", one).await?, 1, "another consumer's attempts count");
    table.end_attempts(BILLING.queue, one).await?;
    assert_eq!(table.begin_attempt(BILLING.queue, one).await?, 1);
    assert_eq!(table.begin_attempt(BILLING.queue, other).await?, 2);
    Ok(())
}

/// Zero would say that nobody needs to look.
#[tokio::test]
async fn dead_letters_are_counted_and_their_number_is_unknown_without_the_database() -> anyhow::Result<()> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let shows = async |all: &str, behind: &str| {
        let expected = [format!("inbox_dead_letters {all}"), format!("inbox_dead_letters_behind {behind}")];
        eventually(&format!("the gauges to be {all} and {behind}"), DEADLINE, async || {
            let page = recorder.handle().render();
            Ok(expected.iter().all(|line| page.lines().any(|shown| shown == line)).then_some(()))
        })
        .await
    };
    let TestInbox { pool, table, .. } = &TestInbox::new().await?;
    let (failed, resolved) = (event(), event());
    for event in [&failed, &resolved] {
        table.save(&letter(event, "permanent")).await?;
    }
    table.save_behind(&letter(&event_of(failed.aggregate_id), "behind")).await?;
    inbox::dead_letters::discard(table, &[2], "a test").await?;
    let stop = CancellationToken::new();
    let observing = tokio::spawn(table.clone().observe(stop.clone()));
    shows("2", "1").await?;
    sqlx::query("alter table dead_letters rename to hidden").execute(pool).await?;
    shows("NaN", "NaN").await?;
    stop.cancel();
    Ok(observing.await?)
}
