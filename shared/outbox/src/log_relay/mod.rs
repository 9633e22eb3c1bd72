//! Optional. Without it: the relay polls the table. `docs/log-relay.md` compares the two.
//!
//! A [`Store`] that learns from PostgreSQL's write-ahead log which events were committed, in the order of their commits. The
//! relay over it is the same, with its steps, crash points and metrics:
//!
//! ```text
//! claim     the next events of the log; begin; lock their lanes; which of them may be published now? Others are passed, or
//!           wait here: their lane is another relay's, or their commit is not visible yet
//! publish, refused, mark   as the polling relay does: the table says what became of an event
//! acknowledge              the server may forget the log up to the first event that is not done
//! ```
//!
//! *Mark, then acknowledge*: after a crash in between the server sends events again, and the claim finds them marked. *The log
//! never waits for one event*: what was refused is passed, and so are the later events of its aggregate. They are pending in
//! the table, and a claim from the table, every few seconds, publishes them when their turn comes. It also finds what an
//! operator replays, and what was committed before the slot existed.
//!
//! One relay holds the slot, and the others look once per poll whether it is free. What cannot be repaired without a person
//! halts the relay: a lost slot, one of another server or database, a dropped publication, or a setting that would make this
//! relay a synchronous standby (`outbox_log_state` in `1004_outbox_log.sql`).

mod pgoutput;
mod stream;

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use database::{Pool, Session, observe};
use messaging::{Claim, ClaimedEvent, Error, OutboxTransaction, Refusal, RoundLimiter, Store, Wake};
use sqlx::{AssertSqlSafe, Row as _, raw_sql};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    PostgresStore, PostgresTransaction,
    gauges::HeldLanes,
    mark_published_and_commit, mark_refused,
    postgres::{array, await_standby, within_deadline},
    scan_watermark::pause_after,
    try_write,
};
use stream::{EventKey, LogStream, key};

/// The outbox in the pool's schema, read from the log.
pub struct LogStore {
    pool: Pool,
    /// While this relay holds the slot.
    stream: Option<LogStream>,
    limiter: RoundLimiter,
    /// Claims what the log has passed.
    table: PostgresStore,
    table_interval: Duration,
    next_table_claim: Instant,
}

impl LogStore {
    /// `table_interval` is how often the table is searched for events that the log has passed.
    pub fn new(pool: Pool, table_interval: Duration) -> Self {
        Self {
            table: PostgresStore::new(pool.clone(), table_interval),
            pool,
            stream: None,
            limiter: RoundLimiter::default(),
            table_interval,
            next_table_claim: Instant::now(),
        }
    }

    /// Opens the log, with this slot, or a new one. `None`: another relay holds the slot.
    async fn open(pool: &Pool, slot: Option<SlotState>) -> Result<Option<LogStream>, Error> {
        let publish = || {
            let publish =
                async { sqlx::query!("select outbox_log_publish()").execute(pool.for_writing()?).await };
            within_deadline("failed to publish the outbox to the log", publish)
        };
        let slot = match slot {
            Some(slot) => slot,
            None => {
                publish().await?;
                let create = sqlx::query!("select outbox_log_create()").execute(pool);
                within_deadline("failed to create the slot", create).await?;
                let created = within_deadline(READ_STATE, slot_state(pool)).await?;
                created.ok_or_else(|| Error::new("failed to create the slot", "it was dropped at once"))?
            }
        };
        if let Some(reason) = slot.halted {
            return Err(Error::new("the log relay has halted until an operator repairs it", reason));
        }
        if slot.active {
            return Ok(None);
        }
        // Without the table the log would say nothing, and the relay would not notice.
        publish().await?;
        let stream = LogStream::open(pool.server(), &slot).await?;
        tracing::info!(slot = slot.slot, "this relay reads the log");
        Ok(Some(stream))
    }
}

impl Store for LogStore {
    type Transaction<'store> = LogTransaction<'store>;

    async fn claim(&mut self, lanes: u8, batch: u16) -> Result<Claim<LogTransaction<'_>>, Error> {
        let received = match &mut self.stream {
            Some(stream) if stream.is_from(&self.pool.server()) => stream.receive(batch.into()).await,
            Some(_) => Err(Error::new("failed to read the log", "the pool has found another server")),
            None => Ok(()),
        };
        if received.is_err() {
            self.stream = None;
        }
        received?;
        let slot = match self.stream {
            Some(_) => None,
            None => within_deadline(READ_STATE, slot_state(&self.pool)).await?,
        };
        let has_slot = self.stream.is_some() || slot.is_some();
        if self.next_table_claim <= Instant::now() && (self.stream.is_some() || !has_slot) {
            let began = Instant::now();
            self.next_table_claim = began + self.table_interval;
            if let Claim::Events { events, more, transaction } = self.table.claim(lanes, batch).await? {
                // The log's events and these take turns. Without a slot a full batch is followed by another: each attempt to create
                // one waits for all transactions of the server, and may take its whole deadline.
                if !has_slot && events.len() >= batch.into() {
                    self.next_table_claim = Instant::now();
                } else if has_slot && more {
                    self.next_table_claim = Instant::now() + self.table_interval.min(TABLE_PAUSE);
                }
                return Ok(Claim::Events {
                    events,
                    more: true,
                    transaction: LogTransaction::Table(transaction),
                });
            }
            // As long as after a full scan: where the table's claims have published nothing, each of them is one.
            let pause = pause_after(began.elapsed(), self.table_interval);
            self.next_table_claim = Instant::now() + pause.max(self.table_interval);
        }
        if self.stream.is_none() {
            // The table's turn is next, whether this succeeds or not.
            self.next_table_claim = Instant::now();
            self.stream = Self::open(&self.pool, slot).await?;
            return Ok(Claim::Idle);
        }
        let Some(stream) = &mut self.stream else { return Ok(Claim::Idle) };
        let arrived = stream.first(batch.into());
        if arrived.is_empty() {
            return Ok(Claim::Idle);
        }
        let seqs = array(arrived.iter().map(|(event, _)| event.seq));
        let ids = array(arrived.iter().map(|(event, _)| event.message.id));
        let transactions = array(arrived.iter().map(|(_, transaction)| *transaction));
        let mut session =
            within_deadline("failed to connect", async { self.pool.for_writing()?.acquire().await }).await?;
        // As text: a prepared statement would need its own message for `begin`. Only numbers and UUIDs are in it.
        let sql = format!(
            "begin; select nth, claimed, current_setting('synchronous_standby_names') as standbys
             from outbox_claim_logged('{seqs}', '{ids}', '{transactions}')"
        );
        let claiming = async {
            let rows = raw_sql(AssertSqlSafe(sql)).fetch_all(&mut *session).await?;
            let standbys = rows.first().map_or(Ok(String::new()), |row| row.try_get("standbys"))?;
            let kept = rows.iter().map(|row| Ok((row.try_get("nth")?, row.try_get("claimed")?)));
            Ok((kept.collect::<Result<HashMap<i64, bool>, sqlx::Error>>()?, standbys))
        };
        let (kept, standbys) = within_deadline("failed to claim events", claiming).await?;
        if standbys.contains('*') {
            stream.end("synchronous_standby_names contains *");
            return Ok(Claim::Idle);
        }
        let (mut events, mut passed) = (vec![], HashSet::new());
        for (nth, (event, _)) in (1..).zip(arrived) {
            match kept.get(&nth) {
                Some(true) => events.push(event.clone()),
                Some(false) => {}
                None => {
                    passed.insert(key(event));
                }
            }
        }
        stream.done(|key| passed.contains(&key));
        if events.is_empty() {
            within_deadline("failed to end a claim", session.rollback()).await?;
            return Ok(if stream.has_more_than(0) { Claim::Busy } else { Claim::Idle });
        }
        if !standbys.is_empty() {
            await_standby(&self.pool, &mut session).await?;
        }
        let (more, held) = (stream.has_more_than(events.len()), HeldLanes::new(&events));
        Ok(Claim::Events {
            events,
            more,
            transaction: LogTransaction::Log { session, stream, refused: vec![], held },
        })
    }

    fn release(&mut self) {
        self.stream = None;
    }

    /// Waits for the log, and not for wake-ups: the server announces each commit. Without the slot it waits for the poll.
    async fn wait(&mut self, _: &Wake, worked: Duration, poll: Duration) {
        match &mut self.stream {
            None => sleep(poll).await,
            Some(stream) => {
                self.limiter.wait(worked).await;
                let until_table = self.next_table_claim.saturating_duration_since(Instant::now());
                let _ = timeout(poll.min(until_table), stream.wait()).await;
            }
        }
    }
}

/// The pause between two claims from the table while it has more.
const TABLE_PAUSE: Duration = Duration::from_millis(20);

/// An open transaction that has the lanes of its events locked.
pub enum LogTransaction<'store> {
    /// The events come from the log.
    Log { session: Session, stream: &'store mut LogStream, refused: Vec<EventKey>, held: HeldLanes },
    /// The log has passed them.
    Table(PostgresTransaction<'store>),
}

impl OutboxTransaction for LogTransaction<'_> {
    async fn try_write(&mut self, events: &[ClaimedEvent]) -> Result<(), Error> {
        match self {
            Self::Log { session, .. } => try_write(session, events).await,
            Self::Table(transaction) => transaction.try_write(events).await,
        }
    }

    async fn mark_refused(&mut self, events: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        match self {
            Self::Log { session, refused, .. } => {
                refused.extend(events.iter().map(|(event, _)| key(event)));
                mark_refused(session, events).await
            }
            Self::Table(transaction) => transaction.mark_refused(events).await,
        }
    }

    /// Events without an answer stay, and are claimed again.
    async fn commit(self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        match self {
            Self::Log { session, stream, refused, held } => {
                mark_published_and_commit(session, confirmed).await?;
                held.published(confirmed);
                let done: HashSet<_> = confirmed.iter().map(key).chain(refused).collect();
                stream.done(|key| done.contains(&key));
                Ok(())
            }
            Self::Table(transaction) => transaction.commit(confirmed).await,
        }
    }
}

/// The row of `outbox_log_state`.
struct SlotState {
    slot: String,
    publication: String,
    system_identifier: String,
    halted: Option<String>,
    active: bool,
    lag_bytes: f64,
    safe_bytes: f64,
}

/// `None`: no log relay has run on this outbox.
async fn slot_state(pool: &Pool) -> Result<Option<SlotState>, sqlx::Error> {
    sqlx::query_as!(
        SlotState,
        r#"select slot as "slot!", publication as "publication!", system_identifier as "system_identifier!", halted,
                  active as "active!", lag_bytes as "lag_bytes!", safe_bytes as "safe_bytes!"
           from outbox_log_state()"#
    )
    .fetch_optional(pool)
    .await
}

const READ_STATE: &str = "failed to read the state of the slot";

/// Shows the slot in the gauges `outbox_log_lag_bytes`, `outbox_log_safe_bytes` and `outbox_log_halted`, until `stop`. Where relays poll, one that earlier
/// processes have left behind makes the server keep its log, and halts nothing.
pub async fn observe_log(pool: Pool, reads_log: bool, stop: CancellationToken) {
    if !reads_log && matches!(within_deadline(READ_STATE, slot_state(&pool)).await, Ok(None)) {
        return stop.cancelled().await;
    }
    let count = async || {
        let slot = slot_state(&pool).await?;
        let halted = reads_log && slot.as_ref().is_some_and(|slot| slot.halted.is_some());
        let (lag, safe) = slot.map_or((0.0, f64::INFINITY), |slot| (slot.lag_bytes, slot.safe_bytes));
        Ok([lag, safe, f64::from(u8::from(halted))])
    };
    let show = |[lag_bytes, safe_bytes, halted]: [f64; 3]| {
        metrics::gauge!("outbox_log_lag_bytes").set(lag_bytes);
        metrics::gauge!("outbox_log_safe_bytes").set(safe_bytes);
        metrics::gauge!("outbox_log_halted").set(halted);
    };
    observe(count, show, stop).await;
}
