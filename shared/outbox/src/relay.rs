use std::{collections::HashSet, time::Duration};

use events::{
    Backoff, LANES,
    transport::{Outcome, Publisher},
};
use faults::{Point, Sabotage};
use sqlx::PgPool;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    Error, PostgresStore, Wake,
    store::{Claimed, Hold, Reach, Store},
};

/// How much a relay takes in hand, and how long it waits.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// The most events that one step publishes, 1 to 10,000. Confirms are pipelined within a step: from 100 on a
    /// quorum queue gives most of its throughput, and past 1,000 only memory and the harm of a crash grow.
    pub batch: u16,
    /// How long to sleep at most when nothing wakes the relay. This is the safety net: with every wake-up lost, it is
    /// the price, and nothing else changes.
    pub poll: Duration,
    /// The most lanes that one step locks, 1 to 16: fewer leave more for other relays.
    pub lanes: u8,
    /// How often a relay looks at everything that is owed, and not only ahead of what it has published: the longest
    /// that an event whose transaction committed very late has to wait, unless full looks take long. See `floor.rs`.
    pub full_look: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self { batch: 500, poll: Duration::from_secs(1), lanes: 8, full_look: Duration::from_secs(3) }
    }
}

/// What one step of the relay came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many events were published and marked. There may be more.
    Published(usize),
    /// Events were claimed, and the broker confirmed none of them.
    Stuck,
    /// Nothing is due.
    Idle,
    /// Something is, or was just now, in the hands of another relay.
    Busy,
    /// The broker is away. Nothing was claimed; no attempt was burnt.
    BrokerAway,
}

/// When lanes with work were locked by another relay: how soon to look again. Its step takes milliseconds, as a rule; if
/// it is frozen, or its broker is slow, asking ever less often keeps the others from asking a thousand times a second.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
const LOOK_AGAIN_AT_LEAST: Duration = Duration::from_millis(100);

/// When no further wave of a batch is begun. The relay's transaction idles while a wave is published, and PostgreSQL ends
/// it after 30 s; a wave takes up to the confirm deadline, which is 20 s at most. Without this limit a broker that
/// takes a few seconds for each wave would have every long batch cut off before its marks, again and again, and the
/// same events published for ever. With it, what was confirmed is marked, and the rest is claimed anew.
const LAST_WAVE: Duration = Duration::from_secs(4);

/// Back-off while the broker or the database is away: short enough that a broker that is back is used within seconds,
/// long enough that it is not hammered while it starts.
const AWAY_FIRST: Duration = Duration::from_millis(100);
const AWAY_LONGEST: Duration = Duration::from_secs(2);

/// Publishes what an outbox owes. Any number of them may work on one outbox, in one process or many.
pub struct Relay<P, S = PostgresStore> {
    store: S,
    publisher: P,
    options: RelayOptions,
    /// The lane at which the next search begins.
    start: i16,
}

impl<P: Publisher> Relay<P> {
    /// A relay over the outbox in the pool's schema.
    pub fn new(pool: PgPool, publisher: P, options: RelayOptions) -> Self {
        Self::over(PostgresStore::new(pool, options.full_look), publisher, options)
    }
}

impl<P: Publisher, S: Store> Relay<P, S> {
    /// A relay over any outbox.
    pub fn over(store: S, publisher: P, options: RelayOptions) -> Self {
        Self { store, publisher, options, start: fastrand::i16(0..LANES) }
    }

    /// One short transaction: lock lanes, read what is due in them, publish it, mark what was confirmed, commit.
    ///
    /// The order of these is the whole point. *Publish, then mark*: a crash in between publishes again, and consumers
    /// drop the copy; the other way round it would lose the event. *The lock outlives the publishing*: while this
    /// transaction is open nobody else can touch these aggregates, whatever becomes of this process. A frozen one is
    /// cut off by the database after a while; the confirm deadline has to be, and is, shorter than that.
    ///
    /// # Errors
    /// When the database fails. Nothing is lost then: what was published but not marked is published again.
    pub async fn step(&mut self) -> Result<Step, Error> {
        if self.publisher.ready().await.is_err() {
            return Ok(Step::BrokerAway);
        }
        let (lanes, mut hold) = match self.store.reach(self.start, self.options.lanes).await? {
            Reach::Lanes(lanes, hold) => (lanes, hold),
            Reach::Busy => return Ok(Step::Busy),
            Reach::Idle => return Ok(Step::Idle),
        };
        // Take turns: the next search begins behind the last lane of this one.
        self.start = lanes.last().map_or(0, |lane| (lane + 1) % LANES);

        let began = Instant::now();
        let lanes_held = i64::try_from(lanes.len()).unwrap_or(1);
        let per_lane = (i64::from(self.options.batch) / lanes_held).max(1);
        let claimed = hold.due(&lanes, per_lane).await?;
        if claimed.is_empty() {
            // Another relay published these between our look and our lock, and is done with the lanes.
            return Ok(Step::Busy);
        }
        faults::reach(Point::RelayClaimed);
        #[cfg(feature = "drill")]
        if faults::sabotaged(Sabotage::MarkBeforeConfirm) {
            hold.published(&claimed).await?;
            hold.commit().await?;
            faults::reach(Point::RelayCommitted);
            let messages: Vec<_> = claimed.into_iter().map(|event| event.message).collect();
            self.publisher.publish(&messages).await;
            return Ok(Step::Published(messages.len()));
        }
        let confirmed = publish(&mut self.publisher, &mut hold, claimed, began).await?;
        faults::reach(Point::RelayConfirmed);
        if !confirmed.is_empty() {
            hold.published(&confirmed).await?;
        }
        faults::reach(Point::RelayMarked);
        hold.commit().await?;
        faults::reach(Point::RelayCommitted);
        metrics::histogram!("outbox_batch_seconds").record(began.elapsed().as_secs_f64());
        Ok(if confirmed.is_empty() { Step::Stuck } else { Step::Published(confirmed.len()) })
    }

    /// Steps until `stop`, sleeping when there is nothing to do. A step that has begun is finished first.
    pub async fn run(mut self, wake: Wake, stop: CancellationToken) {
        let mut away = Backoff::new(AWAY_FIRST, AWAY_LONGEST);
        let mut database_answers = true;
        let mut busy = LOOK_AGAIN;
        while !stop.is_cancelled() {
            let step = self.step().await;
            match &step {
                Ok(_) if !database_answers => {
                    database_answers = true;
                    tracing::info!("the relay's database answers again");
                }
                // Once per change of state, not once per attempt.
                Err(error) if database_answers => {
                    database_answers = false;
                    tracing::warn!(error = error as &dyn std::error::Error, "the relay's step failed");
                }
                _ => {}
            }
            let wait = match step {
                Ok(Step::Published(_)) => {
                    away.reset();
                    busy = LOOK_AGAIN;
                    continue;
                }
                Ok(Step::Busy) => {
                    busy = (busy * 2).min(LOOK_AGAIN_AT_LEAST);
                    busy / 2
                }
                Ok(Step::Idle) if faults::sabotaged(Sabotage::WokenOnly) => Duration::MAX,
                // A wake-up for an event that only a full look can find has been spent by now.
                Ok(Step::Idle) => self.options.poll.min(self.options.full_look),
                Ok(Step::Stuck | Step::BrokerAway) | Err(_) => {
                    // Not cut short by wake-ups: each new order would otherwise be one more attempt to connect.
                    let pause = away.next_wait();
                    stop.run_until_cancelled(sleep(pause)).await;
                    continue;
                }
            };
            away.reset();
            if !matches!(step, Ok(Step::Busy)) {
                busy = LOOK_AGAIN;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = wake.woken() => {}
                () = sleep(wait) => {}
            }
        }
    }
}

/// Publishes what was claimed, writes down what was refused, and returns what was confirmed.
///
/// An aggregate's second event is not handed over before its first is confirmed. Pipelined behind each other, the
/// second could be accepted and the first refused, and the order of events would be broken for good. So each wave holds
/// one event per aggregate; nearly always there is only one wave.
async fn publish(
    publisher: &mut impl Publisher,
    hold: &mut impl Hold,
    mut claimed: Vec<Claimed>,
    began: Instant,
) -> Result<Vec<Claimed>, Error> {
    let mut confirmed = Vec::with_capacity(claimed.len());
    let mut held_back = HashSet::new();
    let mut first_wave = true;
    while !claimed.is_empty() && (first_wave || began.elapsed() < LAST_WAVE) {
        first_wave = false;
        let (wave, rest) = next_wave(claimed, &held_back);
        let messages: Vec<_> = wave.iter().map(|event| event.message.clone()).collect();
        let outcomes = publisher.publish(&messages).await;
        for (event, outcome) in wave.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Confirmed => confirmed.push(event),
                Outcome::Unknown => _ = held_back.insert(event.aggregate_id),
                Outcome::Refused(refusal) => {
                    held_back.insert(event.aggregate_id);
                    hold.refused(&event, refusal).await?;
                }
            }
        }
        claimed = rest;
    }
    Ok(confirmed)
}

/// Splits off the first waiting event of each aggregate, in order. Aggregates that are held back lose their turn: what
/// is left of them stays in the outbox.
fn next_wave(claimed: Vec<Claimed>, held_back: &HashSet<Uuid>) -> (Vec<Claimed>, Vec<Claimed>) {
    let mut seen = HashSet::new();
    claimed
        .into_iter()
        .filter(|event| !held_back.contains(&event.aggregate_id))
        .partition(|event| seen.insert(event.aggregate_id))
}
