//! What becomes of a group of deliveries. The rule that everything else here serves: *commit, then acknowledge*.

use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use events::{
    Backoff, Event,
    transport::{Failure, Handler, Incoming},
};
use faults::Point;
#[cfg(feature = "drill")]
use faults::Sabotage;
use futures_util::FutureExt;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::Error;

/// How long a handler may take over one group.
const HANDLER_DEADLINE: Duration = Duration::from_secs(30);

/// How often an event is tried whose failure nobody understands, before it is set aside.
const UNEXPECTED_TRIES: u32 = 5;

/// Where deliveries come from, and where the answers go. There are two: a channel to RabbitMQ, and the simulation's.
pub trait Line: Send {
    /// One delivery, not acknowledged yet.
    type Delivery: Send + Sync;

    /// What it carries.
    fn incoming(&self, delivery: &Self::Delivery) -> Incoming;

    /// Says that a delivery is settled: this one, or with `and_before` also all that came before it.
    fn acknowledge(
        &mut self,
        delivery: &Self::Delivery,
        and_before: bool,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Puts a copy into the dead letters, with the reason, and returns once the broker has it for certain. The
    /// delivery itself is not acknowledged by this.
    fn keep_as_dead_letter(
        &mut self,
        delivery: &Self::Delivery,
        reason: &str,
        detail: &str,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Whether answers can still be given. When not, the group will be delivered again, to whoever is there then.
    fn is_open(&self) -> bool;
}

/// A delivery, and the event that it carries.
struct Received<D> {
    delivery: D,
    event: Event,
}

/// Applies a group in one transaction and acknowledges it with one answer. If that fails, each is tried alone, so that
/// one bad message cannot sink the rest; a message that can never be applied is set aside in the dead letters.
///
/// # Errors
/// When the line fails, or `stop` comes while the trouble is temporary: what was not acknowledged is delivered again.
pub async fn settle<L: Line>(
    line: &mut L,
    handler: &impl Handler,
    queue: &'static str,
    deliveries: Vec<L::Delivery>,
    stop: &CancellationToken,
) -> Result<(), Error> {
    Settling { line, handler, queue, stop }.settle(deliveries).await
}

struct Settling<'a, L, H> {
    line: &'a mut L,
    handler: &'a H,
    queue: &'static str,
    stop: &'a CancellationToken,
}

impl<L: Line, H: Handler> Settling<'_, L, H> {
    async fn settle(&mut self, deliveries: Vec<L::Delivery>) -> Result<(), Error> {
        let mut received = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            match events::decode(&self.line.incoming(&delivery)) {
                Ok(event) => received.push(Received { delivery, event }),
                Err(rejection) => {
                    self.set_aside(&delivery, rejection.reason(), &rejection.to_string()).await?;
                }
            }
        }
        let Some(last) = received.last() else {
            return Ok(());
        };
        let events: Vec<_> = received.iter().map(|received| received.event.clone()).collect();
        faults::reach(Point::GroupReceived);
        #[cfg(feature = "drill")]
        if faults::sabotaged(Sabotage::AckBeforeCommit) {
            self.line.acknowledge(&last.delivery, true).await?;
            let _ = self.apply(&events).await?;
            return Ok(());
        }
        match self.apply(&events).await? {
            // One acknowledgement for all: everything up to here is committed, or set aside above.
            Ok(()) => {
                self.line.acknowledge(&last.delivery, true).await?;
                faults::reach(Point::GroupAcknowledged);
                Ok(())
            }
            Err(failure) if events.len() == 1 => self.isolate(&received[0], failure).await,
            Err(_) => {
                // One of them sinks the others: try each alone, in order.
                for received in &received {
                    match self.apply(std::slice::from_ref(&received.event)).await? {
                        Ok(()) => self.line.acknowledge(&received.delivery, false).await?,
                        Err(failure) => self.isolate(received, failure).await?,
                    }
                }
                Ok(())
            }
        }
    }

    /// Lets the handler apply a group. As long as it says that the trouble is temporary, the group is kept in hand and
    /// tried again: giving it back would burn its delivery limit, and reorder it. The inner error is never temporary.
    async fn apply(&self, events: &[Event]) -> Result<Result<(), Failure>, Error> {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut waiting = false;
        loop {
            // A panic is the handler's failure, not the end of the process.
            let applying = AssertUnwindSafe(self.handler.apply(events)).catch_unwind();
            let outcome = match timeout(HANDLER_DEADLINE, applying).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err(Failure::Unexpected("the handler panicked".into())),
                Err(_) => Err(Failure::Temporary("the handler took too long".into())),
            };
            match outcome {
                Ok(_) => return Ok(Ok(())),
                Err(Failure::Temporary(cause)) => {
                    if !waiting {
                        waiting = true;
                        let in_hand = events.len();
                        tracing::warn!(queue = self.queue, cause, in_hand, "waiting with events in hand");
                    }
                    // A stop, or a lost connection, ends the waiting: the group is delivered again.
                    if self.stop.run_until_cancelled(sleep(backoff.next_wait())).await.is_none()
                        || !self.line.is_open()
                    {
                        return Err(Error::Silent(HANDLER_DEADLINE, "a group that could not be applied"));
                    }
                }
                Err(failure) => return Ok(Err(failure)),
            }
        }
    }

    /// What becomes of one event that cannot be applied: at once, or after a few more tries, the dead letters.
    async fn isolate(&mut self, received: &Received<L::Delivery>, mut failure: Failure) -> Result<(), Error> {
        for attempt in 2..=UNEXPECTED_TRIES {
            if matches!(failure, Failure::Permanent(_)) {
                break;
            }
            // 100, 200, 400, 800 ms: in hand, because giving it back would let later events of its order overtake it.
            sleep(Duration::from_millis(50) * 2_u32.pow(attempt - 1)).await;
            let Event { id, event_type, aggregate_id, .. } = &received.event;
            tracing::warn!(event_id = %id, event_type, %aggregate_id, attempt, "trying again: {failure}");
            match self.apply(std::slice::from_ref(&received.event)).await? {
                Ok(()) => return self.line.acknowledge(&received.delivery, false).await,
                Err(next) => failure = next,
            }
        }
        let reason = if matches!(failure, Failure::Permanent(_)) { "permanent" } else { "unexpected" };
        self.set_aside(&received.delivery, reason, &failure.to_string()).await
    }

    /// First the copy, then the acknowledgement: a crash in between leaves it in both places, which loses nothing.
    async fn set_aside(&mut self, delivery: &L::Delivery, reason: &str, detail: &str) -> Result<(), Error> {
        self.line.keep_as_dead_letter(delivery, reason, detail).await?;
        faults::reach(Point::DeadLetterKept);
        self.line.acknowledge(delivery, false).await?;
        metrics::counter!("inbox_dead_lettered_total", "reason" => reason.to_owned()).increment(1);
        let message_id = self.line.incoming(delivery).message_id;
        tracing::error!(queue = self.queue, message_id, reason, detail, "set aside in the dead letters");
        Ok(())
    }
}
