//! A claim that loses events, and a relay that publishes what it cannot mark.

use std::sync::atomic::{AtomicI64, Ordering};

use database::Pool;
use flaws::Flaw;
use messaging::Refusal;
use outbox::{
    Claim, ClaimedEvent, Error, OutboxTransaction, PostgresStore, PostgresTransaction, RelayOptions, Store,
};

/// The last `seq` that this process has read: what a polling publisher with a cursor would keep.
static CURSOR: AtomicI64 = AtomicI64::new(0);

/// The product's store with one part left out, or none.
pub struct FlawedStore {
    inner: PostgresStore,
    flaw: Option<Flaw>,
}

pub struct FlawedTransaction<'store> {
    inner: PostgresTransaction<'store>,
    flaw: Option<Flaw>,
}

impl FlawedStore {
    pub fn new(pool: Pool, options: &RelayOptions, flaw: Option<Flaw>) -> Self {
        Self { inner: PostgresStore::new(pool, options.full_scan), flaw }
    }
}

impl Store for FlawedStore {
    type Transaction<'store> = FlawedTransaction<'store>;

    async fn claim(&mut self, lanes: u8, batch: u16) -> Result<Claim<FlawedTransaction<'_>>, Error> {
        let flaw = self.flaw;
        let (mut events, more, inner) = match self.inner.claim(lanes, batch).await? {
            Claim::Idle => return Ok(Claim::Idle),
            Claim::Busy => return Ok(Claim::Busy),
            Claim::Events { events, more, transaction } => (events, more, transaction),
        };
        if flaw == Some(Flaw::CursorOverSeq) {
            // Sequence numbers are drawn before the commit, so one that commits late is behind the cursor for good.
            let cursor = CURSOR.load(Ordering::SeqCst);
            events.retain(|event| event.seq > cursor);
            CURSOR.fetch_max(events.last().map_or(0, |event| event.seq), Ordering::SeqCst);
            if events.is_empty() {
                return Ok(Claim::Busy);
            }
        }
        Ok(Claim::Events { events, more, transaction: FlawedTransaction { inner, flaw } })
    }
}

impl OutboxTransaction for FlawedTransaction<'_> {
    async fn try_write(&mut self, event: &ClaimedEvent) -> Result<(), Error> {
        if self.flaw == Some(Flaw::FailedMarksIgnored) {
            return Ok(());
        }
        self.inner.try_write(event).await
    }

    async fn mark_refused(&mut self, refused: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        self.inner.mark_refused(refused).await
    }

    async fn commit(self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        self.inner.commit(confirmed).await
    }
}
