//! Whether an event is new is decided by the primary key, in the transaction of the effect.

use database::Pool;
use events::Event;
use inbox::{Error, Inbox};
use messaging::{Applied, Failure};
use sqlx::PgConnection;
use tokio::time::timeout;

use crate::support::{BILLING, DEADLINE, TestInbox, event, event_in, waits_for_the_lock, write_effects};

/// Applies a group as a handler does. Pauses before the commit, so that other transactions overlap with this one.
async fn handle(pool: &Pool, consumer: &'static str, group: &[Event]) -> anyhow::Result<usize> {
    let inbox = Inbox { consumer, ..BILLING };
    let effect = async |transaction: &mut PgConnection, new: &[&Event]| {
        write_effects(transaction, new).await?;
        sqlx::query("select pg_sleep(0.05)").execute(transaction).await?;
        Ok(())
    };
    Ok(inbox.apply_once(pool, group, effect).await?.0.first)
}

async fn effects(pool: &Pool, event: &Event) -> anyhow::Result<i64> {
    let sql = "select count(*) from effects where event_id = $1";
    Ok(sqlx::query_scalar(sql).bind(event.id).fetch_one(pool).await?)
}

#[tokio::test]
async fn event_delivered_to_ten_connections_at_once_has_one_effect() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::with_effects().await?;
    for _ in 0..5 {
        let event = event();
        let tries = (0..10).map(|_| {
            let (pool, event) = (pool.clone(), event.clone());
            tokio::spawn(async move { handle(&pool, "billing", &[event]).await })
        });
        let mut first = 0;
        for tried in tries.collect::<Vec<_>>() {
            first += tried.await??;
        }
        assert_eq!(first, 1);
        assert_eq!(effects(pool, &event).await?, 1);
    }
    Ok(())
}

#[tokio::test]
async fn event_that_is_twice_in_a_group_is_applied_once_and_in_order() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::with_effects().await?;
    let (a, b) = (event(), event());
    let group = [b.clone(), a.clone(), b.clone()];
    let ids = async |_: &mut PgConnection, new: &[&Event]| Ok(new.iter().map(|event| event.id).collect());
    let (applied, new): (_, Vec<_>) = BILLING.apply_once(pool, &group, ids).await?;
    assert_eq!((new, applied), (vec![b.id, a.id], Applied { first: 2, duplicates: 1 }));
    Ok(())
}

#[tokio::test]
async fn event_whose_effect_was_rolled_back_is_applied_again() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::with_effects().await?;
    let event = event();
    let group = std::slice::from_ref(&event);
    let failing = async |transaction: &mut PgConnection, new: &[&Event]| {
        write_effects(transaction, new).await?;
        sqlx::query("select 1 / 0").execute(transaction).await?;
        Ok(())
    };
    let failure = BILLING.apply_once(pool, group, failing).await;
    assert!(matches!(failure, Err(Error(Failure::Permanent(_)))), "{failure:?}");
    assert_eq!(effects(pool, &event).await?, 0);
    assert_eq!(handle(pool, "billing", std::slice::from_ref(&event)).await?, 1, "the event is lost");
    Ok(())
}

/// A missing grant is no message's fault: as a permanent failure it would move a whole queue to the dead letters.
#[tokio::test]
async fn missing_grant_or_table_is_a_temporary_failure() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    sqlx::query("alter table processed_events rename to hidden").execute(pool).await?;
    let failure = BILLING.first_time(pool, &[event()]).await.map(drop);
    assert!(matches!(failure, Err(Error(Failure::Temporary(_)))), "{failure:?}");
    Ok(())
}

#[tokio::test]
async fn groups_with_the_same_events_in_opposite_orders_do_not_deadlock() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::with_effects().await?;
    let events: Vec<_> = (0..50).map(|_| event()).collect();
    let backwards: Vec<_> = events.iter().rev().cloned().collect();
    let both = async { tokio::join!(handle(pool, "billing", &events), handle(pool, "billing", &backwards)) };
    let (one, other) = timeout(DEADLINE, both).await?;
    assert_eq!(one? + other?, 50);
    Ok(())
}

/// Whatever queue or operator they come from, and with whatever number of partitions.
#[tokio::test]
async fn transactions_of_one_consumer_overlap_only_without_a_common_lane() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::with_effects().await?;
    let (replay, _) = BILLING.first_time(pool, &[event_in(3), event_in(5)]).await?;
    // Neither another lane nor another consumer in the same schema waits.
    assert_eq!(handle(pool, "billing", &[event_in(4)]).await?, 1);
    assert_eq!(handle(pool, "archive", &[event_in(3)]).await?, 1);

    let consumer = tokio::spawn({
        let pool = pool.clone();
        async move { handle(&pool, "billing", &[event_in(4), event_in(3)]).await }
    });
    waits_for_the_lock(pool, 1).await?;
    assert!(!consumer.is_finished());
    replay.commit().await?;
    assert_eq!(consumer.await??, 2);
    Ok(())
}

/// Whoever changes dead letters, the consumer itself or an operator, may change those of any lane.
#[tokio::test]
async fn transaction_without_lanes_waits_for_all_lanes() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::with_effects().await?;
    let (transaction, _) = BILLING.first_time(pool, &[event()]).await?;
    let of_all_lanes = tokio::spawn({
        let pool = pool.clone();
        async move { BILLING.begin(&pool).await?.commit().await }
    });
    waits_for_the_lock(pool, 1).await?;
    transaction.commit().await?;
    of_all_lanes.await??;
    Ok(())
}

/// The id decides: what comes later under the same one is a duplicate, whatever it says.
#[tokio::test]
async fn another_body_under_an_id_that_was_applied_has_no_effect() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::with_effects().await?;
    let first = event();
    let other = Event { id: first.id, ..event() };
    assert_eq!(handle(pool, "billing", std::slice::from_ref(&first)).await?, 1);
    assert_eq!(handle(pool, "billing", std::slice::from_ref(&other)).await?, 0);
    assert_eq!(handle(pool, "archive", &[first.clone(), other]).await?, 1, "both in one group");
    assert_eq!(effects(pool, &first).await?, 2);
    Ok(())
}
