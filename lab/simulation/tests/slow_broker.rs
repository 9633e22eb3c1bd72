//! A batch that takes longer than the database's idle limit, because the broker is slow and an aggregate has many
//! events. The simulation found it; this is the smallest version.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and end")]

use std::time::{Duration, SystemTime};

use messaging::{BrokerUnavailable, Outgoing, PublishOutcome, Publisher, Refusal};
use outbox::{
    Error, Relay, RelayOptions, Step,
    store::{ClaimResult, ClaimedEvent, OutboxTransaction, Store},
};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// `idle_in_transaction_session_timeout` in `shared/database/src/pool.rs`.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// An outbox with the events of one aggregate. It ends sessions that idle.
struct OneAggregate(Vec<ClaimedEvent>);

struct Session<'store> {
    pending: &'store mut Vec<ClaimedEvent>,
    marked: usize,
    last_statement: Instant,
}

impl Store for OneAggregate {
    type Transaction<'store> = Session<'store>;

    async fn claim_lanes(&mut self, _: i16, _: u8) -> Result<ClaimResult<Session<'_>>, Error> {
        if self.0.is_empty() {
            return Ok(ClaimResult::Idle);
        }
        let session = Session { pending: &mut self.0, marked: 0, last_statement: Instant::now() };
        Ok(ClaimResult::Lanes { lanes: vec![0], others: false, transaction: session })
    }
}

impl OutboxTransaction for Session<'_> {
    async fn claimable(&mut self, _: &[i16], _: i64) -> Result<Vec<ClaimedEvent>, Error> {
        Ok(self.pending.clone())
    }

    async fn mark_published(&mut self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        if self.last_statement.elapsed() > IDLE_LIMIT {
            return Err(Error::new(
                "failed to mark events as published",
                "terminating connection due to idle-in-transaction timeout",
            ));
        }
        self.marked = confirmed.len();
        Ok(())
    }

    async fn mark_refused(&mut self, _: &ClaimedEvent, _: Refusal) -> Result<(), Error> {
        Ok(())
    }

    async fn commit(self) -> Result<(), Error> {
        self.pending.drain(..self.marked);
        Ok(())
    }
}

/// Confirms everything after a delay.
struct SlowPublisher(Duration);

impl Publisher for SlowPublisher {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        Ok(())
    }

    async fn publish(&mut self, batch: &[Outgoing]) -> Vec<PublishOutcome> {
        sleep(self.0).await;
        vec![PublishOutcome::Confirmed; batch.len()]
    }
}

#[tokio::test(start_paused = true)]
async fn relay_marks_confirmed_events_before_idle_limit_when_broker_is_slow() {
    let aggregate_id = Uuid::from_u128(1);
    let event = |seq: u128| ClaimedEvent {
        seq: i64::try_from(seq).unwrap(),
        lane: 0,
        aggregate_id,
        created_at: SystemTime::UNIX_EPOCH,
        message: Outgoing {
            id: Uuid::from_u128(seq),
            event_type: String::new(),
            body: vec![],
            traceparent: None,
        },
    };
    for seconds in [1, 3, 9, 25] {
        let store = OneAggregate((1..=40).map(event).collect());
        let publisher = SlowPublisher(Duration::from_secs(seconds));
        let mut relay = Relay::over(store, publisher, RelayOptions::default());
        let mut published = 0;
        while let Step::Published(count) | Step::PublishedAll(count) = relay.step().await.unwrap() {
            published += count;
        }
        assert_eq!(published, 40, "with a broker that takes {seconds} s for each wave");
    }
}
