use std::{panic::AssertUnwindSafe, time::Duration};

use events::{
    Backoff, Event,
    transport::{Failure, Handler, Incoming},
};
use futures_util::{FutureExt, StreamExt};
use lapin::{
    Channel, Connection,
    message::Delivery,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    Endpoint, Error, Link,
    connect::{PATIENCE, close, within},
    dead_letters::DeadLetters,
};

/// How much a consumer takes at a time.
#[derive(Debug, Clone)]
pub struct ConsumerOptions {
    /// How many unacknowledged messages the broker may hand over, 1 to 10,000. A round trip per message costs nine
    /// tenths of the throughput; an unlimited number would be buffered here without bound.
    pub prefetch: u16,
    /// The most messages that are handled in one transaction.
    pub group: usize,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self { prefetch: 500, group: 250 }
    }
}

/// A queue that has been silent for this long is asked whether it is still there.
const ASK_AFTER: Duration = Duration::from_secs(2);

/// How long a handler may take over one group.
const HANDLER_DEADLINE: Duration = Duration::from_secs(30);

/// How often an event is tried whose failure nobody understands, before it is set aside.
const UNEXPECTED_TRIES: u32 = 5;

/// Consumes one queue until it is told to stop, and comes back after every failure.
pub struct Consumer {
    endpoint: Endpoint,
    queue: &'static str,
    options: ConsumerOptions,
    link: Link,
}

impl Consumer {
    /// A consumer of `queue` that is not connected yet.
    pub fn new(endpoint: Endpoint, queue: &'static str, options: ConsumerOptions, link: Link) -> Self {
        Self { endpoint, queue, options, link }
    }

    /// Hands what arrives to `handler`, until `stop`. What is in hand then is finished first.
    pub async fn run(self, handler: impl Handler, stop: CancellationToken) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        while !stop.is_cancelled() {
            let opened = self.open(&handler, &stop).await;
            let ended = match opened {
                Ok(mut session) => {
                    backoff.reset();
                    self.link.up();
                    let ended = session.consume(self.options.group).await;
                    session.close().await;
                    ended
                }
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                self.link.down(&error.to_string());
                stop.run_until_cancelled(sleep(backoff.next_wait())).await;
            }
        }
    }

    async fn open<'run, H: Handler>(
        &self,
        handler: &'run H,
        stop: &'run CancellationToken,
    ) -> Result<Session<'run, H>, Error> {
        let (connection, channel) = self.endpoint.open("consumer").await?;
        // Before consuming, or the first flood is not limited.
        let qos = channel.basic_qos(self.options.prefetch, BasicQosOptions::default());
        within(PATIENCE, "basic.qos", qos).await?;
        let consume = channel.basic_consume(
            self.queue.into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let deliveries = within(PATIENCE, "basic.consume", consume).await?;
        let dead_letters = DeadLetters::new(self.endpoint.clone(), self.queue);
        Ok(Session { connection, channel, deliveries, dead_letters, queue: self.queue, handler, stop })
    }
}

/// One connection's worth of consuming. Any error ends it; what was not acknowledged is delivered again.
struct Session<'run, H> {
    connection: Connection,
    channel: Channel,
    deliveries: lapin::Consumer,
    dead_letters: DeadLetters,
    queue: &'static str,
    handler: &'run H,
    stop: &'run CancellationToken,
}

/// A delivery, and the event that it carries.
struct Received {
    delivery: Delivery,
    event: Event,
}

impl<H: Handler> Session<'_, H> {
    /// Until the stop (`Ok`), or until the connection fails.
    async fn consume(&mut self, largest_group: usize) -> Result<(), Error> {
        loop {
            let next = self.stop.run_until_cancelled(timeout(ASK_AFTER, self.deliveries.next())).await;
            let first = match next {
                None => return Ok(()),
                Some(Ok(Some(delivery))) => delivery?,
                // The broker cancelled the consumer: the queue was deleted, or its leader moved.
                Some(Ok(None)) => return Err(Error::Silent(ASK_AFTER, "a subscription that was cancelled")),
                Some(Err(_)) => {
                    self.still_there().await?;
                    continue;
                }
            };
            // Whatever has arrived already comes along; nothing is waited for. Under load groups are large and cheap
            // per message, at rest a message is handled at once.
            let mut group = vec![first];
            while group.len() < largest_group
                && let Some(Some(delivery)) = self.deliveries.next().now_or_never()
            {
                group.push(delivery?);
            }
            self.handle(group).await?;
        }
    }

    /// Silence can mean an empty queue or a dead broker: ask. The answer also tells how much is waiting.
    async fn still_there(&self) -> Result<(), Error> {
        let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
        let asked = self.channel.queue_declare(self.queue.into(), passive, FieldTable::default());
        let queue = within(PATIENCE, "queue.declare", asked).await?;
        metrics::gauge!("broker_queue_ready", "queue" => self.queue).set(queue.message_count());
        Ok(())
    }

    async fn handle(&mut self, group: Vec<Delivery>) -> Result<(), Error> {
        let mut received = Vec::with_capacity(group.len());
        for delivery in group {
            match events::decode(&incoming(&delivery)) {
                Ok(event) => received.push(Received { delivery, event }),
                Err(rejection) => {
                    self.set_aside(&delivery, rejection.reason(), &rejection.to_string()).await?;
                }
            }
        }
        let Some(last) = received.last() else {
            return Ok(());
        };
        let last = last.delivery.delivery_tag;
        let events: Vec<_> = received.iter().map(|received| received.event.clone()).collect();
        match self.apply(&events).await? {
            // One acknowledgement for all: everything up to here is committed, or set aside above.
            Ok(()) => self.acknowledge(last, true).await,
            Err(failure) if events.len() == 1 => self.isolate(&received[0], failure).await,
            Err(_) => {
                // One of them sinks the others: try each alone, in order.
                for received in &received {
                    match self.apply(std::slice::from_ref(&received.event)).await? {
                        Ok(()) => self.acknowledge(received.delivery.delivery_tag, false).await?,
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
                        tracing::warn!(
                            queue = self.queue,
                            cause,
                            "waiting with {} events in hand",
                            events.len()
                        );
                    }
                    // A stop, or a lost connection, ends the waiting: the group is delivered again.
                    if self.stop.run_until_cancelled(sleep(backoff.next_wait())).await.is_none()
                        || !self.connection.status().connected()
                    {
                        return Err(Error::Silent(HANDLER_DEADLINE, "a group that could not be applied"));
                    }
                }
                Err(failure) => return Ok(Err(failure)),
            }
        }
    }

    /// What becomes of one event that cannot be applied: at once, or after a few more tries, the dead letters.
    async fn isolate(&mut self, received: &Received, mut failure: Failure) -> Result<(), Error> {
        for attempt in 2..=UNEXPECTED_TRIES {
            if matches!(failure, Failure::Permanent(_)) {
                break;
            }
            // 100, 200, 400, 800 ms: in hand, because giving it back would let later events of its order overtake it.
            sleep(Duration::from_millis(50) * 2_u32.pow(attempt - 1)).await;
            let Event { id, event_type, aggregate_id, .. } = &received.event;
            tracing::warn!(event_id = %id, event_type, %aggregate_id, attempt, "trying again: {failure}");
            match self.apply(std::slice::from_ref(&received.event)).await? {
                Ok(()) => return self.acknowledge(received.delivery.delivery_tag, false).await,
                Err(next) => failure = next,
            }
        }
        let reason = if matches!(failure, Failure::Permanent(_)) { "permanent" } else { "unexpected" };
        self.set_aside(&received.delivery, reason, &failure.to_string()).await
    }

    /// First the copy, then the acknowledgement.
    async fn set_aside(&mut self, delivery: &Delivery, reason: &str, detail: &str) -> Result<(), Error> {
        self.dead_letters.keep(delivery, reason, detail).await?;
        self.acknowledge(delivery.delivery_tag, false).await?;
        metrics::counter!("inbox_dead_lettered_total", "reason" => reason.to_owned()).increment(1);
        let message_id = delivery.properties.message_id().as_ref().map(ToString::to_string);
        tracing::error!(queue = self.queue, message_id, reason, detail, "set aside in the dead letters");
        Ok(())
    }

    async fn acknowledge(&self, tag: u64, multiple: bool) -> Result<(), Error> {
        let acknowledged = self.channel.basic_ack(tag, BasicAckOptions { multiple });
        within(PATIENCE, "basic.ack", acknowledged).await
    }

    async fn close(self) {
        // First no more deliveries, then the connection: what was prefetched goes back untouched.
        let cancel = self.channel.basic_cancel(self.deliveries.tag(), BasicCancelOptions::default());
        let _ = within(Duration::from_secs(1), "basic.cancel", cancel).await;
        close(self.connection).await;
    }
}

fn incoming(delivery: &Delivery) -> Incoming {
    let headers = delivery.properties.headers().as_ref().map(FieldTable::inner);
    let header = |key: &str| headers.and_then(|headers| headers.get(key));
    Incoming {
        message_id: delivery.properties.message_id().as_ref().map(ToString::to_string),
        traceparent: match header("traceparent") {
            Some(AMQPValue::LongString(text)) => Some(text.to_string()),
            // Absent, or of a type that no trace context has: a new trace then.
            _ => None,
        },
        body: delivery.data.clone(),
    }
}
