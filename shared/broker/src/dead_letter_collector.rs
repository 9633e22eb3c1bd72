use std::time::Duration;

use futures_util::{StreamExt, stream::SelectAll};
use lapin::{Channel, Connection, options::BasicAckOptions};
use messaging::{
    Backoff, DeadLetter, DeadLetterStore, Failure, crash_points::crash_point, settle::Interruption,
};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    ConnectionStatus, Endpoint, Error,
    connect::{Role, close, message_count, subscribe},
    dead_letter,
    error::{REQUEST_DEADLINE, within},
    topology::dead_letter_queue,
};

/// How many unacknowledged dead letters the broker may deliver to one subscription. Few: each may be very large.
const PREFETCH: u16 = 16;

/// How many subscriptions a collector may have. It adds one when those before it are full of dead letters that cannot be
/// saved, which must not keep the others from being delivered.
const MAX_SUBSCRIPTIONS: usize = 32;

/// How soon the collector tries to save a dead letter again. It keeps it meanwhile: each delivery counts, and with a lower
/// limit by a policy the broker would drop it.
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
        while !stop.is_cancelled() {
            let ended = match self.endpoint.open(Role::Collector).await {
                Ok((connection, channel)) => {
                    let ended = self.collect((&connection, &channel), &store, &stop, &mut backoff).await;
                    close(connection).await;
                    ended
                }
                Err(error) => Err(error),
            };
            if let Err(error) = ended
                && !stop.is_cancelled()
            {
                self.status.disconnected(&error.to_string());
                stop.run_until_cancelled(sleep(backoff.next_wait())).await;
            }
        }
    }

    /// Collects over one connection, until the stop or an error.
    async fn collect(
        &self,
        (connection, channel): (&Connection, &Channel),
        store: &impl DeadLetterStore,
        stop: &CancellationToken,
        backoff: &mut Backoff,
    ) -> Result<(), Error> {
        let dead = dead_letter_queue(self.queue);
        let (mut deliveries, mut unsaved, mut tried) = (SelectAll::new(), vec![], Instant::now());
        loop {
            let held = deliveries.len() * usize::from(PREFETCH);
            if unsaved.len() >= held && deliveries.len() < MAX_SUBSCRIPTIONS {
                deliveries.push(subscribe(channel, &dead, PREFETCH).await?);
            }
            let mut letters = vec![];
            match stop.run_until_cancelled(timeout(MAX_SILENCE, deliveries.next())).await {
                None => return Ok(()),
                Some(Ok(Some(delivery))) => {
                    let delivery = delivery?;
                    let tag = delivery.delivery_tag;
                    letters.push((tag, dead_letter::from_dead_letter_queue(self.queue, delivery)));
                }
                Some(Ok(None)) => return Err(Error::Cancelled),
                Some(Err(_)) => _ = message_count(channel, &dead).await?,
            }
            if tried.elapsed() > UNSAVED_RETRY_INTERVAL {
                tried = Instant::now();
                letters.append(&mut unsaved);
            }
            for (tag, letter) in letters {
                if self.save(&letter, store, connection, stop).await? {
                    crash_point("dead-letter-collected");
                    let ack = channel.basic_ack(tag, BasicAckOptions::default());
                    within(REQUEST_DEADLINE, "basic.ack", ack).await?;
                } else {
                    unsaved.push((tag, letter));
                }
            }
            backoff.reset();
            metrics::gauge!("inbox_unsaved_dead_letters", "queue" => self.queue).set(unsaved.len() as f64);
            match unsaved.len() {
                0 => self.status.working(),
                count => self.status.impeded(&format!("{count} dead letters cannot be saved")),
            }
        }
    }

    /// Saves a dead letter; `false` if it cannot be saved. Such a one is not acknowledged, and the others go on.
    async fn save(
        &self,
        letter: &DeadLetter,
        store: &impl DeadLetterStore,
        connection: &Connection,
        stop: &CancellationToken,
    ) -> Result<bool, Error> {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        loop {
            // A stop does not wait for a hanging database: whether the dead letter was saved is unknown then, and the store
            // recognises it when it is delivered again.
            match stop.run_until_cancelled(store.save(letter)).await {
                Some(Ok(())) => return Ok(true),
                Some(Err(Failure::Temporary(cause) | Failure::TooSlow(cause))) => {
                    self.status.impeded(&format!("the dead-letter store is unavailable: {cause}"));
                }
                Some(Err(failure)) => {
                    let DeadLetter { queue, message_id, reason, .. } = letter;
                    tracing::error!(queue, message_id, reason, %failure, "failed to save a dead letter; it stays in its queue");
                    return Ok(false);
                }
                None => {}
            }
            if stop.run_until_cancelled(sleep(backoff.next_wait())).await.is_none() {
                return Err(Interruption::Stopped.into());
            }
            if !connection.status().connected() {
                return Err(Interruption::ChannelClosed.into());
            }
        }
    }
}
