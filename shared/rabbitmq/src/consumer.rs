use std::{convert::Infallible, sync::Arc, time::Duration};

use events::Origin;
use futures_util::{FutureExt, StreamExt};
use lapin::{
    Channel, Connection,
    message::Delivery,
    options::{BasicAckOptions, BasicRejectOptions},
    types::{AMQPValue, ShortString},
};
use messaging::{
    Backoff, BrokerUnavailable, DeadLetter, DeadLetterStore, Handler, Incoming, RoundLimiter,
    settle::{AVAILABILITY_INTERVAL, Availability, DeliveryChannel, Interruption, Pace, Settling},
};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    ConnectionStatus, Endpoint, Error,
    connect::{LeaderlessChecks, MAX_SILENCE, Role, message_count, queue_state, subscribe},
    dead_letters,
    error::request,
    queues, topology,
};

/// How many unacknowledged messages the broker may deliver. A round trip per message costs nine tenths of the
/// throughput; an unlimited number would be buffered here.
pub(crate) const PREFETCH: u16 = 500;

/// The most messages that are applied in one transaction.
const LARGEST_GROUP: usize = 250;

/// How often the queue is checked under load: for the number of messages that wait, and, for an external consumer, to
/// restore a lost binding.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A group takes no further message when its bodies are this large together: each is held as bytes and as an event.
const MAX_GROUP_BYTES: usize = 8 * 1024 * 1024;

/// A session ends after so many checks in a row that found messages which are not delivered. A delivery resets the number.
const MAX_UNDELIVERED: u32 = 3;

/// A connection that lasted for less than this is followed by a longer pause than the one before. Each lost connection
/// counts as a delivery of all that it held: if the network breaks each within milliseconds, a consumer that connects
/// again at once uses up the delivery limit of good messages within seconds.
const LASTING: Duration = Duration::from_secs(10);

/// Consumes one queue until it is stopped, and reconnects after every failure.
///
/// One instance is active, the others are its standbys. All have the same prefetch, because the order depends on it. When a
/// consumer is lost, RabbitMQ gives what it held to the next one, and what that one does not take stays *before* what it
/// returns if it is lost as well: a standby that took one message of ten and died leaves 2, 3, …, 10, 1. A crash of the
/// broker loses all of them at once. With equal prefetches the next one always takes all that was returned. (Found by the
/// soak with kills of the broker: four orders in 24,000.)
///
/// The instances of a service share partitions by priorities: each draws one for each partition, and the highest is active.
pub struct Consumer {
    endpoint: Endpoint,
    queue: &'static str,
    /// The queue that it subscribes to: `queue` itself, or one of its partitions.
    partition: String,
    priority: Option<i32>,
    prefetch: u16,
    status: ConnectionStatus,
    available: Availability,
}

impl Consumer {
    /// A consumer of `queue`, not connected yet.
    pub fn new(endpoint: Endpoint, queue: &'static str, status: ConnectionStatus) -> Self {
        let (partition, available) = (queue.to_owned(), Arc::new(|| Ok(())));
        Self { endpoint, queue, partition, priority: None, prefetch: PREFETCH, status, available }
    }

    /// Consumes only one partition of the queue.
    #[must_use]
    pub fn partition(self, partition: String) -> Self {
        // Without partitions a priority would only move the queue from one instance to another.
        let priority = (partition != self.queue).then(|| fastrand::i32(0..i32::MAX));
        Self { partition, priority, ..self }
    }

    /// With another prefetch, 1 to 10,000: the same for every instance.
    #[must_use]
    pub fn prefetch(self, prefetch: u16) -> Self {
        Self { prefetch, ..self }
    }

    /// Takes no messages while `available` says that the handler cannot work: they would be held back from an instance
    /// that can, and each lost connection would count as one more delivery of a message that is not to blame.
    #[must_use]
    pub fn when(self, available: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { available: Arc::new(available), ..self }
    }

    /// Gives deliveries to `handler` until `stop`, and saves in `letters` what it cannot apply. A group that is being
    /// applied at the stop is finished first.
    pub async fn run(self, handler: impl Handler, letters: impl DeadLetterStore, stop: CancellationToken) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        // Each session of these counts as a delivery of all that it held, and the broker sets aside what it has delivered too often.
        let mut alike_backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
        let mut last_unexpected = None;
        while !stop.is_cancelled() {
            if let Err(reason) = (self.available)() {
                self.status.disconnected(&Interruption::HandlerUnavailable(reason).to_string());
                stop.run_until_cancelled(sleep(AVAILABILITY_INTERVAL)).await;
                continue;
            }
            // Kept until the connection is closed: lapin sends `basic.cancel` when the last of these is dropped.
            let mut subscription = None;
            let session = self.endpoint.with_connection(Role::CONSUMER, async |connection, channel| {
                let is_free = is_free(&channel, &self.partition).await?;
                let asked = Instant::now();
                let deliveries = subscribe(&channel, &self.partition, self.prefetch, self.priority).await?;
                subscription = Some(deliveries.clone());
                self.status.working();
                let (consumer, opened) = (&self, Instant::now());
                let mut session = Session {
                    consumer,
                    connection,
                    channel,
                    deliveries,
                    checked: opened,
                    leaderless: LeaderlessChecks::default(),
                    found_empty: None,
                    is_drained: false,
                    undelivered: 0,
                    // A queue whose leader is lost looks free, and a subscription waits for the next leader.
                    is_active: is_free && opened.duration_since(asked) < ELECTION,
                    is_cancelled: false,
                    last_unexpected: &mut last_unexpected,
                };
                let ended = session.consume(&handler, &letters, &stop).await;
                if opened.elapsed() > LASTING {
                    backoff.reset();
                }
                ended
            });
            let ended = session.await;
            drop(subscription);
            if let Err(error) = ended {
                self.status.disconnected(&self.endpoint.at_node(&error));
                show(&self.partition, None);
                show_active(&self.partition, false);
                let wait = match error {
                    Error::Interrupted(Interruption::FailAlike(_)) => alike_backoff.next_wait(),
                    _ => backoff.next_wait(),
                };
                stop.run_until_cancelled(sleep(wait)).await;
            }
            if last_unexpected.is_none() {
                alike_backoff.reset();
            }
        }
    }
}

/// RabbitMQ waits a quarter of a second for a queue's leader, then reports no consumers. This stays below that.
const LEADER_DEADLINE: Duration = Duration::from_millis(200);

/// How often a queue is asked until its leader answers in time.
const LEADER_TRIES: u32 = 5;

/// A subscription that takes longer may have waited for the election of a leader.
const ELECTION: Duration = Duration::from_secs(1);

/// Whether the leader of a queue has answered that it has no consumer.
async fn is_free(channel: &Channel, queue: &str) -> Result<bool, Error> {
    for _ in 0..LEADER_TRIES {
        let asked = Instant::now();
        let (_, is_consumed) = queue_state(channel, queue).await?;
        if is_consumed || asked.elapsed() < LEADER_DEADLINE {
            return Ok(!is_consumed);
        }
    }
    Ok(false)
}

/// Shows how much waits in the queue while a group is applied, which may take minutes. Whether the consumer has caught
/// up is not decided here: it holds messages in the meantime.
async fn show_waiting(channel: Channel, queue: &str) -> Infallible {
    loop {
        sleep(CHECK_INTERVAL).await;
        show(queue, message_count(&channel, queue).await.ok().flatten());
    }
}

fn show(queue: &str, messages: Option<u32>) {
    let messages = messages.map_or(f64::NAN, f64::from);
    metrics::gauge!("broker_queue_ready", "queue" => queue.to_owned()).set(messages);
}

fn show_active(queue: &str, is_active: bool) {
    metrics::gauge!("broker_consumer_active", "queue" => queue.to_owned())
        .set(f64::from(u8::from(is_active)));
}

/// One connection of a consumer.
struct Session<'run> {
    consumer: &'run Consumer,
    connection: &'run Connection,
    channel: Channel,
    deliveries: lapin::Consumer,
    /// When the queue was last checked.
    checked: Instant,
    leaderless: LeaderlessChecks,
    /// When the last check began, if it found nothing waiting. What the broker had delivered by then may not be settled yet.
    found_empty: Option<Instant>,
    /// Whether nothing that was received is left out of the last group.
    is_drained: bool,
    /// How many checks in a row found messages that the broker does not deliver, although this consumer is the active one.
    undelivered: u32,
    /// Whether this consumer is known to be the active one: the queue was free when it subscribed, or something was delivered.
    is_active: bool,
    /// Whether the broker has ended the subscription. What was received before can still be acknowledged.
    is_cancelled: bool,
    /// Of [`Settling`]. It outlives the session: events that fail alike end that, and come back in the next one.
    last_unexpected: &'run mut Option<String>,
}

impl Session<'_> {
    async fn consume(
        &mut self,
        handler: &impl Handler,
        letters: &impl DeadLetterStore,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let Consumer { partition: queue, status, available, .. } = self.consumer;
        let (mut limit, mut limiter) = (LARGEST_GROUP, RoundLimiter::default());
        while let Some(group) = self.receive(limit, stop).await? {
            let began = Instant::now();
            status.set_working(true);
            let shown = show_waiting(self.channel.clone(), queue);
            let mut last = self.last_unexpected.take();
            let last_unexpected = &mut last;
            let mut settling =
                Settling { channel: &mut *self, handler, letters, available, queue, last_unexpected, stop };
            let settled = tokio::select! {
                settled = settling.settle(&group) => settled,
                never = shown => match never {},
            };
            *self.last_unexpected = last;
            status.set_working(false);
            // A database that is too slow for a large group is as slow for the next one.
            limit = match settled? {
                Pace::TooSlow => (group.len() / 2).max(1),
                Pace::Normal => (limit * 2).min(LARGEST_GROUP),
            };
            if self.is_drained {
                self.all_settled();
            }
            if self.is_cancelled {
                return Err(Error::Cancelled);
            }
            limiter.wait(began.elapsed()).await;
        }
        Ok(())
    }

    /// Waits for a delivery, and takes all others that have arrived, up to `limit`: under load groups are large and
    /// cheap per message; when calm, each message is applied at once. `None`: the stop came.
    async fn receive(
        &mut self,
        limit: usize,
        stop: &CancellationToken,
    ) -> Result<Option<Vec<Delivery>>, Error> {
        let first = loop {
            if self.checked.elapsed() > CHECK_INTERVAL {
                self.check_queue().await?;
            }
            match stop.run_until_cancelled(timeout(MAX_SILENCE, self.deliveries.next())).await {
                None => return Ok(None),
                Some(Ok(Some(delivery))) => break delivery?,
                Some(Ok(None)) => return Err(Error::Cancelled),
                Some(Err(_)) => {
                    self.all_settled();
                    self.check_queue().await?;
                }
            }
        };
        (self.is_active, self.is_drained, self.undelivered) = (true, false, 0);
        let (mut bytes, mut group) = (first.data.len(), vec![first]);
        while group.len() < limit && bytes < MAX_GROUP_BYTES {
            match self.deliveries.next().now_or_never() {
                Some(Some(delivery)) => {
                    let delivery = delivery?;
                    bytes += delivery.data.len();
                    group.push(delivery);
                }
                // lapin announces the end of a subscription once: a later read would wait forever, on a healthy connection.
                Some(None) => {
                    self.is_cancelled = true;
                    break;
                }
                None => {
                    self.is_drained = true;
                    break;
                }
            }
        }
        Ok(Some(group))
    }

    /// Records that nothing is held. If nothing waited at the last check, all that had come by then is applied: what the broker
    /// delivered before it answered was received before the answer.
    fn all_settled(&mut self) {
        if let Some(at) = self.found_empty.take() {
            self.consumer.status.set_empty(Some((at, self.is_active)));
        }
    }

    /// Checks that the queue exists and how much waits in it, and restores an external consumer's bindings.
    async fn check_queue(&mut self) -> Result<(), Error> {
        let Consumer { endpoint, queue, partition, status, .. } = self.consumer;
        let began = Instant::now();
        let messages = message_count(&self.channel, partition).await?;
        show(partition, messages);
        self.leaderless.count(messages, endpoint)?;
        self.found_empty = (messages == Some(0)).then_some(began);
        if self.found_empty.is_none() {
            status.set_empty(None);
        }
        // Or another consumer has become the active one: the broker does not say so.
        let is_stuck = self.is_active && messages.is_some_and(|ready| ready > 0);
        self.undelivered = if is_stuck { self.undelivered + 1 } else { 0 };
        if self.undelivered == MAX_UNDELIVERED {
            return Err(Error::Undelivered);
        }
        show_active(partition, self.is_active);
        if let Some(own) = endpoint.own_queue.filter(|own| own.name == *queue) {
            topology::bind_queue(&self.channel, own).await?;
        }
        self.checked = Instant::now();
        Ok(())
    }
}

impl DeliveryChannel for Session<'_> {
    type Delivery = Delivery;

    fn incoming<'a>(&'a self, delivery: &'a Delivery) -> Incoming<'a> {
        Incoming {
            message_id: delivery.properties.message_id().as_ref().map(ShortString::as_str),
            traceparent: match header(delivery, "traceparent") {
                Some(AMQPValue::LongString(text)) => str::from_utf8(text.as_bytes()).ok(),
                // Absent or of another type: the event starts a new trace.
                _ => None,
            },
            body: &delivery.data,
            earlier_deliveries: earlier_deliveries(delivery),
            origin: Some(Origin {
                user: delivery.properties.user_id().as_ref().map(ShortString::as_str),
                own_login: self.consumer.endpoint.login(),
                // What a login puts into a queue that dead-letters to the exchange of events arrives under any key.
                routing_key: (delivery.exchange.as_str() == queues::EVENTS
                    && header(delivery, "x-death").is_none())
                .then(|| delivery.routing_key.as_str()),
            }),
        }
    }

    fn dead_letter(&self, delivery: &Delivery, reason: &str, detail: &str) -> DeadLetter {
        dead_letters::from_consumer(self.consumer.queue, delivery, reason, detail)
    }

    async fn acknowledge(&mut self, delivery: &Delivery, multiple: bool) -> Result<(), BrokerUnavailable> {
        let options = BasicAckOptions { multiple };
        Ok(request("basic.ack", self.channel.basic_ack(delivery.delivery_tag, options)).await?)
    }

    async fn reject(&mut self, delivery: &Delivery) -> Result<(), BrokerUnavailable> {
        let reject = self.channel.basic_reject(delivery.delivery_tag, BasicRejectOptions { requeue: false });
        Ok(request("basic.reject", reject).await?)
    }

    fn is_open(&self) -> bool {
        // RabbitMQ can close the channel alone, for example when a delivery is not answered within its consumer time-out.
        self.connection.status().connected() && self.channel.status().connected() && !self.is_cancelled
    }
}

/// How often the broker has delivered this message before without an answer. Quorum queues count it in a header, from
/// the second delivery on.
fn earlier_deliveries(delivery: &Delivery) -> u32 {
    match header(delivery, "x-delivery-count") {
        Some(AMQPValue::LongLongInt(count)) => u32::try_from(*count).unwrap_or(0),
        Some(AMQPValue::LongInt(count)) => u32::try_from(*count).unwrap_or(0),
        _ => u32::from(delivery.redelivered),
    }
}

fn header<'a>(delivery: &'a Delivery, name: &str) -> Option<&'a AMQPValue> {
    delivery.properties.headers().as_ref()?.inner().get(name)
}
