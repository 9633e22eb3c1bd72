//! Later events of an aggregate wait behind one that is a dead letter, until an operator replays or discards it. The
//! dead letters of each test have the ids 1, 2 and 3, in the order in which they are saved.

use std::collections::HashSet;

use database::Pool;
use events::Event;
use inbox::{
    DeadLetterTable, Error, Inbox,
    dead_letters::{self, ReplayOutcome, discard},
};
use messaging::{
    Applied, DeadLetter, DeadLetterStore as _, Failure, Handler, SharedHandler, replay::Selection,
};
use uuid::Uuid;

use crate::support::{BILLING, TWO_WEEKS, TestInbox, event, event_of, letter, record, waits_for_the_lock};

/// Which events of a group would be applied, or which of them must wait. Changes nothing.
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

/// A handler that has nothing to write.
struct NoEffect;

impl Handler for NoEffect {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        Ok(Applied { first: group.len(), duplicates: 0 })
    }
}

/// Replays a dead letter, and returns the outcomes: of it and of those that waited behind it.
async fn replay(
    table: &DeadLetterTable,
    id: i64,
    dry_run: bool,
) -> anyhow::Result<Vec<(i64, ReplayOutcome)>> {
    let selection = Selection { ids: Some(vec![id]), dry_run, ..Selection::default() };
    let handler = SharedHandler::new(NoEffect);
    let replayed = dead_letters::replay(table, &handler, &selection, TWO_WEEKS).await?.items;
    Ok(replayed.into_iter().map(|item| (item.id, item.outcome)).collect())
}

#[tokio::test]
async fn later_events_of_the_aggregate_wait_and_no_others() -> anyhow::Result<()> {
    let TestInbox { pool, table, .. } = &TestInbox::new().await?;
    let order = Uuid::now_v7();
    let (failed, later, latest, other) = (event_of(order), event_of(order), event_of(order), event());
    let applied = event_of(order);
    assert!(record(pool, &applied).await?);
    table.save(&letter(&failed, "permanent")).await?;
    // One without a readable aggregate blocks nothing.
    table.save(&DeadLetter { body: b"not json".to_vec(), ..letter(&event(), "malformed") }).await?;
    let group = [later.clone(), other.clone(), latest.clone()];
    assert_eq!(try_group(BILLING, pool, &group).await?, Err(HashSet::from([later.id, latest.id])));
    assert_eq!(try_group(BILLING, pool, &[other]).await?, Ok(1));
    assert_eq!(try_group(BILLING, pool, &[applied]).await?, Ok(0), "a duplicate waits for nothing");
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
async fn events_are_released_one_after_the_other_and_nothing_is_saved_behind_a_resolved_one()
-> anyhow::Result<()> {
    use ReplayOutcome::{Applied, Discarded, StillFails, WouldBeApplied};

    let TestInbox { table, .. } = &TestInbox::new().await?;
    let order = Uuid::now_v7();
    table.save(&letter(&event_of(order), "permanent")).await?;
    for _ in 0..2 {
        assert!(table.save_behind(&letter(&event_of(order), "behind")).await?);
    }
    let is_behind = async |id| {
        let outcomes = replay(table, id, true).await?;
        anyhow::Ok(matches!(outcomes[..], [(_, StillFails { reason: "behind", .. })]))
    };
    assert_eq!(replay(table, 1, true).await?, [1, 2, 3].map(|id| (id, WouldBeApplied)));
    assert!(is_behind(2).await?);
    assert_eq!(discard(table, &[1], "a test").await?.discarded, [1]);
    assert_eq!(replay(table, 2, true).await?, [2, 3].map(|id| (id, WouldBeApplied)));
    assert!(is_behind(3).await?);
    assert_eq!(replay(table, 2, false).await?, [2, 3].map(|id| (id, Applied)));
    assert!(!table.save_behind(&letter(&event_of(order), "behind")).await?, "it would wait for nothing");
    assert_eq!(replay(table, 1, false).await?, [(1, Discarded)]);
    Ok(())
}

/// A replay of it would change nothing, and a dry run says so.
#[tokio::test]
async fn dry_run_tells_that_an_event_was_applied_and_changes_nothing() -> anyhow::Result<()> {
    let TestInbox { pool, table, .. } = &TestInbox::new().await?;
    let event = event();
    table.save(&letter(&event, "permanent")).await?;
    for _ in 0..2 {
        assert_eq!(replay(table, 1, true).await?, [(1, ReplayOutcome::WouldBeApplied)]);
    }
    assert!(record(pool, &event).await?);
    assert_eq!(replay(table, 1, true).await?, [(1, ReplayOutcome::Unchanged)]);
    Ok(())
}

#[tokio::test]
async fn only_dead_letters_that_wait_are_discarded_and_then_block_nothing() -> anyhow::Result<()> {
    let TestInbox { pool, table, .. } = &TestInbox::new().await?;
    let discarded = event();
    table.save(&letter(&discarded, "permanent")).await?;
    table.save(&letter(&event(), "permanent")).await?;
    assert_eq!(replay(table, 2, false).await?, [(2, ReplayOutcome::Applied)]);
    let outcome = discard(table, &[1, 2], "a test").await?;
    assert_eq!((outcome.discarded, outcome.untouched), (vec![1], vec![2]));
    let sql = "select resolution, note from dead_letters order by id";
    let resolved: Vec<(String, Option<String>)> = sqlx::query_as(sql).fetch_all(pool).await?;
    assert_eq!(resolved, [("discarded".into(), Some("a test".into())), ("replayed".into(), None)]);
    assert_eq!(try_group(BILLING, pool, &[event_of(discarded.aggregate_id)]).await?, Ok(1));
    Ok(())
}

/// Otherwise an event could be saved behind a dead letter just after the replay has looked for such events.
#[tokio::test]
async fn saving_behind_a_dead_letter_and_resolving_it_take_turns() -> anyhow::Result<()> {
    let TestInbox { pool, table, .. } = &TestInbox::new().await?;
    let failed = event();
    table.save(&letter(&failed, "permanent")).await?;
    let turn = BILLING.begin(pool).await?;
    let (replaying, saving) = (table.clone(), table.clone());
    let replaying = tokio::spawn(async move { replay(&replaying, 1, false).await });
    let later = letter(&event_of(failed.aggregate_id), "behind");
    let saving = tokio::spawn(async move { saving.save_behind(&later).await });
    waits_for_the_lock(pool, 2).await?;
    turn.commit().await?;
    // Either it is not saved, or the replay has found it.
    assert_eq!(saving.await??, replaying.await??.len() == 2);
    Ok(())
}

/// What decides is read with a snapshot that is younger than the lock.
#[tokio::test]
async fn event_that_waited_for_the_lock_sees_the_dead_letter_of_its_holder() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let later = event();
    let mut holder = BILLING.begin(pool).await?;
    let waiting = tokio::spawn({
        let (pool, later) = (pool.clone(), later.clone());
        async move { try_group(BILLING, &pool, &[later]).await }
    });
    waits_for_the_lock(pool, 1).await?;
    let sql =
        "insert into dead_letters (queue, event_id, subject, reason, detail, headers, routing_key, body)
               values ($1, $2, $3, '', '', '{}', '', '')";
    let insert = sqlx::query(sql).bind(BILLING.queue).bind(Uuid::now_v7()).bind(later.aggregate_id);
    insert.execute(&mut *holder).await?;
    holder.commit().await?;
    assert_eq!(waiting.await??, Err(HashSet::from([later.id])));
    Ok(())
}

/// The event of a dead letter may be applied after all: its message was not acknowledged, and the next attempt succeeded.
#[tokio::test]
async fn letter_whose_event_was_applied_later_holds_nothing_back() -> anyhow::Result<()> {
    let TestInbox { pool, table, .. } = &TestInbox::new().await?;
    let failed = event();
    let later = event_of(failed.aggregate_id);
    table.save(&letter(&failed, "unexpected")).await?;
    assert_eq!(try_group(BILLING, pool, std::slice::from_ref(&later)).await?, Err(HashSet::from([later.id])));
    assert!(record(pool, &failed).await?);
    assert_eq!(try_group(BILLING, pool, &[later]).await?, Ok(1));
    Ok(())
}
