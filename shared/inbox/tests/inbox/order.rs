//! Later events of an aggregate wait behind one that is a dead letter.

use std::collections::HashSet;

use database::Pool;
use events::Event;
use inbox::{DeadLetterTable, Error, Inbox, Preview};
use messaging::{DeadLetter, DeadLetterStore as _, Failure};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;
use testbed::eventually;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{BILLING, DEADLINE, TestInbox, event, event_of, waits_for_the_lock};

fn letter(event: &Event, reason: &str) -> DeadLetter {
    DeadLetter {
        queue: BILLING.queue,
        arrival: None,
        message_id: Some(event.id.to_string()),
        reason: reason.into(),
        detail: reason.into(),
        headers: json!({}),
        routing_key: "order.created".into(),
        body: json!({ "id": event.id, "type": event.event_type, "subject": event.aggregate_id })
            .to_string()
            .into_bytes(),
    }
}

/// Which events of a group would be applied, or which of them have to wait. Changes nothing.
async fn try_group(
    inbox: Inbox,
    pool: &Pool,
    group: &[Event],
) -> anyhow::Result<Result<usize, HashSet<Uuid>>> {
    match inbox.first_time(pool, group).await {
        Ok((_, first)) => Ok(Ok(first.len())),
        Err(Error(Failure::Behind(behind))) => Ok(Err(behind)),
        Err(error) => Err(error.into()),
    }
}

async fn id_of(pool: &Pool, event: &Event) -> anyhow::Result<i64> {
    let sql = "select id from dead_letters where event_id = $1";
    Ok(sqlx::query_scalar(sql).bind(event.id).fetch_one(pool).await?)
}

#[tokio::test]
async fn later_events_of_the_aggregate_wait_and_no_others() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let table = DeadLetterTable::new(pool.clone(), BILLING);
    let order = Uuid::now_v7();
    let (failed, later, latest, other) = (event_of(order), event_of(order), event_of(order), event());
    table.save(&letter(&failed, "permanent")).await?;
    let group = [later.clone(), other.clone(), latest.clone()];
    assert_eq!(try_group(BILLING, pool, &group).await?, Err(HashSet::from([later.id, latest.id])));
    assert_eq!(try_group(BILLING, pool, &[other]).await?, Ok(1));
    // A copy of the failed event itself may be applied: it is the next one.
    assert_eq!(try_group(BILLING, pool, std::slice::from_ref(&failed)).await?, Ok(1));
    // What waits behind it still does, also when it is delivered again.
    assert!(table.save_behind(&letter(&later, "behind")).await?);
    assert_eq!(try_group(BILLING, pool, &[later.clone(), failed]).await?, Err(HashSet::from([later.id])));
    // Another queue's dead letters, and a consumer without this choice, are not concerned.
    let group = std::slice::from_ref(&later);
    assert_eq!(try_group(Inbox { queue: "another.events", ..BILLING }, pool, group).await?, Ok(1));
    assert_eq!(try_group(Inbox { keeps_order: false, ..BILLING }, pool, group).await?, Ok(1));
    Ok(())
}

#[tokio::test]
async fn duplicate_of_an_applied_event_waits_for_nothing() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let order = Uuid::now_v7();
    let (applied, failed) = (event_of(order), event_of(order));
    let (transaction, new) = BILLING.first_time(pool, std::slice::from_ref(&applied)).await?;
    assert_eq!(new.len(), 1);
    transaction.commit().await?;
    DeadLetterTable::new(pool.clone(), BILLING).save(&letter(&failed, "permanent")).await?;
    assert_eq!(try_group(BILLING, pool, &[applied]).await?, Ok(0));
    Ok(())
}

#[tokio::test]
async fn message_without_a_readable_aggregate_blocks_nothing() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let (failed, other) = (event(), event());
    let unreadable = DeadLetter { body: b"not json".to_vec(), ..letter(&failed, "malformed") };
    DeadLetterTable::new(pool.clone(), BILLING).save(&unreadable).await?;
    assert_eq!(try_group(BILLING, pool, &[other]).await?, Ok(1));
    Ok(())
}

#[tokio::test]
async fn events_are_released_one_after_the_other_and_nothing_is_saved_behind_a_resolved_one()
-> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let table = DeadLetterTable::new(pool.clone(), BILLING);
    let order = Uuid::now_v7();
    let group = [event_of(order), event_of(order), event_of(order)];
    let [failed, later, latest] = &group;
    table.save(&letter(failed, "permanent")).await?;
    assert!(table.save_behind(&letter(later, "behind")).await?);
    assert!(table.save_behind(&letter(latest, "behind")).await?);
    assert_eq!(table.preview(failed).await?, Preview::Applied);
    assert_eq!(table.preview(later).await?, Preview::Behind);
    assert_eq!(table.next_behind(id_of(pool, failed).await?).await?, Some(id_of(pool, later).await?));

    table.resolve_replayed(id_of(pool, failed).await?).await?;
    assert_eq!(table.preview(later).await?, Preview::Applied);
    assert_eq!(table.preview(latest).await?, Preview::Behind);
    table.resolve_replayed(id_of(pool, later).await?).await?;
    assert_eq!(table.next_behind(id_of(pool, later).await?).await?, Some(id_of(pool, latest).await?));
    table.resolve_replayed(id_of(pool, latest).await?).await?;
    assert_eq!(table.next_behind(id_of(pool, latest).await?).await?, None);
    assert!(!table.save_behind(&letter(&event_of(order), "behind")).await?, "it would wait for nothing");
    Ok(())
}

/// A replay of it would change nothing, and an operator is told so before.
#[tokio::test]
async fn preview_tells_that_an_event_was_applied_and_changes_nothing() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let table = DeadLetterTable::new(pool.clone(), BILLING);
    let event = event();
    for _ in 0..2 {
        assert_eq!(table.preview(&event).await?, Preview::Applied);
    }
    let (transaction, _) = BILLING.first_time(pool, std::slice::from_ref(&event)).await?;
    transaction.commit().await?;
    assert_eq!(table.preview(&event).await?, Preview::Unchanged);
    Ok(())
}

#[tokio::test]
async fn only_dead_letters_that_wait_are_discarded_and_then_block_nothing() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let table = DeadLetterTable::new(pool.clone(), BILLING);
    let order = Uuid::now_v7();
    let (discarded, replayed, later) = (event_of(order), event(), event_of(order));
    table.save(&letter(&discarded, "permanent")).await?;
    table.save(&letter(&replayed, "permanent")).await?;
    let ids = [id_of(pool, &discarded).await?, id_of(pool, &replayed).await?];
    table.resolve_replayed(ids[1]).await?;
    assert_eq!(table.resolve_discarded(&ids, "a test").await?, [ids[0]]);
    let sql = "select resolution, note from dead_letters order by id";
    let resolved: Vec<(String, Option<String>)> = sqlx::query_as(sql).fetch_all(pool).await?;
    assert_eq!(resolved, [("discarded".into(), Some("a test".into())), ("replayed".into(), None)]);
    assert_eq!(try_group(BILLING, pool, &[later]).await?, Ok(1));
    Ok(())
}

/// Zero would say that nobody has to look.
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
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let table = DeadLetterTable::new(pool.clone(), BILLING);
    let order = Uuid::now_v7();
    let (failed, later, resolved) = (event_of(order), event_of(order), event());
    for event in [&failed, &resolved] {
        table.save(&letter(event, "permanent")).await?;
    }
    table.save_behind(&letter(&later, "behind")).await?;
    table.resolve_replayed(id_of(pool, &resolved).await?).await?;
    let stop = CancellationToken::new();
    let observing = tokio::spawn(table.observe(stop.clone()));
    shows("2", "1").await?;
    sqlx::query("alter table dead_letters rename to hidden").execute(pool).await?;
    shows("NaN", "NaN").await?;
    stop.cancel();
    Ok(observing.await?)
}

/// Otherwise an event could be saved behind a dead letter just after the replay has looked for such events.
#[tokio::test]
async fn saving_behind_a_dead_letter_and_resolving_it_take_turns() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let table = DeadLetterTable::new(pool.clone(), BILLING);
    let order = Uuid::now_v7();
    let (failed, later) = (event_of(order), event_of(order));
    table.save(&letter(&failed, "permanent")).await?;
    let (applying, _) = BILLING.first_time(pool, &[event()]).await?;
    let id = id_of(pool, &failed).await?;
    let resolving = tokio::spawn({
        let table = table.clone();
        async move { table.resolve_replayed(id).await }
    });
    let saving = tokio::spawn({
        let table = table.clone();
        async move { table.save_behind(&letter(&later, "behind")).await }
    });
    waits_for_the_lock(pool, 2).await?;
    applying.commit().await?;
    resolving.await??;
    let saved = saving.await??;
    assert_eq!(table.next_behind(id).await?.is_some(), saved);
    Ok(())
}

/// What decides is read with a snapshot that is younger than the lock.
#[tokio::test]
async fn event_that_waited_for_the_lock_sees_the_dead_letter_of_its_holder() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let order = Uuid::now_v7();
    let (failed, later) = (event_of(order), event_of(order));
    let mut holder = BILLING.begin(pool).await?;
    let waiting = tokio::spawn({
        let (pool, later) = (pool.clone(), later.clone());
        async move { try_group(BILLING, &pool, &[later]).await }
    });
    waits_for_the_lock(pool, 1).await?;
    let sql =
        "insert into dead_letters (queue, event_id, subject, reason, detail, headers, routing_key, body)
               values ($1, $2, $3, '', '', '{}', '', '')";
    sqlx::query(sql).bind(BILLING.queue).bind(failed.id).bind(order).execute(&mut *holder).await?;
    holder.commit().await?;
    assert_eq!(waiting.await??, Err(HashSet::from([later.id])));
    Ok(())
}

/// A missing grant is no message's fault: as a permanent failure it would move a whole queue to the dead letters.
#[tokio::test]
async fn missing_grant_or_table_is_a_temporary_failure() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    sqlx::query("alter table processed_events rename to hidden").execute(pool).await?;
    let failure = BILLING.first_time(pool, &[event()]).await.map(drop);
    assert!(matches!(failure, Err(Error(Failure::Temporary(_)))), "{failure:?}");
    let code = sqlx::query("select 1 / 0").execute(pool).await.map(drop).map_err(Error::from);
    assert!(matches!(code, Err(Error(Failure::Permanent(_)))), "{code:?}");
    Ok(())
}

/// The event of a dead letter may be applied after all: its message was not acknowledged, and the next attempt succeeded.
#[tokio::test]
async fn letter_whose_event_was_applied_later_holds_nothing_back() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let order = Uuid::now_v7();
    let (failed, later) = (event_of(order), event_of(order));
    DeadLetterTable::new(pool.clone(), BILLING).save(&letter(&failed, "unexpected")).await?;
    assert_eq!(try_group(BILLING, pool, std::slice::from_ref(&later)).await?, Err(HashSet::from([later.id])));
    let (transaction, applied) = BILLING.first_time(pool, std::slice::from_ref(&failed)).await?;
    assert_eq!(applied.len(), 1);
    transaction.commit().await?;
    assert_eq!(try_group(BILLING, pool, &[later]).await?, Ok(1));
    Ok(())
}
