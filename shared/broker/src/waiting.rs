//! How long a consumer keeps messages while its handler fails temporarily.

use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use messaging::{Backoff, DeadLetterStore, Failure, Handler};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Error,
    group::{DeliveryChannel, Settling},
};

/// How long a handler may take for one group.
const HANDLER_DEADLINE: Duration = Duration::from_secs(30);

/// How long a consumer keeps its messages while the handler's database is unavailable to this process. Long enough for a
/// restart of the database.
const HOLD_DURATION: Duration = Duration::from_secs(15);

/// How often it is checked whether the handler's database is available.
pub(crate) const AVAILABILITY_INTERVAL: Duration = Duration::from_millis(500);

impl<C: DeliveryChannel, H: Handler, L: DeadLetterStore> Settling<'_, C, H, L> {
    /// Makes attempts until one does not fail temporarily. The messages are kept meanwhile: returned to the queue, they
    /// would look as if they had crashed their consumer. But not for ever: only one instance receives messages, and another
    /// one may reach the database that this one does not reach. The inner error is never temporary.
    pub(crate) async fn retry<T, F>(
        &self,
        what: &str,
        events: usize,
        attempt: impl Fn() -> F,
    ) -> Result<Result<T, Failure>, Error>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let outcome = tokio::select! {
            outcome = self.repeat(what, events, attempt) => outcome,
            reason = self.unavailable() => Err(Error::Unavailable(reason)),
        };
        metrics::gauge!("inbox_applying_seconds", "queue" => self.queue).set(0.0);
        outcome
    }

    /// Returns when the handler has been unavailable for [`HOLD_DURATION`]. Shows meanwhile how long the group takes.
    async fn unavailable(&self) -> String {
        let (began, mut since) = (Instant::now(), None);
        loop {
            sleep(AVAILABILITY_INTERVAL).await;
            metrics::gauge!("inbox_applying_seconds", "queue" => self.queue)
                .set(began.elapsed().as_secs_f64());
            match (self.available)() {
                Ok(()) => since = None,
                Err(reason) if since.get_or_insert_with(Instant::now).elapsed() > HOLD_DURATION => {
                    return reason;
                }
                Err(_) => {}
            }
        }
    }

    async fn repeat<T, F>(
        &self,
        what: &str,
        events: usize,
        attempt: impl Fn() -> F,
    ) -> Result<Result<T, Failure>, Error>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut waiting = false;
        loop {
            // A panic is the handler's failure, not the end of the process.
            let attempted = AssertUnwindSafe(attempt()).catch_unwind();
            let outcome = match timeout(HANDLER_DEADLINE, attempted).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err(Failure::Unexpected("the handler panicked".into())),
                Err(_) => Err(Failure::TooSlow("the handler took too long".into())),
            };
            match outcome {
                // What took too long without its database is not the group's fault. One event cannot be halved.
                Err(Failure::TooSlow(cause)) if events > 1 && (self.available)().is_ok() => {
                    return Ok(Err(Failure::TooSlow(cause)));
                }
                Err(Failure::Temporary(cause) | Failure::TooSlow(cause)) => {
                    if !waiting {
                        waiting = true;
                        tracing::warn!(queue = self.queue, cause, events, "failed to {what}; waiting");
                    }
                    // A stop, or a lost connection, ends the wait: the group is delivered again.
                    if self.stop.run_until_cancelled(sleep(backoff.next_wait())).await.is_none()
                        || !self.channel.is_open()
                    {
                        return Err(Error::Silent(HANDLER_DEADLINE, "applying a group"));
                    }
                }
                done => return Ok(done),
            }
        }
    }
}
