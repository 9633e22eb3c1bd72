//! The outbox in PostgreSQL: the lanes are rows, and the right to them is a row lock.

use std::time::Duration;

use events::{LANES, transport::Refusal};
#[cfg(feature = "drill")]
use faults::Sabotage;
use sqlx::{PgPool, Postgres, Transaction};
use tokio::time::{Instant, timeout};

use crate::{
    Error, claim, failed,
    floor::Floor,
    mark,
    store::{Claimed, Hold, Reach, Store},
};

/// How long the database may take for one answer. Its own limit for a statement is shorter: past this one, nobody is
/// there any more, and a link that has gone silent would keep the relay waiting for ever.
const PATIENCE: Duration = Duration::from_secs(12);

async fn within<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let silent = |late| Error::new("the database does not answer", late);
    timeout(PATIENCE, answer).await.map_err(silent)?
}

/// The outbox in the pool's schema.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    pool: PgPool,
    floor: Floor,
}

impl PostgresStore {
    /// Connects to nothing yet. `full_look` is how often it looks at everything that is owed, and not only at what
    /// lies ahead of what it has published: the longest that an event which was committed very late has to wait.
    pub fn new(pool: PgPool, full_look: Duration) -> Self {
        Self { pool, floor: Floor::new(full_look) }
    }
}

/// An open transaction that has some lanes locked.
///
/// While it is open nobody else can touch these aggregates. If this process or its link dies, PostgreSQL rolls back and
/// the lanes are free at once; a process that is frozen instead is cut off by `idle_in_transaction_session_timeout`,
/// and its late marks fail with its session.
#[derive(Debug)]
pub struct LockedLanes<'store> {
    transaction: Transaction<'static, Postgres>,
    floor: &'store mut Floor,
    /// From where on this step looks, lane by lane: the same for both of its statements.
    behind: [i64; LANES as usize],
    /// Lane and `seq` of what was read, and what of it was confirmed: only the commit makes it count.
    claimed: Vec<(i16, i64)>,
    confirmed: Vec<i64>,
}

impl Store for PostgresStore {
    type Hold<'store> = LockedLanes<'store>;

    async fn reach(&mut self, start: i16, share: u8) -> Result<Reach<LockedLanes<'_>>, Error> {
        let behind = self.floor.next_look();
        let begin = async { self.pool.begin().await.map_err(failed("cannot begin a transaction")) };
        let mut transaction = within(begin).await?;
        #[cfg(feature = "drill")]
        if faults::sabotaged(Sabotage::SkipLockedOnRows) {
            let due = claim::something_is_due(&mut transaction, &behind).await?;
            let hold = LockedLanes::new(transaction, &mut self.floor, behind);
            return Ok(if due { Reach::Lanes(vec![0], hold) } else { Reach::Idle });
        }
        let asked = Instant::now();
        let lanes = within(claim::lock_lanes(&mut transaction, start, share.into(), &behind)).await;
        // With fewer lanes than were asked for, all others had nothing, or are in the hands of another relay: then what is
        // far below there is found by its full look, or by our next one.
        let seen =
            lanes.as_ref().map_or(&[][..], |lanes| if lanes.len() < share.into() { &[] } else { lanes });
        self.floor.looked(seen, asked.elapsed());
        let lanes = lanes?;
        if lanes.is_empty() {
            let asked = Instant::now();
            let due = within(claim::something_is_due(&mut transaction, &behind)).await;
            self.floor.looked(&[], asked.elapsed());
            let due = due?;
            return Ok(if due { Reach::Busy } else { Reach::Idle });
        }
        Ok(Reach::Lanes(lanes, LockedLanes::new(transaction, &mut self.floor, behind)))
    }
}

impl<'store> LockedLanes<'store> {
    fn new(
        transaction: Transaction<'static, Postgres>,
        floor: &'store mut Floor,
        behind: [i64; LANES as usize],
    ) -> Self {
        Self { transaction, floor, behind, claimed: Vec::new(), confirmed: Vec::new() }
    }
}

impl Hold for LockedLanes<'_> {
    async fn due(&mut self, lanes: &[i16], per_lane: i64) -> Result<Vec<Claimed>, Error> {
        #[cfg(feature = "drill")]
        if faults::sabotaged(Sabotage::SkipLockedOnRows) {
            return crate::sabotage::read_free_rows(&mut self.transaction).await;
        } else if faults::sabotaged(Sabotage::CursorOverSeq) {
            return crate::sabotage::read_behind_cursor(&mut self.transaction, lanes).await;
        }
        let asked = Instant::now();
        let due = within(claim::read_due(&mut self.transaction, lanes, per_lane, &self.behind)).await;
        self.floor.looked(lanes, asked.elapsed());
        let due = due?;
        self.claimed.extend(due.iter().map(|event| (event.lane, event.seq)));
        Ok(due)
    }

    async fn published(&mut self, confirmed: &[Claimed]) -> Result<(), Error> {
        self.confirmed.extend(confirmed.iter().map(|event| event.seq));
        within(mark::published(&mut self.transaction, confirmed)).await
    }

    async fn refused(&mut self, event: &Claimed, refusal: Refusal) -> Result<(), Error> {
        self.floor.look_everywhere_next();
        within(mark::refused(&mut self.transaction, event, refusal)).await
    }

    async fn commit(self) -> Result<(), Error> {
        let Self { transaction, floor, claimed, confirmed, .. } = self;
        let commit = async { transaction.commit().await.map_err(failed("cannot commit what was published")) };
        within(commit).await?;
        floor.committed(&claimed, &confirmed);
        Ok(())
    }
}
