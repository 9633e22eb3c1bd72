//! A slow broker or a slow link to the database, and how long a step of the relay takes then. The simulation found the first
//! of these; this is the smallest version.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and end")]

use std::time::{Duration, SystemTime};

use messaging::{BrokerUnavailable, Outgoing, PublishOutcome, Publisher, Refusal};
use outbox::{Claim, ClaimedEvent, Error, OutboxTransaction, Relay, RelayOptions, Step, Store};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// `idle_in_transaction_session_timeout` in `shared/database/src/session_settings.rs`.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// To a database that is far away.
const ROUND_TRIP: Duration = Duration::from_secs(1);

/// An outbox with some events. It ends sessions that idle.
struct FewEvents(Vec<ClaimedEvent>);

struct Session<'store> {
    pending: &'store mut Vec<ClaimedEvent>,
    last_statement: Instant,
}

impl Store for FewEvents {
    type Transaction<'store> = Session<'store>;

    async fn claim(&mut self, _: u8, _: u16) -> Result<Claim<Session<'_>>, Error> {
        if self.0.is_empty() {
            return Ok(Claim::Idle);
        }
        let events = self.0.clone();
        let transaction = Session { pending: &mut self.0, last_statement: Instant::now() };
        Ok(Claim::Events { events, more: false, transaction })
    }
}

impl OutboxTransaction for Session<'_> {
    async fn try_write(&mut self, _: &ClaimedEvent) -> Result<(), Error> {
        Ok(())
    }

    async fn mark_refused(&mut self, refused: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        sleep(ROUND_TRIP).await;
        // They wait for their next attempt.
        self.pending.retain(|event| refused.iter().all(|(other, _)| other.seq != event.seq));
        Ok(())
    }

    async fn commit(self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        if self.last_statement.elapsed() > IDLE_LIMIT {
            return Err(Error::new(
                "failed to mark events as published",
                "terminating connection due to idle-in-transaction timeout",
            ));
        }
        self.pending.drain(..confirmed.len());
        Ok(())
    }
}

/// Confirms everything after a delay.
struct SlowPublisher(Duration);

impl Publisher for SlowPublisher {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        Ok(())
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        sleep(self.0).await;
        vec![PublishOutcome::Confirmed; batch.len()]
    }
}

/// A queue is full.
struct RefusingPublisher;

impl Publisher for RefusingPublisher {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        Ok(())
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        vec![PublishOutcome::Refused(Refusal::Nacked); batch.len()]
    }
}

fn event(aggregate_id: u128, seq: u128) -> ClaimedEvent {
    ClaimedEvent {
        seq: i64::try_from(seq).unwrap(),
        aggregate_id: Uuid::from_u128(aggregate_id),
        created_at: SystemTime::UNIX_EPOCH,
        refused_before: false,
        message: Outgoing {
            id: Uuid::from_u128(seq),
            event_type: String::new(),
            lane: 0,
            body: vec![],
            traceparent: None,
        },
    }
}

/// Found by watching a system whose link to the database was slow: a step took five minutes, and held its lanes.
#[tokio::test(start_paused = true)]
async fn relay_records_all_refusals_of_a_batch_in_one_round_trip() {
    let store = FewEvents((1..=300).map(|seq| event(seq, seq)).collect());
    let mut relay = Relay::over(store, RefusingPublisher, RelayOptions::default());
    let began = Instant::now();
    assert_eq!(relay.step().await.unwrap(), Step::NoneConfirmed);
    assert_eq!(began.elapsed(), ROUND_TRIP);
    assert_eq!(relay.step().await.unwrap(), Step::Idle);
}

#[tokio::test(start_paused = true)]
async fn relay_marks_confirmed_events_before_idle_limit_when_broker_is_slow() {
    for seconds in [1, 3, 9, 25] {
        let store = FewEvents((1..=40).map(|seq| event(1, seq)).collect());
        let publisher = SlowPublisher(Duration::from_secs(seconds));
        let mut relay = Relay::over(store, publisher, RelayOptions::default());
        let mut published = 0;
        while let Step::Published(count) | Step::PublishedAll(count) = relay.step().await.unwrap() {
            published += count;
        }
        assert_eq!(published, 40, "with a broker that takes {seconds} s for each wave");
    }
}
