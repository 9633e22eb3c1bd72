//! The relay: publishes the committed events of an outbox, each at least once, and in order within an aggregate.
//!
//! A step is one short transaction, in two messages to the database ([`Relay::step`]):
//!
//! ```text
//! ready     the broker answers; otherwise nothing is claimed
//! claim     begin; lock lanes that no relay holds; read their claimable events
//! publish   in waves of one event per aggregate; wait for the confirms of each wave
//! refused   record what the broker refused: when to try again, or that it is parked      (rare)
//! mark      record what was confirmed; commit: the lanes are free again
//! ```
//!
//! *Publish, then mark*: a crash in between publishes again, and consumers drop the copy. The other way round a crash would
//! lose the event. *The lock outlives the publishing*: until the commit no other relay publishes events of these lanes. A
//! frozen process is cut off by the database after 30 s; the confirm deadline is shorter.
//!
//! What does not work (`lab/flawed-services` and `docs/variants.md` show it):
//!
//! - Reading on from where the last step stopped (`seq > last`): a row that commits late is skipped for good.
//! - `skip locked` on event rows alone: one relay holds an order's first event, and another publishes its second.
//!   (`examples/one-file` locks event rows too, but claims only the first pending event of each aggregate.)
//! - Lock lanes and read events in one statement: its snapshot is older than the locks, so events that the last holder has
//!   marked still look pending (`1003_outbox_claim.sql`). PostgreSQL looks again only at the rows that it locks, the lanes.
//! - A lease in a column instead of a lock: it can end while its relay is frozen between a confirm and the next message.
//! - Deleting instead of marking: nothing can be published again, and nothing shows what was.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    Backoff, Claim, ClaimedEvent, Error, OutboxTransaction, PublishOutcome, Publisher, Store, Wake,
    crash_points::crash_point,
};

/// How much a relay claims, and how long it sleeps.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// The most events that one step publishes, 1 to 10,000. From 100 on a quorum queue gives most of its throughput,
    /// and past 1,000 only memory and the duplicates after a crash grow.
    pub batch: u16,
    /// The longest sleep without a wake-up. One relay of the process sleeps at a time, and the others wait for it. If every
    /// wake-up is lost, events are published this much later, and nothing else changes.
    pub poll: Duration,
    /// The most lanes that one step locks, 1 to 16. Fewer leave more for other relays.
    pub lanes: u8,
    /// How often a relay scans all pending events, and not only those after its watermark
    /// (`shared/outbox/src/scan_watermark.rs`).
    pub full_scan: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self { batch: 500, poll: Duration::from_secs(1), lanes: 8, full_scan: Duration::from_secs(3) }
    }
}

/// The outcome of one step of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many events were published and marked. There may be more.
    Published(usize),
    /// So many events were published and marked, and this scan saw no others.
    PublishedAll(usize),
    /// Events were claimed, and the broker confirmed none of them: it is slow, or has no room.
    NoneConfirmed,
    /// Events were claimed, and the broker refused all of them because of what they are. Each waits by itself now, and
    /// others may be behind them.
    Refused,
    /// No event is claimable.
    Idle,
    /// Events are, or were a moment ago, held by another relay.
    Busy,
    /// The broker is unavailable. Nothing was claimed, and no attempt was counted.
    BrokerUnavailable,
}

/// How soon a relay scans again after it found lanes locked by another. A step takes milliseconds; if the other relay is
/// frozen, or its broker is slow, the growing pause keeps this one from scanning a thousand times a second.
const FIRST_BUSY_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_BUSY_PAUSE: Duration = Duration::from_millis(50);

/// The age of a step after which it begins no further wave. The transaction idles while a wave is published, for up to the
/// confirm deadline (17 s at most), and PostgreSQL ends an idle transaction after 30 s. Without this limit a broker
/// that takes seconds for each wave would have every long batch cut off before its marks, and published again forever.
const LAST_WAVE_AGE: Duration = Duration::from_secs(4);

/// Back-off while the broker or the database is unavailable: short enough to use a recovered broker within seconds, long
/// enough not to disturb its start.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(2);

/// How long steps may fail before the status says so. A restart of the database is shorter.
const STALL_LIMIT: Duration = Duration::from_secs(8);

/// Whether the steps of a relay succeed. Cheap to clone; all clones show the same.
#[derive(Debug, Clone, Default)]
pub struct RelayStatus(Arc<Mutex<Option<(Instant, String)>>>);

impl RelayStatus {
    /// `Err` says since when no step has succeeded, and why the last one failed.
    pub fn state(&self) -> Result<(), String> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((since, cause)) if since.elapsed() > STALL_LIMIT => {
                Err(format!("no step has succeeded for {} s: {cause}", since.elapsed().as_secs()))
            }
            _ => Ok(()),
        }
    }

    fn record(&self, step: &Result<Step, Error>) {
        let mut failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *failing = step.as_ref().err().map(|error| {
            let since = failing.as_ref().map_or_else(Instant::now, |(since, _)| *since);
            (since, format!("{error}: {}", error.source))
        });
    }
}

/// Publishes the pending events of an outbox. Any number of relays may work on one outbox, in one process or many.
pub struct Relay<P, S> {
    store: S,
    publisher: P,
    options: RelayOptions,
    /// Whether the last step may have published events without marking them.
    is_unmarked: bool,
    /// How long the last step waited for the broker.
    publishing: Duration,
    status: RelayStatus,
}

impl<P: Publisher, S: Store> Relay<P, S> {
    pub fn new(store: S, publisher: P, options: RelayOptions) -> Self {
        Self {
            store,
            publisher,
            options,
            is_unmarked: false,
            publishing: Duration::ZERO,
            status: RelayStatus::default(),
        }
    }

    /// With the status that [`run`](Self::run) reports its steps to.
    #[must_use]
    pub fn with_status(self, status: RelayStatus) -> Self {
        Self { status, ..self }
    }

    /// One short transaction: claim events and lock their lanes, publish them, mark what was confirmed, commit. The head of
    /// this file says why in this order. After an error, events that were published but not marked are published again.
    pub async fn step(&mut self) -> Result<Step, Error> {
        if self.publisher.ready().await.is_err() {
            self.store.release();
            return Ok(Step::BrokerUnavailable);
        }
        let (claimed, more, mut transaction) =
            match self.store.claim(self.options.lanes, self.options.batch).await? {
                Claim::Events { events, more, transaction } => (events, more, transaction),
                Claim::Busy => return Ok(Step::Busy),
                Claim::Idle => return Ok(Step::Idle),
            };
        let began = Instant::now();
        crash_point("relay-claimed");
        let all = claimed.len();
        // With a full disk lanes can be locked, and marks cannot be written: each step would publish the same events again. So a
        // write comes first then.
        if self.is_unmarked {
            transaction.try_write(&claimed).await?;
        }
        // Until the commit has succeeded.
        self.is_unmarked = true;
        let publishing = Instant::now();
        let (confirmed, temporary) = publish(&mut self.publisher, &mut transaction, claimed, began).await?;
        self.publishing = publishing.elapsed();
        crash_point("relay-confirmed");
        transaction.commit(&confirmed).await?;
        self.is_unmarked = false;
        crash_point("relay-committed");
        Ok(match confirmed.len() {
            0 if temporary => Step::NoneConfirmed,
            0 => Step::Refused,
            published if more || published < all => Step::Published(published),
            published => Step::PublishedAll(published),
        })
    }

    /// Steps until `stop`, sleeping when there is nothing to do. A step that has begun is finished first.
    pub async fn run(mut self, wake: Wake, stop: CancellationToken) {
        let mut retry = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
        let mut busy_pause = FIRST_BUSY_PAUSE;
        let mut database_answers = true;
        while !stop.is_cancelled() {
            let began = Instant::now();
            self.publishing = Duration::ZERO;
            let step = self.step().await;
            // Without the wait for the broker: a pause as long as that would delay events, and save nothing.
            let worked = began.elapsed().saturating_sub(self.publishing);
            log_change(&mut database_answers, &step);
            wake.set_behind(matches!(step, Ok(Step::Published(_))));
            self.status.record(&step);
            let step = match step {
                Ok(Step::BrokerUnavailable | Step::NoneConfirmed) | Err(_) => {
                    // Wake-ups do not end this wait: each new order would otherwise be one more attempt to connect.
                    stop.run_until_cancelled(sleep(retry.next_wait())).await;
                    continue;
                }
                Ok(step) => step,
            };
            retry.reset();
            // Busy: other relays hold the claimable events, so this one looks again soon. Otherwise it waits for a wake-up or for
            // the poll; the relays of a process take turns at that.
            let (is_busy, pause) = (step == Step::Busy, busy_pause);
            busy_pause = if is_busy { (pause * 2).min(LONGEST_BUSY_PAUSE) } else { FIRST_BUSY_PAUSE };
            if matches!(step, Step::Published(_) | Step::Refused) {
                continue;
            }
            // An event that was committed after the scan has left a wake-up, so nothing is lost by sleeping. An event that only a
            // full scan can find may have no wake-up left, so the sleep is no longer than until the next one.
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.store.wait(&wake, worked, self.options.poll.min(self.options.full_scan)) => {}
                () = sleep(pause), if is_busy => {}
            }
        }
    }
}

/// Logs once when the database stops answering, and once when it answers again.
fn log_change(database_answers: &mut bool, step: &Result<Step, Error>) {
    match step {
        Ok(_) if !*database_answers => tracing::info!("the relay's database answers again"),
        Err(error) if *database_answers => {
            let cause = std::error::Error::source(error).map(tracing::field::display);
            tracing::warn!(%error, cause, "relay step failed");
        }
        _ => {}
    }
    *database_answers = step.is_ok();
}

/// Publishes claimed events, and records those that were refused. Returns the confirmed ones, and whether another outcome was
/// temporary: the broker is slow, or a queue is full.
///
/// An aggregate's second event is not sent before its first is confirmed: the second could be accepted and the first
/// refused, which would break their order for good. So each wave holds one event per aggregate. Nearly always one wave
/// is enough.
async fn publish(
    publisher: &mut impl Publisher,
    transaction: &mut impl OutboxTransaction,
    mut claimed: Vec<ClaimedEvent>,
    began: Instant,
) -> Result<(Vec<ClaimedEvent>, bool), Error> {
    let mut confirmed = Vec::with_capacity(claimed.len());
    let mut temporary = false;
    let mut held_back = HashSet::new();
    let mut first_wave = true;
    while !claimed.is_empty() && (first_wave || began.elapsed() < LAST_WAVE_AGE) {
        first_wave = false;
        let (wave, rest) = next_wave(claimed, &held_back);
        let messages: Vec<_> = wave.iter().map(|event| &event.message).collect();
        let outcomes = publisher.publish(&messages).await;
        let mut refused = Vec::new();
        for (event, outcome) in wave.into_iter().zip(outcomes) {
            match outcome {
                PublishOutcome::Confirmed => confirmed.push(event),
                PublishOutcome::Unknown => {
                    temporary = true;
                    held_back.insert(event.aggregate_id);
                }
                PublishOutcome::Refused(refusal) => {
                    temporary |= !refusal.may_be_final();
                    held_back.insert(event.aggregate_id);
                    refused.push((event, refusal));
                }
            }
        }
        if !refused.is_empty() {
            transaction.mark_refused(&refused).await?;
        }
        claimed = rest;
    }
    Ok((confirmed, temporary))
}

/// Splits off the first event of each aggregate, in order. Events of aggregates that are held back stay in the outbox.
///
/// An event that was refused before follows in a later wave. If the broker closes the channel over it, what is in flight
/// with it is unconfirmed and published again.
fn next_wave(
    claimed: Vec<ClaimedEvent>,
    held_back: &HashSet<Uuid>,
) -> (Vec<ClaimedEvent>, Vec<ClaimedEvent>) {
    let mut seen = HashSet::new();
    let (first, rest): (Vec<_>, Vec<_>) = claimed
        .into_iter()
        .filter(|event| !held_back.contains(&event.aggregate_id))
        .partition(|event| seen.insert(event.aggregate_id));
    match first.into_iter().partition::<Vec<_>, _>(|event| event.refused_before) {
        (wave, others) if others.is_empty() => (wave, rest),
        (later, wave) => (wave, later.into_iter().chain(rest).collect()),
    }
}
