//! A claim that loses events, and a relay that waits for notifications alone.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use flaws::Flaw;
use messaging::{Claim, Error, Store, Wake};

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
        = S::Transaction<'store>
    where
        S: 'store;

    async fn claim(&mut self, lanes: u8, batch: u16) -> Result<Claim<Self::Transaction<'_>>, Error> {
        let (mut events, more, transaction) = match self.inner.claim(lanes, batch).await? {
            Claim::Idle => return Ok(Claim::Idle),
            Claim::Busy => return Ok(Claim::Busy),
            Claim::Events { events, more, transaction } => (events, more, transaction),
        };
        if self.flaw == Some(Flaw::CursorOverSeq) {
            // Sequence numbers are drawn before the commit, so one that commits late is behind the cursor for good.
            let cursor = CURSOR.load(Ordering::SeqCst);
            events.retain(|event| event.seq > cursor);
            CURSOR.fetch_max(events.last().map_or(0, |event| event.seq), Ordering::SeqCst);
            if events.is_empty() {
                return Ok(Claim::Busy);
            }
        }
        Ok(Claim::Events { events, more, transaction })
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
