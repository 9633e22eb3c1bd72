//! A batch that takes longer than the database lets its session idle, because the broker is slow and an aggregate has
//! many events: found by the simulation, kept here as small as it can be.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and end")]

use std::time::Duration;

use events::transport::{Away, Outcome, Outgoing, Publisher, Refusal};
use outbox::{
    Error, Relay, RelayOptions, Step,
    store::{Claimed, Hold, Reach, Store},
};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// What `shared/runtime` sets as `idle_in_transaction_session_timeout`.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// One aggregate's events, in an outbox that ends sessions that idle.
struct OneAggregate(Vec<Claimed>);

struct Session<'store> {
    owed: &'store mut Vec<Claimed>,
    marked: usize,
    last: Instant,
}

impl Store for OneAggregate {
    type Hold<'store> = Session<'store>;

    async fn reach(&mut self, _: i16, _: u8) -> Result<Reach<Session<'_>>, Error> {
        if self.0.is_empty() {
            return Ok(Reach::Idle);
        }
        Ok(Reach::Lanes(vec![0], Session { owed: &mut self.0, marked: 0, last: Instant::now() }))
    }
}

impl Hold for Session<'_> {
    async fn due(&mut self, _: &[i16], _: i64) -> Result<Vec<Claimed>, Error> {
        Ok(self.owed.clone())
    }

    async fn published(&mut self, confirmed: &[Claimed]) -> Result<(), Error> {
        if self.last.elapsed() > IDLE_LIMIT {
            return Err(Error::new(
                "cannot mark",
                "terminating connection due to idle-in-transaction timeout",
            ));
        }
        self.marked = confirmed.len();
        Ok(())
    }

    async fn refused(&mut self, _: &Claimed, _: Refusal) -> Result<(), Error> {
        Ok(())
    }

    async fn commit(self) -> Result<(), Error> {
        self.owed.drain(..self.marked);
        Ok(())
    }
}

/// Takes everything, and takes its time.
struct Slow(Duration);

impl Publisher for Slow {
    async fn ready(&mut self) -> Result<(), Away> {
        Ok(())
    }

    async fn publish(&mut self, batch: &[Outgoing]) -> Vec<Outcome> {
        sleep(self.0).await;
        vec![Outcome::Confirmed; batch.len()]
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_broker_and_a_long_history_do_not_cost_the_marks() {
    let aggregate_id = Uuid::from_u128(1);
    let event = |seq: u128| Claimed {
        seq: i64::try_from(seq).unwrap(),
        lane: 0,
        aggregate_id,
        message: Outgoing {
            id: Uuid::from_u128(seq),
            event_type: String::new(),
            body: vec![],
            traceparent: None,
        },
    };
    for seconds in [1, 3, 9, 25] {
        let store = OneAggregate((1..=40).map(event).collect());
        let mut relay = Relay::over(store, Slow(Duration::from_secs(seconds)), RelayOptions::default());
        let mut published = 0;
        while let Step::Published(more) = relay.step().await.unwrap() {
            published += more;
        }
        assert_eq!(published, 40, "with a broker that takes {seconds} s for each wave");
    }
}
