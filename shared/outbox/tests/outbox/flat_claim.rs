//! The claim costs what is owed, not what was. Bounds are in buffers, which every machine counts alike, and not in time.

use std::time::Duration;

use events::{
    lane,
    transport::{Outcome, Refusal},
};
use outbox::{Relay, RelayOptions, Step};
use sqlx::{Connection as _, PgPool, postgres::PgPoolOptions};
use testbed::eventually;
use uuid::Uuid;

use crate::support::{Outbox, ScriptedBroker, event};

const NEVER: Duration = Duration::from_secs(3600);

impl Outbox {
    fn relay_that_looks(&self, broker: &ScriptedBroker, full_look: Duration) -> Relay<ScriptedBroker> {
        relay(&self.pool, broker, full_look)
    }

    /// Draws so many sequence numbers, as writers do whose transactions are rolled back.
    async fn burn(&self, numbers: i64) -> anyhow::Result<()> {
        let sql =
            "select count(nextval(pg_get_serial_sequence('outbox', 'seq'))) from generate_series(1, $1)";
        sqlx::query(sql).bind(numbers).execute(&self.pool).await?;
        Ok(())
    }
}

fn relay(pool: &PgPool, broker: &ScriptedBroker, full_look: Duration) -> Relay<ScriptedBroker> {
    let options = RelayOptions { lanes: 16, full_look, ..RelayOptions::default() };
    Relay::new(pool.clone(), broker.clone(), options)
}

/// What PostgreSQL has counted for the outbox: pages touched, and whole walks over the table.
async fn work(pool: &PgPool) -> anyhow::Result<(i64, i64)> {
    // In the session that did the work: a session hands in its counts when it is idle, or now.
    sqlx::query("select pg_stat_force_next_flush()").execute(pool).await?;
    let sql = "select (select sum(coalesce(heap_blks_hit, 0) + coalesce(heap_blks_read, 0)
                                  + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0))::bigint
                       from pg_statio_user_tables where relid = 'outbox'::regclass),
                      (select seq_scan from pg_stat_user_tables where relid = 'outbox'::regclass)";
    Ok(sqlx::query_as(sql).fetch_one(pool).await?)
}

#[tokio::test]
async fn a_step_with_a_large_history_touches_a_few_pages_and_never_walks_the_table() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.history(150_000, "1 day").await?;
    sqlx::query("vacuum analyze outbox").execute(&outbox.pool).await?;
    // One session, because each counts for itself.
    let one = PgPoolOptions::new().max_connections(1);
    let pool = one.connect_with((*outbox.pool.connect_options()).clone()).await?;
    let broker = ScriptedBroker::that_confirms();
    let mut relay = relay(&pool, &broker, Duration::ZERO);
    for _ in 0..10 {
        // More often than the five times after which PostgreSQL may settle for a plan that knows no parameters.
        outbox.append(Uuid::now_v7(), 1).await?;
        assert_eq!(relay.step().await?, Step::Published(1));
    }
    let (idle_before, walks_before) = work(&pool).await?;
    assert_eq!(relay.step().await?, Step::Idle);
    let (idle_after, _) = work(&pool).await?;
    outbox.append(Uuid::now_v7(), 1).await?;
    assert_eq!(relay.step().await?, Step::Published(1));
    let (busy_after, walks_after) = work(&pool).await?;
    let (idle, busy) = (idle_after - idle_before, busy_after - idle_after);
    // Two looks into 16 lanes, two or three pages each, and what ten steps have left behind; the table has thousands.
    assert!((1..=400).contains(&idle), "an idle step touched {idle} pages");
    assert!((1..=400).contains(&busy), "a step with one event touched {busy} pages");
    assert_eq!(walks_after, walks_before, "the history was walked over");
    Ok(())
}

#[tokio::test]
async fn while_vacuum_is_held_back_only_a_full_look_walks_over_what_is_gone() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    // Any transaction of this database will do: as long as it lives, nothing that died after its snapshot is removed.
    let mut elsewhere = sqlx::PgConnection::connect_with(&outbox.pool.connect_options()).await?;
    sqlx::raw_sql("begin isolation level repeatable read; select 1").execute(&mut elsewhere).await?;
    outbox.history(100_000, "1 day").await?;
    sqlx::query("update outbox set published_at = null").execute(&outbox.pool).await?;
    sqlx::query("update outbox set published_at = now()").execute(&outbox.pool).await?;
    sqlx::query("vacuum analyze outbox").execute(&outbox.pool).await?;

    let one = PgPoolOptions::new().max_connections(1);
    let pool = one.connect_with((*outbox.pool.connect_options()).clone()).await?;
    let broker = ScriptedBroker::that_confirms();
    // In every lane one event, so that each has its floor.
    let mut published = 0;
    for lane_wanted in 0..16 {
        let order = std::iter::repeat_with(Uuid::now_v7).find(|id| lane(*id) == lane_wanted).unwrap();
        outbox.append(order, 1).await?;
        published += 1;
    }
    let mut relay = relay(&pool, &broker, NEVER);
    let (start, _) = work(&pool).await?;
    assert_eq!(relay.step().await?, Step::Published(published), "the first look is a full one");
    let (full, _) = work(&pool).await?;
    assert_eq!(relay.step().await?, Step::Idle);
    let (ahead, _) = work(&pool).await?;
    let (full, ahead) = (full - start, ahead - full);
    assert!(
        full > 20_000,
        "a full look touched {full} pages: nothing was in its way, so this test shows nothing"
    );
    assert!(ahead < full / 4, "a look ahead touched {ahead} pages, a full one {full}");
    elsewhere.close().await?;
    Ok(())
}

#[tokio::test]
async fn an_event_that_commits_far_below_the_floor_waits_for_the_next_full_look_and_no_longer()
-> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    for (full_look, in_time) in [(NEVER, false), (Duration::from_millis(50), true)] {
        let order = Uuid::now_v7();
        let late = event(order, 1);
        let mut slow = outbox.pool.begin().await?;
        outbox::append(&mut slow, std::slice::from_ref(&late)).await?;
        outbox.burn(6000).await?;
        let same_lane = std::iter::repeat_with(Uuid::now_v7).find(|id| lane(*id) == lane(order)).unwrap();
        let early = outbox.append(same_lane, 1).await?;
        let broker = ScriptedBroker::that_confirms();
        let mut relay = outbox.relay_that_looks(&broker, full_look);
        assert_eq!(relay.step().await?, Step::Published(1));
        slow.commit().await?;
        if in_time {
            eventually("the next full look", Duration::from_secs(10), async || {
                Ok((relay.step().await? == Step::Published(1)).then_some(()))
            })
            .await?;
            assert_eq!(broker.seen(), [early, late.event_id]);
        } else {
            assert_eq!(relay.step().await?, Step::Idle, "there is no floor, so this test shows nothing");
            let another = ScriptedBroker::that_confirms();
            let mut fresh = outbox.relay_that_looks(&another, NEVER);
            assert_eq!(
                fresh.step().await?,
                Step::Published(1),
                "a relay that has just started sees everything"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn old_events_that_are_to_be_published_again_do_not_wait_for_a_full_look_each() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.history(3000, "1 day").await?;
    outbox.burn(6000).await?;
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay_that_looks(&broker, Duration::from_millis(500));
    outbox.append(Uuid::now_v7(), 1).await?;
    assert_eq!(relay.step().await?, Step::Published(1));
    sqlx::query("update outbox set published_at = null").execute(&outbox.pool).await?;
    let began = std::time::Instant::now();
    let mut published = 0;
    eventually("3,001 events to be published again", Duration::from_secs(20), async || {
        while let Step::Published(events) = relay.step().await? {
            published += events;
        }
        Ok((published >= 3001).then_some(()))
    })
    .await?;
    // Seven steps: with a wait for a full look before each it would take three seconds and more.
    assert!(began.elapsed() < Duration::from_secs(2), "it took {:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn an_event_with_an_unknown_outcome_stays_in_sight() -> anyhow::Result<()> {
    use events::transport::Outcome;
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    let unlucky = outbox.append(order, 1).await?;
    outbox.burn(6000).await?;
    let same_lane = std::iter::repeat_with(Uuid::now_v7).find(|id| lane(*id) == lane(order)).unwrap();
    let lucky = outbox.append(same_lane, 1).await?;
    let mut first_time = true;
    let broker = ScriptedBroker::that(move |message| {
        let unknown = message.id == unlucky && std::mem::take(&mut first_time);
        if unknown { Outcome::Unknown } else { Outcome::Confirmed }
    });
    let mut relay = outbox.relay_that_looks(&broker, NEVER);
    assert_eq!(relay.step().await?, Step::Published(1));
    assert_eq!(relay.step().await?, Step::Published(1), "the floor has passed an event that is still owed");
    assert_eq!(broker.seen(), [unlucky, lucky, unlucky]);
    Ok(())
}

#[tokio::test]
async fn an_event_does_not_overtake_an_older_one_that_only_a_full_look_can_find() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let victim = Uuid::now_v7();
    let first = outbox.append(victim, 1).await?;
    let broker = ScriptedBroker::that(move |message| {
        if message.id == first { Outcome::Refused(Refusal::Nacked) } else { Outcome::Confirmed }
    });
    let mut refused = outbox.relay_that_looks(&broker, Duration::ZERO);
    assert_eq!(refused.step().await?, Step::Stuck);

    // Its first look is a full one, while the event backs off. Then it publishes far ahead in the same lane.
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay_that_looks(&broker, NEVER);
    sqlx::query("update outbox set available_at = clock_timestamp() + interval '1 hour'")
        .execute(&outbox.pool)
        .await?;
    assert_eq!(relay.step().await?, Step::Idle);
    outbox.burn(20_000).await?;
    let ahead = (0..).map(|_| Uuid::now_v7()).find(|other| lane(*other) == lane(victim)).unwrap();
    outbox.append(ahead, 1).await?;
    assert_eq!(relay.step().await?, Step::Published(1));

    // The back-off ends, and there is a second event: it is in sight of this relay, and the first is not.
    let second = outbox.append(victim, 2).await?;
    sqlx::query("update outbox set available_at = clock_timestamp()").execute(&outbox.pool).await?;
    assert_eq!(relay.step().await?, Step::Idle, "the second event went ahead of the first");
    let mut everywhere = outbox.relay_that_looks(&broker, Duration::ZERO);
    assert_eq!(everywhere.step().await?, Step::Published(2));
    assert_eq!(broker.seen()[1..], [first, second]);
    Ok(())
}
