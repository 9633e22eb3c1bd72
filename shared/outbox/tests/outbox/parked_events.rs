//! What an operator does with parked and published events: list, show, replay, discard.

use std::time::Duration;

use messaging::{
    RETRY_SECONDS, Refusal, Step,
    replay::{ReplayPolicy, Selection},
};
use outbox::parked_events::{Discarded, ReplayOutcome, Replayed, discard, list, replay, show};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::support::{Outbox, ScriptedBroker, TWO_WEEKS};

fn by_id(ids: &[Uuid]) -> Selection<Uuid> {
    Selection { ids: Some(ids.to_vec()), ..Selection::default() }
}

impl Outbox {
    /// Runs a relay until the broker has refused this event so often that it is parked.
    async fn park(&self, event_id: Uuid) -> anyhow::Result<()> {
        let mut relay = self.relay(&ScriptedBroker::that_refuses(event_id, Refusal::Unroutable));
        while !self.state(event_id).await?.parked {
            relay.step().await?;
            self.end_back_off().await?;
        }
        Ok(())
    }

    /// Publishes all claimable events. Returns their ids in the order of publishing.
    async fn publish_all(&self) -> anyhow::Result<Vec<Uuid>> {
        let broker = ScriptedBroker::that_confirms();
        let mut relay = self.relay(&broker);
        while relay.step().await? != Step::Idle {}
        Ok(broker.seen())
    }
}

#[tokio::test]
async fn parked_event_is_listed_and_its_replay_publishes_it_and_its_successors_in_order() -> anyhow::Result<()>
{
    let outbox = Outbox::new().await?;
    let pool = &outbox.pool;
    let order = Uuid::now_v7();
    let first = outbox.append(order, 1).await?;
    outbox.park(first).await?;
    let (second, third) = (outbox.append(order, 2).await?, outbox.append(order, 3).await?);
    let other = outbox.append(Uuid::now_v7(), 1).await?;
    assert_eq!(outbox.publish_all().await?, [other], "later events of the order wait, others go on");

    let page = list(pool, 0, 10).await?;
    assert_eq!((page.items.len(), page.next), (1, None));
    let parked = &page.items[0];
    assert_eq!((parked.event_id, usize::try_from(parked.attempts)?), (first, RETRY_SECONDS.len()));
    assert_eq!(parked.last_error.as_deref(), Some("no queue is bound for it"));
    let shown = show(pool, first).await?.unwrap();
    assert_eq!(shown.waiting_behind, 2);
    assert!(shown.payload.unwrap().get().contains(&first.to_string()));

    let replayed = replay(pool, Replayed::Parked, &by_id(&[first, second]), TWO_WEEKS).await?.items;
    let outcomes: Vec<_> = replayed.iter().map(|result| result.outcome).collect();
    assert_eq!(outcomes, [ReplayOutcome::Pending, ReplayOutcome::NotFound], "the second is not parked");
    assert_eq!(outbox.publish_all().await?, [first, second, third]);
    assert!(list(pool, 0, 10).await?.items.is_empty());
    Ok(())
}

#[tokio::test]
async fn discard_reports_the_gap_and_later_events_are_published() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let pool = &outbox.pool;
    let order = Uuid::now_v7();
    let first = outbox.append(order, 1).await?;
    outbox.park(first).await?;
    let (second, third) = (outbox.append(order, 2).await?, outbox.append(order, 3).await?);
    let discarded = discard(pool, first, "the product was never sold here").await?;
    assert_eq!(discarded, Some(Discarded { aggregate_id: order, gap: 1, follow: vec![2, 3] }));
    assert_eq!(outbox.publish_all().await?, [second, third]);
    // The event is moved to another table, not erased.
    let moved: (String, i32, String) = sqlx::query_as(
        "select note, aggregate_version, payload::text from outbox_discarded where event_id = $1",
    )
    .bind(first)
    .fetch_one(pool)
    .await?;
    assert_eq!((moved.0.as_str(), moved.1), ("the product was never sold here", 1));
    assert!(moved.2.contains(&first.to_string()));

    assert_eq!(discard(pool, first, "again").await?, None, "it is discarded already");
    assert_eq!(discard(pool, second, "published").await?, None, "it is not parked");
    Ok(())
}

#[tokio::test]
async fn published_events_are_replayed_under_their_ids_by_id_or_by_time() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let pool = &outbox.pool;
    let mut ids = vec![];
    for _ in 0..3 {
        ids.push(outbox.append(Uuid::now_v7(), 1).await?);
    }
    let began = OffsetDateTime::now_utc() - Duration::from_secs(60);
    outbox.publish_all().await?;
    replay(pool, Replayed::Published, &by_id(&ids[..1]), TWO_WEEKS).await?;
    assert_eq!(outbox.publish_all().await?, ids[..1]);

    let before = Selection { to: Some(began), ..Selection::default() };
    assert!(replay(pool, Replayed::Published, &before, TWO_WEEKS).await?.items.is_empty());
    let since = Selection { from: Some(began), ..Selection::default() };
    assert_eq!(replay(pool, Replayed::Published, &since, TWO_WEEKS).await?.items.len(), 3);
    assert_eq!(outbox.publish_all().await?, ids);
    let pending = outbox.append(Uuid::now_v7(), 1).await?;
    let page = replay(pool, Replayed::Published, &by_id(&[pending]), TWO_WEEKS).await?;
    assert_eq!(page.items[0].outcome, ReplayOutcome::NotFound, "it is not published yet");
    Ok(())
}

#[tokio::test]
async fn replay_refuses_old_events_unless_it_is_forced() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let pool = &outbox.pool;
    let (published, parked) =
        (outbox.append(Uuid::now_v7(), 1).await?, outbox.append(Uuid::now_v7(), 1).await?);
    outbox.park(parked).await?;
    sqlx::query("update outbox set created_at = created_at - interval '15 days'").execute(pool).await?;

    let refused = replay(pool, Replayed::Published, &by_id(&[published]), TWO_WEEKS).await?.items;
    assert_eq!(refused[0].outcome, ReplayOutcome::TooOld);
    let refused = replay(pool, Replayed::Parked, &by_id(&[parked]), TWO_WEEKS).await?.items;
    assert_eq!(refused[0].outcome, ReplayOutcome::TooOld);
    assert_eq!(outbox.publish_all().await?, Vec::<Uuid>::new());

    let force = ReplayPolicy { force: true, ..TWO_WEEKS };
    replay(pool, Replayed::Published, &by_id(&[published]), force).await?;
    replay(pool, Replayed::Parked, &by_id(&[parked]), force).await?;
    assert_eq!(outbox.publish_all().await?.len(), 2);
    Ok(())
}
