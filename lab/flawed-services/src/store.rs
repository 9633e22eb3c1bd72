//! A claim that loses events, a relay that publishes what it cannot mark, and one that waits for notifications alone.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use flaws::Flaw;
use messaging::Refusal;
use outbox::{Claim, ClaimedEvent, Error, OutboxTransaction, Store, Wake};

use crate::relays::listen_alone::NO_POLL;

/// The last `seq` that this process has read: what a polling publisher with a cursor would keep.
static CURSOR: AtomicI64 = AtomicI64::new(0);

/// A store of the product with one part left out, or none.
pub struct FlawedStore<S> {
    inner: S,
    flaw: Option<Flaw>,
    /// With `listen-alone`: the only wake-ups. There is no poll.
    notified: Wake,
}

pub struct FlawedTransaction<T> {
    inner: T,
    flaw: Option<Flaw>,
}

impl<S> FlawedStore<S> {
    pub fn new(inner: S, flaw: Option<Flaw>) -> Self {
        Self { inner, flaw, notified: Wake::new() }
    }

    pub(crate) fn listening_alone(inner: S, notified: Wake) -> Self {
        Self { inner, flaw: Some(Flaw::ListenAlone), notified }
    }
}

impl<S: Store> Store for FlawedStore<S> {
    type Transaction<'store>
        = FlawedTransaction<S::Transaction<'store>>
    where
        S: 'store;

    async fn claim(&mut self, lanes: u8, batch: u16) -> Result<Claim<Self::Transaction<'_>>, Error> {
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

    async fn wait(&mut self, wake: &Wake, worked: Duration, poll: Duration) {
        let alone = self.flaw == Some(Flaw::ListenAlone);
        let (wake, poll) = if alone { (&self.notified, NO_POLL) } else { (wake, poll) };
        self.inner.wait(wake, worked, poll).await;
    }

    fn release(&mut self) {
        self.inner.release();
    }
}

impl<T: OutboxTransaction> OutboxTransaction for FlawedTransaction<T> {
    async fn try_write(&mut self, events: &[ClaimedEvent]) -> Result<(), Error> {
        if self.flaw == Some(Flaw::FailedMarksIgnored) {
            return Ok(());
        }
        self.inner.try_write(events).await
    }

    async fn mark_refused(&mut self, refused: &[(ClaimedEvent, Refusal)]) -> Result<(), Error> {
        self.inner.mark_refused(refused).await
    }

    async fn commit(self, confirmed: &[ClaimedEvent]) -> Result<(), Error> {
        self.inner.commit(confirmed).await
    }
}
