use std::time::Duration;

use crash_points::crash_point;
use futures_util::StreamExt;
use lapin::{Channel, Connection, options::BasicAckOptions};
use messaging::{Backoff, DeadLetter, DeadLetterStore, Failure};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    ConnectionStatus, Endpoint, Error,
    connect::{Role, close, message_count, subscribe},
    dead_letter,
    error::{REQUEST_DEADLINE, within},
    topology::dead_letter_queue,
};

/// How many unacknowledged dead letters the broker may deliver. Few: there should be none, and each may be very large.
const PREFETCH: u16 = 16;

/// How much the prefetch may grow, by one for each dead letter that could not be saved: such a one stays unacknowledged, and
/// must not keep the others from being delivered.
const MAX_UNSAVED: u16 = 500;

/// How soon dead letters that could not be saved are delivered again.
const UNSAVED_RETRY_INTERVAL: Duration = Duration::from_secs(15);

/// After this much silence the queue is checked: an empty queue and a dead broker look the same.
const MAX_SILENCE: Duration = Duration::from_secs(2);

/// Moves dead letters from their queue into a store, where an operator finds them: save, then acknowledge. The broker put
/// them there: messages at the delivery limit, and those that their consumer could not save itself.
///
/// A crash in between redelivers the dead letter, and the store recognises it. While the store is unavailable, the queue
/// is the buffer. On a connection of its own, so that the consumer does not depend on it.
pub struct DeadLetterCollector {
    endpoint: Endpoint,
    queue: &'static str,
    status: ConnectionStatus,
}

impl DeadLetterCollector {
    /// A collector of the dead letters of `queue`, not connected yet. `status` also tells whether it holds dead letters
    /// that it cannot save.
    pub fn new(endpoint: Endpoint, queue: &'static str, status: ConnectionStatus) -> Self {
        Self { endpoint, queue, status }
    }

    /// Moves dead letters until `stop`, and reconnects after every failure.
    pub async fn run(self, store: impl DeadLetterStore, stop: CancellationToken) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut unsaved = 0;
        while !stop.is_cancelled() {
            let ended = match self.endpoint.open(Role::Collector).await {
                Ok((connection, channel)) => {
                    let open = (&connection, &channel);
                    let ended = self.collect(open, &mut unsaved, &store, &stop, &mut backoff).await;
                    close(connection).await;
                    ended
                }
                Err(error) => Err(error),
            };
            if let Err(error) = ended
                && !stop.is_cancelled()
            {
                self.status.down(&error.to_string());
                stop.run_until_cancelled(sleep(backoff.next_wait())).await;
            }
        }
    }

    /// Collects over one connection, until the stop or an error. `unsaved` is how many dead letters it holds that cannot be
    /// saved; before, those of the last connection.
    async fn collect(
        &self,
        (connection, channel): (&Connection, &Channel),
        unsaved: &mut u16,
        store: &impl DeadLetterStore,
        stop: &CancellationToken,
        backoff: &mut Backoff,
    ) -> Result<(), Error> {
        let dead = dead_letter_queue(self.queue);
        let mut deliveries = subscribe(channel, &dead, PREFETCH + (*unsaved).min(MAX_UNSAVED)).await?;
        let mut first_unsaved = None::<Instant>;
        *unsaved = 0;
        loop {
            metrics::gauge!("inbox_unsaved_dead_letters", "queue" => self.queue).set(*unsaved);
            if first_unsaved.is_some_and(|at| at.elapsed() > UNSAVED_RETRY_INTERVAL) {
                return Err(Error::Unsaved(*unsaved));
            }
            let delivery = match stop.run_until_cancelled(timeout(MAX_SILENCE, deliveries.next())).await {
                None => return Ok(()),
                Some(Ok(Some(delivery))) => delivery?,
                Some(Ok(None)) => {
                    return Err(Error::Silent(MAX_SILENCE, "a subscription that was cancelled"));
                }
                Some(Err(_)) => {
                    message_count(channel, &dead).await?;
                    backoff.reset();
                    if *unsaved == 0 {
                        self.status.up();
                    }
                    continue;
                }
            };
            let letter = dead_letter::from_dead_letter_queue(self.queue, &delivery);
            if self.save(&letter, store, connection, stop).await? {
                crash_point("dead-letter-collected");
                let ack = channel.basic_ack(delivery.delivery_tag, BasicAckOptions::default());
                within(REQUEST_DEADLINE, "basic.ack", ack).await?;
                backoff.reset();
                if *unsaved == 0 {
                    self.status.up();
                }
            } else {
                *unsaved = unsaved.saturating_add(1);
                first_unsaved.get_or_insert_with(Instant::now);
                self.status.down(&Error::Unsaved(*unsaved).to_string());
            }
        }
    }

    /// Saves a dead letter; `false` if it cannot be saved. Such a one is not acknowledged: it stays in its queue and is
    /// delivered again on the next connection, soon, and the others go on.
    async fn save(
        &self,
        letter: &DeadLetter,
        store: &impl DeadLetterStore,
        connection: &Connection,
        stop: &CancellationToken,
    ) -> Result<bool, Error> {
        let DeadLetter { queue, message_id, reason, .. } = letter;
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut waiting = false;
        loop {
            // A stop does not wait for a hanging database: whether the dead letter was saved is unknown then, and the store
            // recognises it when it is delivered again.
            let Some(saved) = stop.run_until_cancelled(store.save(letter)).await else {
                return Err(Error::Silent(REQUEST_DEADLINE, "saving a dead letter at the stop"));
            };
            match saved {
                Ok(()) => return Ok(true),
                Err(Failure::Temporary(cause) | Failure::TooSlow(cause)) => {
                    if !waiting {
                        waiting = true;
                        self.status.down(&format!("the dead-letter store is unavailable: {cause}"));
                        tracing::warn!(
                            queue,
                            message_id,
                            cause,
                            "the dead-letter store is unavailable; waiting"
                        );
                    }
                    let stopped = stop.run_until_cancelled(sleep(backoff.next_wait())).await.is_none();
                    if stopped || !connection.status().connected() {
                        return Err(Error::Silent(REQUEST_DEADLINE, "saving a dead letter"));
                    }
                }
                Err(failure) => {
                    tracing::error!(queue, message_id, reason, %failure, "failed to save a dead letter; it stays in its queue");
                    return Ok(false);
                }
            }
        }
    }
}
