//! Dead letters: the collector, which moves them from their queue into a store, and what is kept of a message.

use std::time::Duration;

use futures_util::{StreamExt, stream::SelectAll};
use lapin::{
    Channel, Connection,
    message::Delivery,
    options::BasicAckOptions,
    types::{AMQPValue, FieldTable},
};
use messaging::{
    Backoff, DeadLetter, DeadLetterStore, Failure, crash_points::crash_point, settle::Interruption,
};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    ConnectionStatus, Endpoint, Error,
    connect::{LeaderlessChecks, MAX_SILENCE, Role, message_count, subscribe},
    error::request,
    queues::dead_letter_queue,
};

/// How many unacknowledged dead letters the broker may deliver to one subscription. Few: each may be very large.
const PREFETCH: u16 = 16;

/// How many subscriptions a collector may have. It adds one when those before it are full of dead letters that cannot be
/// saved, which must not keep the others from being delivered.
const MAX_SUBSCRIPTIONS: usize = 32;

/// How soon the collector tries to save a dead letter again. It keeps it in the meantime: each delivery counts, and
/// with a lower limit by a policy the broker would drop it.
const UNSAVED_RETRY_INTERVAL: Duration = Duration::from_secs(15);

/// The longest detail of a dead letter, in characters: an error text can quote the whole message.
const MAX_DETAIL: usize = 500;

/// How deep headers may be nested. Thousands of levels would overflow the stack of whatever writes or reads them as JSON.
const MAX_DEPTH: usize = 16;

/// Moves what the broker has dead-lettered (messages at the delivery limit, and those that their consumer could not save)
/// into a store, where an operator finds it: save, then acknowledge.
///
/// A crash in between redelivers the dead letter, and the store recognizes it. While the store is unavailable, the queue
/// is the buffer. Its own connection keeps the consumer independent of it.
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
            let collecting = self.endpoint.with_connection(Role::COLLECTOR, async |connection, channel| {
                self.collect((connection, &channel), &store, &stop, &mut backoff).await
            });
            if let Err(error) = collecting.await
                && !stop.is_cancelled()
            {
                self.status.disconnected(&self.endpoint.at_node(&error));
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
        let mut leaderless = LeaderlessChecks::default();
        loop {
            let held = deliveries.len() * usize::from(PREFETCH);
            if unsaved.len() >= held && deliveries.len() < MAX_SUBSCRIPTIONS {
                deliveries.push(subscribe(channel, &dead, PREFETCH, None).await?);
            }
            let mut letters = vec![];
            match stop.run_until_cancelled(timeout(MAX_SILENCE, deliveries.next())).await {
                None => return Ok(()),
                Some(Ok(Some(delivery))) => {
                    let delivery = delivery?;
                    letters.push((delivery.delivery_tag, from_dead_letter_queue(self.queue, &delivery)));
                }
                Some(Ok(None)) => return Err(Error::Cancelled),
                Some(Err(_)) => leaderless.count(message_count(channel, &dead).await?, &self.endpoint)?,
            }
            if tried.elapsed() > UNSAVED_RETRY_INTERVAL {
                tried = Instant::now();
                letters.append(&mut unsaved);
            }
            for (tag, letter) in letters {
                if self.save(&letter, store, connection, stop).await? {
                    crash_point("dead-letter-collected");
                    request("basic.ack", channel.basic_ack(tag, BasicAckOptions::default())).await?;
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
            // A stop does not wait for a hanging database: if the dead letter was saved, the store recognizes it later.
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

/// The dead letter of a delivery that its consumer cannot apply.
pub(crate) fn from_consumer(
    queue: &'static str,
    delivery: &Delivery,
    reason: &str,
    detail: &str,
) -> DeadLetter {
    DeadLetter {
        queue,
        arrival: None,
        message_id: delivery.properties.message_id().as_ref().map(ToString::to_string),
        reason: reason.to_owned(),
        detail: detail.chars().take(MAX_DETAIL).collect(),
        headers: delivery.properties.headers().as_ref().map_or_else(|| json!({}), |table| object(table, 0)),
        routing_key: delivery.routing_key.to_string(),
        body: delivery.data.clone(),
    }
}

/// The dead letter in a delivery from the dead-letter queue. The broker puts it there with an `x-death` header. One that
/// was published by hand has none, and is saved all the same.
fn from_dead_letter_queue(queue: &'static str, delivery: &Delivery) -> DeadLetter {
    let detail = "it carries no reason: it was published to the dead-letter queue by hand";
    let letter = from_consumer(queue, delivery, "unknown", detail);
    let Some(death) = letter.headers.get("x-death").and_then(|deaths| deaths.get(0)) else { return letter };
    // `delivery_limit`, as the broker spells it.
    let reason = death["reason"].as_str().unwrap_or("unknown").replace('_', "-");
    let detail = match reason.as_str() {
        "rejected" => "its consumer could not save it as a dead letter; the log says why".to_owned(),
        _ => format!("the broker dead-lettered it: {reason}; it may have crashed its consumer"),
    };
    let arrival = Some(format!("{}/{reason}/{}/{}", death["queue"], death["time"], death["count"]));
    let routing_key = death["routing-keys"][0].as_str().unwrap_or(&letter.routing_key).to_owned();
    DeadLetter { arrival, reason, detail, routing_key, ..letter }
}

fn object(table: &FieldTable, depth: usize) -> Value {
    let entries = table.inner().iter().map(|(key, value)| (key.to_string(), plain(value, depth + 1)));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// An AMQP value as JSON. Bytes that are not UTF-8 become text with replacement characters.
fn plain(value: &AMQPValue, depth: usize) -> Value {
    match value {
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) if depth > MAX_DEPTH => {
            json!("nested too deeply")
        }
        AMQPValue::Boolean(value) => json!(value),
        AMQPValue::ShortShortInt(value) => json!(value),
        AMQPValue::ShortShortUInt(value) => json!(value),
        AMQPValue::ShortInt(value) => json!(value),
        AMQPValue::ShortUInt(value) => json!(value),
        AMQPValue::LongInt(value) => json!(value),
        AMQPValue::LongUInt(value) => json!(value),
        AMQPValue::LongLongInt(value) => json!(value),
        AMQPValue::Float(value) => json!(value),
        AMQPValue::Double(value) => json!(value),
        AMQPValue::DecimalValue(value) => json!({ "scale": value.scale, "value": value.value }),
        AMQPValue::ShortString(value) => json!(value.as_str()),
        AMQPValue::LongString(value) => json!(String::from_utf8_lossy(value.as_bytes())),
        AMQPValue::ByteArray(value) => json!(String::from_utf8_lossy(value.as_slice())),
        AMQPValue::Timestamp(value) => json!(value),
        AMQPValue::FieldArray(values) => {
            values.as_slice().iter().map(|value| plain(value, depth + 1)).collect()
        }
        AMQPValue::FieldTable(table) => object(table, depth),
        AMQPValue::Void => Value::Null,
    }
}
