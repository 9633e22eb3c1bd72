use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use database::Pool;
use events::{NewEvent, OrderConfirmed, TraceContext};
use messaging::{
    BrokerUnavailable, Outgoing, PublishOutcome, Publisher, Refusal,
    replay::{ReplayPolicy, Selection},
};
use outbox::{
    RETRY_SECONDS, Relay, RelayOptions, Step,
    parked_events::{Discarded, ReplayOutcome, Replayed, discard, list, replay, show},
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::support::{Database, TWO_WEEKS, by_id};

/// A broker that refuses one event and confirms all others.
#[derive(Clone, Default)]
struct Broker {
    refused: Option<Uuid>,
    seen: Arc<Mutex<Vec<Uuid>>>,
}

impl Publisher for Broker {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        Ok(())
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        self.seen.lock().unwrap().extend(batch.iter().map(|message| message.id));
        let outcome = |message: &&Outgoing| {
            if Some(message.id) == self.refused {
                PublishOutcome::Refused(Refusal::Unroutable)
            } else {
                PublishOutcome::Confirmed
            }
        };
        batch.iter().map(outcome).collect()
    }
}

struct Outbox(Database);

impl Outbox {
    async fn new() -> anyhow::Result<Self> {
        Ok(Self(Database::new(&outbox::MIGRATIONS).await?))
    }

    fn relay(&self, broker: Broker) -> Relay<Broker> {
        // All lanes in one step, so that events of all aggregates are published in the order of their `seq`.
        Relay::new(self.0.pool.clone(), broker, RelayOptions { lanes: 16, ..RelayOptions::default() })
    }

    async fn append(&self, aggregate: Uuid, version: i32) -> anyhow::Result<Uuid> {
        let body = OrderConfirmed { order_id: aggregate };
        let event = NewEvent::of(aggregate, version, &TraceContext::root(), &body)?;
        let mut transaction = self.0.pool.begin().await?;
        outbox::append(&mut transaction, std::slice::from_ref(&event)).await?;
        transaction.commit().await?;
        Ok(event.event_id)
    }

    /// Runs a relay until the broker has refused this event so often that it is parked.
    async fn park(&self, event_id: Uuid) -> anyhow::Result<()> {
        let mut relay = self.relay(Broker { refused: Some(event_id), ..Broker::default() });
        let is_parked = "select parked_at is not null from outbox where event_id = $1";
        while !sqlx::query_scalar(is_parked).bind(event_id).fetch_one(&self.0.pool).await? {
            relay.step().await?;
            // Ends the back-off, so that the test does not wait for it.
            sqlx::query("update outbox set available_at = clock_timestamp()").execute(&self.0.pool).await?;
        }
        Ok(())
    }

    /// Publishes all claimable events. Returns their ids in the order of publishing.
    async fn publish_all(&self) -> anyhow::Result<Vec<Uuid>> {
        let broker = Broker::default();
        let mut relay = self.relay(broker.clone());
        while !matches!(relay.step().await?, Step::Idle) {}
        let seen = broker.seen.lock().unwrap().clone();
        Ok(seen)
    }

    /// Makes all events older than the replay policy allows.
    async fn make_old(&self) -> anyhow::Result<()> {
        let sql = "update outbox set created_at = created_at - interval '15 days'";
        sqlx::query(sql).execute(&self.0.pool).await?;
        Ok(())
    }
}

#[tokio::test]
async fn parked_event_is_listed_and_its_replay_publishes_it_and_its_successors_in_order() -> anyhow::Result<()>
{
    let outbox = Outbox::new().await?;
    let pool = &outbox.0.pool;
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
    let pool = &outbox.0.pool;
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
    let pool = &outbox.0.pool;
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
    let pool = &outbox.0.pool;
    let (published, parked) =
        (outbox.append(Uuid::now_v7(), 1).await?, outbox.append(Uuid::now_v7(), 1).await?);
    outbox.park(parked).await?;
    outbox.make_old().await?;

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

#[tokio::test]
async fn replay_of_a_period_reads_few_pages_however_long_the_history_is() -> anyhow::Result<()> {
    let database = Database::new(&outbox::MIGRATIONS).await?;
    // One session: what another one has read would be counted later.
    let pool = &database.pool_of(1)?;
    // Two events a second for 42 hours, on each side of the period.
    let history = "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                                       payload, lane, created_at, published_at)
                   select gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderCreated', 1, '{}', number % 16, at, at
                   from generate_series(1, 600000) as number,
                        lateral (select now() + (number - 600000) * interval '0.5 s' as at) as time";
    // The pages that an autovacuum worker reads would be counted too.
    sqlx::query("alter table outbox set (autovacuum_enabled = false)").execute(pool).await?;
    // Writing the history may take longer than a statement of a service.
    sqlx::query("set statement_timeout = 0").execute(pool).await?;
    sqlx::query(history).execute(pool).await?;
    // One of the first events was refused for long, and one waited behind it.
    let late = "update outbox set published_at = (select created_at from outbox where seq = 300010) where seq in (7, 8)";
    sqlx::query(late).execute(pool).await?;
    sqlx::query("vacuum analyze outbox").execute(pool).await?;
    sqlx::query("set statement_timeout = '10s'").execute(pool).await?;
    let time = "select created_at from outbox where seq = $1";
    let from = sqlx::query_scalar(time).bind(300_001_i64).fetch_one(pool).await?;
    let to = sqlx::query_scalar(time).bind(302_501_i64).fetch_one(pool).await?;

    let before = pages(pool).await?;
    let mut selection = Selection { from: Some(from), to: Some(to), dry_run: true, ..Selection::default() };
    let mut sizes = vec![];
    loop {
        let page = replay(pool, Replayed::Published, &selection, TWO_WEEKS).await?;
        assert!(page.items.iter().all(|item| item.outcome == ReplayOutcome::WouldBePending));
        sizes.push(page.items.len());
        let Some(next) = page.next else { break };
        selection.after = next;
    }
    assert_eq!(sizes, [1_000, 1_000, 502], "2,500 of the period, and the two that were published late");
    let read = pages(pool).await? - before;
    // 14,000, most of them to lock 2,500 events by their ids. Reading what came before adds 7,000, what came after 13,000.
    assert!(read < 17_000, "{read} pages were read");
    Ok(())
}

async fn pages(pool: &Pool) -> anyhow::Result<i64> {
    sqlx::query("select pg_stat_force_next_flush()").execute(pool).await?;
    let sql = "select (heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint
               from pg_statio_user_tables where relid = 'outbox'::regclass";
    Ok(sqlx::query_scalar(sql).fetch_one(pool).await?)
}
