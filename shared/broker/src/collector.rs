use std::time::Duration;

use events::{
    Backoff,
    transport::{DeadLetter, Failure, Shelf},
};
use faults::Point;
use futures_util::StreamExt;
use lapin::{
    Channel, Connection,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions},
    types::FieldTable,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    Endpoint, Error, Link,
    connect::{PATIENCE, close, within},
    letter,
    topology::dead_letter_queue,
};

/// How many letters are in hand at most. Few: there should be none, and each may be as large as a message can be.
const PREFETCH: u16 = 16;

/// A queue that has been silent for this long is asked whether it is still there.
const ASK_AFTER: Duration = Duration::from_secs(2);

/// Moves what is in a queue's dead letters to where an operator can look at it: keep, and then acknowledge.
///
/// A crash in between brings the letter again, and the shelf recognises it. While the shelf's database is away the queue
/// is the buffer. On a connection of its own: the consumer goes on, whatever becomes of this.
pub struct Collector {
    endpoint: Endpoint,
    queue: &'static str,
    link: Link,
}

impl Collector {
    /// A collector of the dead letters of `queue` that is not connected yet.
    pub fn new(endpoint: Endpoint, queue: &'static str) -> Self {
        Self { endpoint, queue, link: Link::new("collector") }
    }

    /// Moves what is there and what arrives, until `stop`, and comes back after every failure.
    pub async fn run(self, shelf: impl Shelf, stop: CancellationToken) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        while !stop.is_cancelled() {
            let ended = match self.endpoint.open("collector").await {
                Ok((connection, channel)) => {
                    self.link.up();
                    let ended = self.collect(&connection, &channel, &shelf, &stop, &mut backoff).await;
                    close(connection).await;
                    ended
                }
                Err(error) => Err(error),
            };
            if let Err(error) = ended
                && !stop.is_cancelled()
            {
                self.link.down(&error.to_string());
                stop.run_until_cancelled(sleep(backoff.next_wait())).await;
            }
        }
    }

    /// One connection's worth of collecting: until the stop, or an error.
    async fn collect(
        &self,
        connection: &Connection,
        channel: &Channel,
        shelf: &impl Shelf,
        stop: &CancellationToken,
        backoff: &mut Backoff,
    ) -> Result<(), Error> {
        let dead = dead_letter_queue(self.queue);
        // Before consuming, or the first flood is not limited.
        within(PATIENCE, "basic.qos", channel.basic_qos(PREFETCH, BasicQosOptions::default())).await?;
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consume = channel.basic_consume(dead.as_str().into(), "".into(), options, arguments);
        let mut deliveries = within(PATIENCE, "basic.consume", consume).await?;
        loop {
            let delivery = match stop.run_until_cancelled(timeout(ASK_AFTER, deliveries.next())).await {
                None => return Ok(()),
                Some(Ok(Some(delivery))) => delivery?,
                Some(Ok(None)) => return Err(Error::Silent(ASK_AFTER, "a subscription that was cancelled")),
                Some(Err(_)) => {
                    // Silence can mean an empty queue or a dead broker: ask.
                    let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
                    let asked = channel.queue_declare(dead.as_str().into(), passive, FieldTable::default());
                    within(PATIENCE, "queue.declare", asked).await?;
                    backoff.reset();
                    continue;
                }
            };
            let letter = letter::read(self.queue, &delivery);
            if self.keep(&letter, shelf, connection, stop).await? {
                faults::reach(Point::DeadLetterStored);
                let ack = channel.basic_ack(delivery.delivery_tag, BasicAckOptions::default());
                within(PATIENCE, "basic.ack", ack).await?;
                backoff.reset();
            }
        }
    }

    /// Whether the letter is kept. One that cannot be is passed over: not acknowledged, it stays in its queue and comes
    /// again with the next connection, and the ones behind it go on.
    async fn keep(
        &self,
        letter: &DeadLetter,
        shelf: &impl Shelf,
        connection: &Connection,
        stop: &CancellationToken,
    ) -> Result<bool, Error> {
        let DeadLetter { queue, message_id, reason, .. } = letter;
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut waiting = false;
        loop {
            // A stop does not wait for a database that hangs: whether the letter was kept is then unknown, and when it
            // comes again the shelf knows it.
            let Some(kept) = stop.run_until_cancelled(shelf.keep(letter)).await else {
                return Err(Error::Silent(PATIENCE, "a dead letter that was in hand at the stop"));
            };
            match kept {
                Ok(()) => return Ok(true),
                Err(Failure::Temporary(cause)) => {
                    if !waiting {
                        waiting = true;
                        tracing::warn!(queue, message_id, cause, "waiting with a dead letter in hand");
                    }
                    let stopped = stop.run_until_cancelled(sleep(backoff.next_wait())).await.is_none();
                    if stopped || !connection.status().connected() {
                        return Err(Error::Silent(PATIENCE, "a dead letter that could not be kept"));
                    }
                }
                Err(failure) => {
                    tracing::error!(queue, message_id, reason, %failure, "a dead letter stays in its queue");
                    return Ok(false);
                }
            }
        }
    }
}
