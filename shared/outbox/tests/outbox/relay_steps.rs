//! Single steps of the relay, with each outcome that a broker can return.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use events::lane;
use messaging::{
    Claim, ClaimedEvent, Error, MAX_NACKED_ATTEMPTS, OutboxTransaction, Outgoing, PublishOutcome,
    RETRY_SECONDS, Refusal, Relay, RelayOptions, RelayStatus, Step, Store, Wake,
};
use outbox::{PostgresStore, PostgresTransaction};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::eventually;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{
    DEADLINE, EventState, NEVER, Outbox, ScriptedBroker, advance_clock, aggregate_in_lane, event,
};

const ONE_ATTEMPT: EventState = EventState { published: false, attempts: 1, parked: false };

#[tokio::test]
async fn committed_events_are_published_once_and_in_order() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    let (first, second, third) =
        (outbox.append(order, 1).await?, outbox.append(order, 2).await?, outbox.append(order, 3).await?);
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay(&broker);
    assert_eq!(relay.step().await?, Step::PublishedAll(3));
    assert_eq!(relay.step().await?, Step::Idle);
    assert_eq!(broker.seen(), [first, second, third]);
    Ok(())
}

#[tokio::test]
async fn events_of_open_and_rolled_back_transactions_are_not_published() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let mut transaction = outbox.pool.begin().await?;
    outbox::append(&mut transaction, &[event(Uuid::now_v7(), 1)]).await?;
    let broker = ScriptedBroker::that_confirms();
    assert_eq!(outbox.relay(&broker).step().await?, Step::Idle, "published before the commit");
    transaction.rollback().await?;
    assert_eq!(outbox.relay(&broker).step().await?, Step::Idle, "published after the rollback");
    Ok(())
}

#[tokio::test]
async fn second_event_with_the_same_version_of_an_aggregate_is_rejected() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    outbox.append(order, 1).await?;
    assert!(outbox.append(order, 1).await.is_err());
    Ok(())
}

#[tokio::test]
async fn event_committed_late_is_not_skipped() -> anyhow::Result<()> {
    // The transaction that drew the lower `seq` commits last. A relay that used `seq` as a cursor would skip its event.
    let outbox = Outbox::new().await?;
    let late = event(Uuid::now_v7(), 1);
    let mut slow = outbox.pool.begin().await?;
    outbox::append(&mut slow, std::slice::from_ref(&late)).await?;
    let early = outbox.append(Uuid::now_v7(), 1).await?;
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay(&broker);
    assert_eq!(relay.step().await?, Step::PublishedAll(1));
    slow.commit().await?;
    assert_eq!(relay.step().await?, Step::PublishedAll(1));
    assert_eq!(broker.seen(), [early, late.event_id]);
    Ok(())
}

#[tokio::test]
async fn unavailable_broker_costs_no_attempts() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let id = outbox.append(Uuid::now_v7(), 1).await?;
    let broker = ScriptedBroker::that_confirms();
    broker.set_unavailable(true);
    let mut relay = outbox.relay(&broker);
    for _ in 0..20 {
        assert_eq!(relay.step().await?, Step::BrokerUnavailable);
    }
    assert_eq!(outbox.state(id).await?, EventState::PENDING);
    broker.set_unavailable(false);
    assert_eq!(relay.step().await?, Step::PublishedAll(1));
    Ok(())
}

#[tokio::test]
async fn unknown_outcome_is_retried_with_the_same_id_and_costs_no_attempt() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let id = outbox.append(Uuid::now_v7(), 1).await?;
    let mut outcomes = vec![PublishOutcome::Confirmed, PublishOutcome::Unknown, PublishOutcome::Unknown];
    let broker = ScriptedBroker::new(move |_| outcomes.pop().unwrap());
    let mut relay = outbox.relay(&broker);
    assert_eq!(relay.step().await?, Step::NoneConfirmed);
    assert_eq!(relay.step().await?, Step::NoneConfirmed);
    assert_eq!(outbox.state(id).await?, EventState::PENDING);
    assert_eq!(relay.step().await?, Step::PublishedAll(1));
    assert_eq!(broker.seen(), [id, id, id]);
    Ok(())
}

#[tokio::test]
async fn refused_event_delays_only_its_own_aggregate() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let (bad, good) = (Uuid::now_v7(), Uuid::now_v7());
    let first = outbox.append(bad, 1).await?;
    let second = outbox.append(bad, 2).await?;
    let other = outbox.append(good, 1).await?;
    let broker = ScriptedBroker::that_refuses(first, Refusal::Unroutable);
    let mut relay = outbox.relay(&broker);
    assert_eq!(relay.step().await?, Step::Published(1));
    assert_eq!(outbox.state(first).await?, ONE_ATTEMPT);
    assert_eq!(outbox.state(second).await?, EventState::PENDING, "it waits for the first");
    assert_eq!(outbox.state(other).await?, EventState { published: true, ..EventState::PENDING });
    assert!(!broker.seen().contains(&second), "the second event was sent before the first was confirmed");
    Ok(())
}

/// If the broker closes the channel over it, everything that is in flight with it is published again.
#[tokio::test]
async fn event_that_was_refused_before_is_sent_after_the_others_are_confirmed() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let aggregate = Uuid::now_v7();
    let bad = outbox.append(aggregate, 1).await?;
    let behind = outbox.append(aggregate, 2).await?;
    let mut attempts = 0;
    let broker = ScriptedBroker::new(move |message| {
        attempts += i32::from(message.id == bad);
        if message.id == bad && attempts == 1 {
            PublishOutcome::Refused(Refusal::Rejected)
        } else {
            PublishOutcome::Confirmed
        }
    });
    let mut relay = outbox.relay(&broker);
    assert_eq!(relay.step().await?, Step::Refused);
    let other = outbox.append(Uuid::now_v7(), 1).await?;
    outbox.end_back_off().await?;
    assert_eq!(relay.step().await?, Step::PublishedAll(3));
    assert_eq!(broker.seen(), [bad, other, bad, behind]);
    Ok(())
}

#[tokio::test]
async fn event_is_parked_after_its_last_attempt_and_others_go_on() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let bad = Uuid::now_v7();
    let first = outbox.append(bad, 1).await?;
    let second = outbox.append(bad, 2).await?;
    let broker = ScriptedBroker::that_refuses(first, Refusal::Unroutable);
    let mut relay = outbox.relay(&broker);
    let mut attempts = 0;
    while !outbox.state(first).await?.parked {
        outbox.end_back_off().await?;
        assert_eq!(relay.step().await?, Step::Refused);
        attempts += 1;
        assert!(attempts <= RETRY_SECONDS.len(), "the event is never parked");
    }
    assert_eq!(attempts, RETRY_SECONDS.len());
    let (reason,): (String,) = sqlx::query_as("select last_error from outbox where event_id = $1")
        .bind(first)
        .fetch_one(&outbox.pool)
        .await?;
    assert_eq!(reason, Refusal::Unroutable.to_string());
    assert_eq!(relay.step().await?, Step::Idle, "an event behind a parked one is not claimable");
    assert_eq!(outbox.state(second).await?, EventState::PENDING);
    let other = outbox.append(Uuid::now_v7(), 1).await?;
    assert_eq!(relay.step().await?, Step::PublishedAll(1));
    assert!(outbox.state(other).await?.published);
    Ok(())
}

#[tokio::test]
async fn waits_of_refused_events_are_spread_from_zero_to_their_limit() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let mut transaction = outbox.pool.begin().await?;
    let events: Vec<_> = (0..400).map(|_| event(Uuid::now_v7(), 1)).collect();
    outbox::append(&mut transaction, &events).await?;
    transaction.commit().await?;
    // Their next wait is at most five minutes long.
    sqlx::query("update outbox set attempts = 9").execute(&outbox.pool).await?;
    let broker = ScriptedBroker::new(|_| PublishOutcome::Refused(Refusal::Unroutable));
    let mut relay = outbox.relay(&broker);
    while broker.seen().len() < events.len() {
        assert_eq!(relay.step().await?, Step::Refused);
    }
    let waits: Vec<f64> = sqlx::query_scalar(
        "select extract(epoch from available_at - clock_timestamp())::float8 / 300 from outbox",
    )
    .fetch_all(&outbox.pool)
    .await?;
    assert!(waits.iter().all(|wait| *wait <= 1.0), "a wait is longer than its limit");
    for quarter in [0.0, 0.25, 0.5, 0.75] {
        let within = waits.iter().filter(|wait| (quarter..quarter + 0.25).contains(*wait)).count();
        // A hundred are expected. Fewer than forty would be seven standard deviations away.
        assert!(within > 40, "{within} of 400 waits are in the quarter from {quarter}");
    }
    Ok(())
}

#[tokio::test]
async fn event_that_a_full_queue_refuses_is_never_parked_and_keeps_attempts() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let id = outbox.append(Uuid::now_v7(), 1).await?;
    let full = Arc::new(AtomicBool::new(true));
    let is_full = full.clone();
    let broker = ScriptedBroker::new(move |_| {
        if is_full.load(Ordering::SeqCst) {
            PublishOutcome::Refused(Refusal::Nacked)
        } else {
            PublishOutcome::Confirmed
        }
    });
    let mut relay = outbox.relay(&broker);
    for number in 1..=3 * RETRY_SECONDS.len() {
        outbox.end_back_off().await?;
        assert_eq!(relay.step().await?, Step::NoneConfirmed);
        let (attempts, wait): (i16, f64) = sqlx::query_as(
            "select attempts, extract(epoch from available_at - clock_timestamp())::float8 from outbox",
        )
        .fetch_one(&outbox.pool)
        .await?;
        assert_eq!(usize::try_from(attempts)?, number.min(MAX_NACKED_ATTEMPTS.into()));
        assert!(wait <= 60.0, "attempt {number} waits {wait} s");
        assert!(!outbox.state(id).await?.parked, "attempt {number}");
    }
    full.store(false, Ordering::SeqCst);
    outbox.end_back_off().await?;
    assert_eq!(relay.step().await?, Step::PublishedAll(1));
    Ok(())
}

/// If each search began at the same lane, busy lanes would keep a relay from all others forever.
#[tokio::test]
async fn lanes_take_turns_and_a_step_publishes_no_more_than_its_batch() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    for lane in (0..16).cycle().take(4 * 16) {
        outbox.append(aggregate_in_lane(lane), 1).await?;
    }
    let options = RelayOptions { batch: 6, lanes: 2, ..RelayOptions::default() };
    let mut relay = outbox::relay(outbox.pool.clone(), ScriptedBroker::that_confirms(), options);
    for _ in 0..8 {
        assert_eq!(relay.step().await?, Step::Published(6), "three events of each of two lanes");
    }
    let left: Vec<i64> =
        sqlx::query_scalar("select count(*) from outbox where published_at is null group by lane")
            .fetch_all(&outbox.pool)
            .await?;
    assert_eq!(left, [1; 16]);
    for _ in 0..7 {
        assert_eq!(relay.step().await?, Step::Published(2), "other lanes have events");
    }
    assert_eq!(relay.step().await?, Step::PublishedAll(2));
    Ok(())
}

/// After [`Step::PublishedAll`] a relay sleeps.
#[tokio::test]
async fn step_that_leaves_events_of_its_lane_says_so() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    for _ in 0..3 {
        outbox.append(aggregate_in_lane(5), 1).await?;
    }
    let options = RelayOptions { batch: 2, ..RelayOptions::default() };
    let mut relay = outbox::relay(outbox.pool.clone(), ScriptedBroker::that_confirms(), options);
    assert_eq!(relay.step().await?, Step::Published(2));
    assert_eq!(relay.step().await?, Step::PublishedAll(1));
    Ok(())
}

/// PostgreSQL ends a transaction that idles for long. Its marks would be lost, and the same events published again forever.
#[tokio::test]
async fn step_that_has_taken_long_begins_no_further_wave() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    let first = outbox.append(order, 1).await?;
    outbox.append(order, 2).await?;
    let broker = ScriptedBroker::that_confirms();
    let hold = broker.hold();
    let mut relay = outbox.relay(&broker);
    let publishing = tokio::spawn(async move { (relay.step().await, relay) });
    hold.started().await?;
    advance_clock(Duration::from_secs(5)).await;
    hold.release();
    let (step, mut relay) = publishing.await?;
    assert_eq!(step?, Step::Published(1));
    assert_eq!(broker.seen(), [first]);
    assert_eq!(relay.step().await?, Step::PublishedAll(1));
    Ok(())
}

/// With a statement for each, a full queue and a link to the database that took 0.7 s there and back held the lanes for five
/// minutes.
#[tokio::test]
async fn refusals_of_a_wave_are_recorded_in_one_statement() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    for lane in 0..8 {
        outbox.append(aggregate_in_lane(lane), 1).await?;
    }
    let full = ScriptedBroker::new(|_| PublishOutcome::Refused(Refusal::Nacked));
    assert_eq!(outbox.relay(&full).step().await?, Step::NoneConfirmed);
    // `cmin` numbers the statements of the transaction that wrote a row.
    let (refused, statements): (i64, i64) =
        sqlx::query_as("select count(*), count(distinct cmin::text) from outbox where attempts = 1")
            .fetch_one(&outbox.pool)
            .await?;
    assert_eq!((refused, statements), (8, 1));
    Ok(())
}

/// A store whose lanes are all held by another relay. It stops the relay at the hundredth scan.
struct BusyStore(usize, CancellationToken);

impl Store for BusyStore {
    type Transaction<'store> = PostgresTransaction<'store>;

    async fn claim(&mut self, _: u8, _: u16) -> Result<Claim<PostgresTransaction<'_>>, Error> {
        self.0 += 1;
        if self.0 == 100 {
            self.1.cancel();
        }
        Ok(Claim::Busy)
    }
}

/// The other relay may be frozen for half a minute.
#[tokio::test(start_paused = true)]
async fn relay_scans_locked_lanes_less_and_less_often() {
    let (stop, began) = (CancellationToken::new(), Instant::now());
    let store = BusyStore(0, stop.clone());
    let relay = Relay::new(store, ScriptedBroker::that_confirms(), RelayOptions::default());
    relay.run(Wake::new(), stop).await;
    // From 2 ms on, twice as long each time, up to 50 ms.
    let took = began.elapsed();
    assert!((4500..5000).contains(&took.as_millis()), "a hundred scans in {took:?}");
}

/// A store with one event. It records how long its relay was at work, and stops it then.
struct OneEventStore {
    event: Option<ClaimedEvent>,
    worked: Arc<Mutex<Option<Duration>>>,
    stop: CancellationToken,
}

struct OneEventTransaction;

impl Store for OneEventStore {
    type Transaction<'store> = OneEventTransaction;

    async fn claim(&mut self, _: u8, _: u16) -> Result<Claim<OneEventTransaction>, Error> {
        Ok(match self.event.take() {
            Some(event) => {
                Claim::Events { events: vec![event], more: false, transaction: OneEventTransaction }
            }
            None => Claim::Idle,
        })
    }

    async fn wait(&mut self, _: &Wake, worked: Duration, _: Duration) {
        *self.worked.lock().unwrap() = Some(worked);
        self.stop.cancel();
    }
}

impl OutboxTransaction for OneEventTransaction {
    async fn try_write(&mut self, _: &[ClaimedEvent]) -> Result<(), Error> {
        Ok(())
    }

    async fn mark_refused(&mut self, _: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        Ok(())
    }

    async fn commit(self, _: &[ClaimedEvent]) -> Result<(), Error> {
        Ok(())
    }
}

/// Relays pause for as long as they were at work. With the broker's time in it, events were twice as late behind a slow one.
#[tokio::test(start_paused = true)]
async fn relay_does_not_count_its_wait_for_the_broker_as_work() -> anyhow::Result<()> {
    let message = Outgoing {
        id: Uuid::now_v7(),
        event_type: "OrderCreated".into(),
        lane: 0,
        body: vec![],
        traceparent: None,
    };
    let event = ClaimedEvent {
        seq: 1,
        aggregate_id: Uuid::now_v7(),
        created_at: SystemTime::now(),
        refused_before: false,
        message,
    };
    let (stop, worked) = (CancellationToken::new(), Arc::<Mutex<_>>::default());
    let store = OneEventStore { event: Some(event), worked: worked.clone(), stop: stop.clone() };
    let broker = ScriptedBroker::that_confirms();
    let hold = broker.hold();
    let relaying = tokio::spawn(Relay::new(store, broker, RelayOptions::default()).run(Wake::new(), stop));
    hold.started().await?;
    sleep(Duration::from_secs(5)).await;
    hold.release();
    relaying.await?;
    assert_eq!(*worked.lock().unwrap(), Some(Duration::ZERO));
    Ok(())
}

#[tokio::test]
async fn two_relays_never_publish_the_same_aggregate_at_once() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    outbox.append(order, 1).await?;
    let slow = ScriptedBroker::that_confirms();
    let hold = slow.hold();
    let mut first = outbox.relay(&slow);
    let publishing = tokio::spawn(async move { first.step().await });
    hold.started().await?;

    // While the first relay publishes event 1: a second event of that order, and one of an order in another lane.
    outbox.append(order, 2).await?;
    let other = outbox.append(aggregate_in_lane((lane(order) + 1) % 16), 1).await?;
    let quick = ScriptedBroker::that_confirms();
    let mut second = outbox.relay(&quick);
    assert_eq!(second.step().await?, Step::Published(1), "the other lane is free, and one is not");
    assert_eq!(quick.seen(), [other]);
    assert_eq!(second.step().await?, Step::Busy, "the order's lane is locked");

    hold.release();
    assert_eq!(publishing.await??, Step::PublishedAll(1));
    assert_eq!(second.step().await?, Step::PublishedAll(1));
    Ok(())
}

#[tokio::test]
async fn relay_republishes_after_crash_between_confirm_and_mark() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let id = outbox.append(Uuid::now_v7(), 1).await?;
    let broker = ScriptedBroker::that_confirms();
    let first_hold = broker.hold();
    let mut first = outbox.relay(&broker);
    let first_step = tokio::spawn(async move { first.step().await });
    first_hold.started().await?;
    // PostgreSQL ends the session of a process that died, or that was frozen for too long. The test does the same, and
    // waits until the session has ended.
    let sql = "select count(*) filter (where pg_terminate_backend(pid, 20000)) from pg_stat_activity
               where state = 'idle in transaction' and datname = current_database()";
    assert_eq!(sqlx::query_scalar::<_, i64>(sql).fetch_one(&outbox.pool).await?, 1);

    // Its lanes are free: another relay publishes the event.
    let second_hold = broker.hold();
    let mut second = outbox.relay(&broker);
    let second_step = tokio::spawn(async move { second.step().await });
    second_hold.started().await?;
    // The first relay gets its confirm too late: its transaction has ended, and its mark fails.
    first_hold.release();
    assert!(first_step.await?.is_err(), "a relay without locks has marked an event");
    assert_eq!(outbox.state(id).await?, EventState::PENDING);
    second_hold.release();
    assert_eq!(second_step.await??, Step::PublishedAll(1));
    assert_eq!(broker.seen(), [id, id], "both copies have the same id");
    Ok(())
}

#[tokio::test]
async fn event_is_not_overtaken_when_a_back_off_ends_during_a_scan() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    let claimable = outbox.append(aggregate_in_lane(lane(order)), 1).await?;
    let first = outbox.append(order, 1).await?;
    // Other events that back off make the scan from the first event to the second one long.
    // A pool ends a statement after ten seconds, which a busy machine may need for so many.
    let mut session = PgConnection::connect(&outbox.url()).await?;
    let sql = "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                   schema_version, payload, lane, attempts, available_at)
               select gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderCreated', 1, '{}', $1, 1,
                      now() + interval '5 minutes'
               from generate_series(1, 60000)";
    sqlx::query(sql).bind(lane(order)).execute(&mut session).await?;
    let second = outbox.append(order, 2).await?;
    sqlx::query("vacuum analyze outbox").execute(&mut session).await?;

    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay_with_full_scan(&broker, Duration::ZERO);
    let ids = [claimable, first, second];
    // The first event's back-off ends at 50 different moments, some of them between the two checks of one scan.
    for number in 0..50 {
        let sql = "update outbox set published_at = null where event_id = any($1)";
        sqlx::query(sql).bind(ids).execute(&outbox.pool).await?;
        let sql = "update outbox set attempts = 1,
                       available_at = clock_timestamp() + $2 * interval '3 milliseconds' where event_id = $1";
        sqlx::query(sql).bind(first).bind(number).execute(&outbox.pool).await?;
        let before = broker.seen().len();
        let step = relay.step().await?;
        let seen = broker.seen().split_off(before);
        assert!(seen == [claimable] || seen == ids, "{number}: {step:?}, {seen:?} of {ids:?}");
    }
    Ok(())
}

/// A full disk lets a relay lock its lanes, and refuses its marks.
#[tokio::test]
async fn failed_marks_publish_nothing_again_before_a_write_succeeds() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let id = outbox.append(Uuid::now_v7(), 1).await?;
    sqlx::raw_sql(
        "create function full_disk() returns trigger language plpgsql as
             $$begin raise exception 'could not extend file' using errcode = '53100'; end$$;
         create trigger full_disk before update of published_at on outbox
             for each row execute function full_disk();",
    )
    .execute(&outbox.pool)
    .await?;
    let broker = ScriptedBroker::new(|_| PublishOutcome::Confirmed);
    let mut relay = outbox::relay(outbox.relay_pool(), broker.clone(), RelayOptions::default());
    for _ in 0..5 {
        assert!(relay.step().await.is_err());
    }
    assert_eq!(broker.seen(), [id], "copies of an event whose mark failed");
    sqlx::raw_sql("drop trigger full_disk on outbox").execute(&outbox.pool).await?;
    assert_eq!(relay.step().await?, Step::PublishedAll(1));
    assert_eq!(broker.seen(), [id, id]);
    Ok(())
}

/// Makes every update of one column of this event's row fail.
async fn poison(outbox: &Outbox, column: &str, event: Uuid) -> anyhow::Result<()> {
    let sql = format!(
        "create function poison() returns trigger language plpgsql as
             $$ begin raise exception 'this row cannot be updated'; end $$;
         create trigger poison before update of {column} on outbox
             for each row when (new.event_id = '{event}') execute function poison()"
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&outbox.pool).await?;
    Ok(())
}

/// Makes what is held back claimable.
async fn end_holds(outbox: &Outbox) -> anyhow::Result<()> {
    sqlx::query("update outbox_held_back set available_at = clock_timestamp()").execute(&outbox.pool).await?;
    Ok(())
}

/// Without parts, its whole batch would be published again and again, and never marked.
#[tokio::test]
async fn event_whose_mark_fails_is_held_back_alone_and_the_others_are_marked() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let mut events = vec![];
    for _ in 0..20 {
        events.push(outbox.append(Uuid::now_v7(), 1).await?);
    }
    let aggregate = Uuid::now_v7();
    let bad = outbox.append(aggregate, 1).await?;
    let behind = outbox.append(aggregate, 2).await?;
    poison(&outbox, "published_at", bad).await?;
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox::relay(
        outbox.relay_pool(),
        broker.clone(),
        RelayOptions { lanes: 16, ..RelayOptions::default() },
    );
    relay.step().await?;
    for event in &events {
        assert!(outbox.state(*event).await?.published);
    }
    let copies = |of: Uuid| broker.seen().iter().filter(|event| **event == of).count();
    assert!(
        events.iter().all(|event| copies(*event) == 1),
        "an event was published again beside the bad one"
    );
    for attempt in 1..=RETRY_SECONDS.len() {
        assert_eq!(copies(bad), attempt);
        end_holds(&outbox).await?;
        relay.step().await?;
    }
    // Its successor was in its first batch.
    assert!(
        copies(bad) == RETRY_SECONDS.len() && copies(behind) <= 1,
        "{} and {}",
        copies(bad),
        copies(behind)
    );
    let (reason, parked): (String, bool) =
        sqlx::query_as("select reason, parked_at is not null from outbox_held_back")
            .fetch_one(&outbox.pool)
            .await?;
    assert!(parked && reason.contains("this row cannot be updated"), "{parked}, {reason}");

    sqlx::raw_sql("drop trigger poison on outbox; delete from outbox_held_back")
        .execute(&outbox.pool)
        .await?;
    relay.step().await?;
    assert!(outbox.state(bad).await?.published && outbox.state(behind).await?.published);
    Ok(())
}

/// A trigger or a constraint that refuses every mark would in the end park the whole outbox.
#[tokio::test]
async fn marks_that_all_fail_hold_no_event_back_and_publish_none_again() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let mut events = vec![];
    for _ in 0..20 {
        events.push(outbox.append(Uuid::now_v7(), 1).await?);
    }
    let refuse = "create function refuse() returns trigger language plpgsql as $$ begin raise 'no marks'; end $$;
                  create trigger refuse before update of published_at on outbox for each row execute function refuse()";
    sqlx::raw_sql(refuse).execute(&outbox.pool).await?;
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox::relay(
        outbox.relay_pool(),
        broker.clone(),
        RelayOptions { lanes: 16, ..RelayOptions::default() },
    );
    for _ in 0..3 {
        assert!(relay.step().await.is_err());
    }
    assert_eq!(broker.seen().len(), events.len(), "published once");
    let held: i64 =
        sqlx::query_scalar("select count(*) from outbox_held_back").fetch_one(&outbox.pool).await?;
    assert_eq!(held, 0);
    sqlx::raw_sql("drop trigger refuse on outbox").execute(&outbox.pool).await?;
    relay.step().await?;
    for event in events {
        assert!(outbox.state(event).await?.published);
    }
    Ok(())
}

#[tokio::test]
async fn event_whose_refusal_cannot_be_recorded_is_held_back_alone() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let good = outbox.append(Uuid::now_v7(), 1).await?;
    let unwanted = outbox.append(Uuid::now_v7(), 1).await?;
    let bad = outbox.append(Uuid::now_v7(), 1).await?;
    poison(&outbox, "attempts", bad).await?;
    let broker = ScriptedBroker::new(move |message| match message.id == good {
        true => PublishOutcome::Confirmed,
        false => PublishOutcome::Refused(Refusal::Unroutable),
    });
    let mut relay = outbox.relay(&broker);
    relay.step().await?;
    assert!(outbox.state(good).await?.published);
    assert_eq!(outbox.state(unwanted).await?, ONE_ATTEMPT);
    let held: Vec<Uuid> = sqlx::query_scalar("select event_id from outbox join outbox_held_back using (seq)")
        .fetch_all(&outbox.pool)
        .await?;
    assert_eq!(held, [bad]);
    Ok(())
}

/// The first event of a batch may be the one whose mark fails: that does not look like a full disk.
#[tokio::test]
async fn event_that_cannot_be_written_does_not_stop_the_relay_after_failed_marks() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let bad = outbox.append(Uuid::now_v7(), 1).await?;
    let good = outbox.append(Uuid::now_v7(), 1).await?;
    poison(&outbox, "published_at", bad).await?;
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay(&broker);
    let full = "create function full_disk() returns trigger language plpgsql as
                    $$begin raise exception 'could not extend file' using errcode = '53100'; end$$;
                create trigger full_disk before update of published_at on outbox
                    for each row execute function full_disk()";
    sqlx::raw_sql(full).execute(&outbox.pool).await?;
    assert!(relay.step().await.is_err());
    sqlx::raw_sql("drop trigger full_disk on outbox").execute(&outbox.pool).await?;
    relay.step().await?;
    assert!(outbox.state(good).await?.published);
    Ok(())
}

/// As one whose value is corrupt. `outbox_claimable` fails when the payload of this event is read. It is the second event of its
/// aggregate, and the first one is not published yet.
#[tokio::test]
async fn event_that_cannot_be_read_is_held_back_and_the_others_are_published() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let aggregate = Uuid::now_v7();
    let (good, bad) = (outbox.append(aggregate, 1).await?, outbox.append(aggregate, 2).await?);
    let columns: String = sqlx::query_scalar(
        "select string_agg(case attname when 'payload' then 'readable(event)' else attname end, ', ' order by attnum)
         from pg_attribute where attrelid = 'outbox'::regclass and attnum > 0 and not attisdropped",
    )
    .fetch_one(&outbox.pool)
    .await?;
    let sql = format!(
        "create function readable(event outbox) returns json language plpgsql stable as $$ begin
             if event.event_id = '{bad}' then raise exception 'missing chunk' using errcode = 'XX001'; end if;
             return event.payload;
         end $$;
         alter function outbox_claimable rename to outbox_claimable_at_all;
         create function outbox_claimable(in_lane smallint, scan_from bigint) returns setof outbox language sql stable
             as $$ select {columns} from outbox_claimable_at_all(in_lane, scan_from) event $$"
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&outbox.pool).await?;
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay(&broker);
    assert!(relay.step().await.is_err(), "nothing of this batch could be read");
    assert_eq!(relay.step().await?, Step::PublishedAll(1));
    assert_eq!(broker.seen(), [good]);
    let reason: String =
        sqlx::query_scalar("select reason from outbox_held_back").fetch_one(&outbox.pool).await?;
    assert_eq!(reason, "missing chunk");
    Ok(())
}

#[tokio::test]
async fn status_says_why_no_step_succeeds() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    sqlx::query("alter table outbox_lanes rename to lanes").execute(&outbox.pool).await?;
    let (status, stop) = (RelayStatus::default(), CancellationToken::new());
    let relay = outbox.relay(&ScriptedBroker::that_confirms()).with_status(status.clone());
    tokio::spawn(relay.run(Wake::new(), stop.clone()));
    let _stop = stop.drop_guard();
    eventually("the status to say why", DEADLINE, async || {
        Ok(status.state().is_err_and(|reason| reason.contains("outbox_lanes")).then_some(()))
    })
    .await?;
    sqlx::query("alter table lanes rename to outbox_lanes").execute(&outbox.pool).await?;
    eventually("the status to be good", DEADLINE, async || Ok(status.state().ok())).await
}

#[tokio::test]
async fn events_that_no_queue_wants_do_not_hold_back_the_others() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let mut transaction = outbox.pool.begin().await?;
    let unwanted: Vec<_> = (0..20_000).map(|_| event(Uuid::now_v7(), 1)).collect();
    for events in unwanted.chunks(1_000) {
        outbox::append(&mut transaction, events).await?;
    }
    transaction.commit().await?;
    let good = outbox.append(Uuid::now_v7(), 1).await?;
    let broker = ScriptedBroker::new(move |message| {
        if message.id == good {
            PublishOutcome::Confirmed
        } else {
            PublishOutcome::Refused(Refusal::Unroutable)
        }
    });
    let mut relay = outbox.relay(&broker);
    // Each of them is tried once before the good one's turn comes, and few of them again in the meantime.
    let mut steps = 0;
    while !outbox.state(good).await?.published {
        let step = relay.step().await?;
        assert!(matches!(step, Step::Refused | Step::Published(_) | Step::PublishedAll(_)), "{step:?}");
        steps += 1;
        assert!(steps < 400, "the good event still waits after {steps} steps");
    }
    Ok(())
}

/// `outbox_claimable`, which waits while another session holds the gate: an advisory lock.
const GATED: &str = "
    create function gate() returns boolean language sql volatile as $$
        select pg_advisory_xact_lock_shared(1)::text is not null
    $$;
    alter function outbox_claimable rename to outbox_claimable_at_once;
    create function outbox_claimable(in_lane smallint, scan_from bigint) returns setof outbox language sql stable as $$
        select event.* from outbox_claimable_at_once(in_lane, scan_from) event where (select gate())
    $$";

/// What a claim reads must be younger than its locks. Otherwise it returns what the last holder of a lane has just
/// published, or overtakes what that has just refused.
#[tokio::test]
async fn claim_returns_nothing_that_was_published_or_refused_between_its_scan_and_its_lock()
-> anyhow::Result<()> {
    for refused in [false, true] {
        let outbox = Outbox::new().await?;
        let order = Uuid::now_v7();
        let first = outbox.append(order, 1).await?;
        let mut one = PostgresStore::new(outbox.relay_pool(), NEVER);
        let Claim::Events { events, mut transaction, .. } = one.claim(16, 500).await? else {
            anyhow::bail!("nothing was claimed")
        };
        outbox.append(order, 2).await?;

        let mut gate = PgConnection::connect(&outbox.url()).await?;
        sqlx::raw_sql(GATED).execute(&mut gate).await?;
        sqlx::raw_sql("select pg_advisory_lock(1)").execute(&mut gate).await?;
        let pool = outbox.relay_pool();
        let other = tokio::spawn(async move {
            match PostgresStore::new(pool, NEVER).claim(16, 500).await? {
                Claim::Events { events, .. } => Ok(events),
                Claim::Busy | Claim::Idle => Ok::<_, messaging::Error>(vec![]),
            }
        });
        eventually("the other claim to wait in its scan", DEADLINE, async || {
            let waits = "select from pg_locks where locktype = 'advisory' and not granted
                           and database = (select oid from pg_database where datname = current_database())";
            Ok(sqlx::query(waits).fetch_optional(&outbox.pool).await?.map(drop))
        })
        .await?;
        if refused {
            let refused: Vec<_> = events.into_iter().map(|event| (event, Refusal::Unroutable)).collect();
            transaction.mark_refused(&refused).await?;
            transaction.commit(&[]).await?;
            let wait = "update outbox set available_at = clock_timestamp() + interval '1 minute' where event_id = $1";
            sqlx::query(wait).bind(first).execute(&outbox.pool).await?;
        } else {
            transaction.commit(&events).await?;
        }
        sqlx::raw_sql("select pg_advisory_unlock(1)").execute(&mut gate).await?;
        let claimed: Vec<_> = other.await??.into_iter().map(|event| event.message.id).collect();
        assert!(!claimed.contains(&first), "refused: {refused}: the first event was claimed again");
        if refused {
            assert!(claimed.is_empty(), "the second event overtook the first");
        }
    }
    Ok(())
}
