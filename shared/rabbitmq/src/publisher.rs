//! Publishing: all messages of a batch at once, then all confirms, and only then what became of each.

use std::{
    collections::HashSet,
    pin::pin,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use events::spans::{Kind, Span};
use events::{TraceContext, routing_key};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, PublisherConfirm,
    message::BasicReturnMessage,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldArray, FieldTable},
};
use messaging::{
    BrokerUnavailable, Outgoing, PublishOutcome, Publisher, Refusal,
    confirms::{self, Confirm},
    crash_points::crash_point,
};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::{
    ConnectionStatus, Endpoint, Error,
    connect::{MAX_SILENCE, OpenConnection, Role, close},
    error::{Fault, request},
    queues::{EVENTS, FOR_EXTERNAL_CONSUMERS, partition_key},
};

/// The largest body that is sent, several times what the contracts allow. Over a larger one RabbitMQ closes the channel, and all
/// confirms of the batch are lost. `max_message_size` in our files is the same number: it also bounds the memory of a consumer,
/// which holds a prefetch of such messages.
const MAX_BODY_BYTES: usize = 128 * 1024;

/// The longest routing key and type of AMQP. lapin panics over a longer one.
const MAX_NAME_BYTES: usize = 255;

/// The longest trace context that is sent; W3C's has 55 bytes. The headers of a message must fit into one frame, and over
/// a larger frame RabbitMQ closes the connection.
const MAX_TRACEPARENT_BYTES: usize = 1024;

/// How often the topology is declared again. When one of several queues loses its binding, the broker routes messages
/// to the others and reports nothing: this bounds for how long. It takes some twenty answers of the broker, so it follows a batch,
/// whose events are on their way, and precedes one only after a pause.
const DECLARE_INTERVAL: Duration = Duration::from_secs(5);
const LONGEST_DECLARE_INTERVAL: Duration = Duration::from_secs(10);

/// How often the topology is declared again because messages are returned: a binding is missing, or no queue wants them.
const REPAIR_INTERVAL: Duration = Duration::from_secs(1);

/// How often a channel is replaced while messages are negatively acknowledged: RabbitMQ 3.10 goes on refusing on it
/// after the queue has room again.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// How long health shows that a queue refuses messages, after the last refusal: longer than the longest wait before the
/// next attempt of a refused event.
const REFUSAL_SHOWN: Duration = Duration::from_secs(65);
const REFUSED: &str = "a queue refuses messages, or does not confirm them";

/// How often it is checked that the broker returns unroutable messages. An alternate exchange, also one by a policy, takes
/// such messages: a confirm then says nothing.
const RETURN_CHECK_INTERVAL: Duration = Duration::from_secs(60);
const NOT_RETURNED: &str =
    "unroutable messages are not returned: shop.events has an alternate exchange, or a queue is bound with #";

/// How often the wait for confirms checks for an alarm: the broker announces it in answer to the first publish, and sends
/// no confirms before it is over.
const ALARM_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Publishes with confirms over one channel of one connection. One task owns it: two tasks that publish on clones of a
/// channel get each other's confirms.
pub struct ConfirmingPublisher {
    endpoint: Endpoint,
    status: ConnectionStatus,
    confirm_deadline: Duration,
    open: Option<Open>,
    /// When a queue last refused a message.
    queue_refused: Option<Instant>,
    /// When a message was last sent that must be returned.
    checked_returns: Option<Instant>,
    /// Whether it was returned.
    returns: bool,
}

struct Open {
    connection: OpenConnection,
    /// `None`: the next message needs a new one. Answers that are still to come on the old one would be taken for those of
    /// other messages.
    channel: Option<Channel>,
    /// When the broker last answered.
    last_answer: Instant,
    /// When the topology was last declared. `None`: it may have changed since.
    declared: Option<Instant>,
    /// A message was returned since then.
    needs_repair: bool,
    /// When a channel that refuses messages is to be replaced.
    renew_at: Instant,
}

impl ConfirmingPublisher {
    /// A publisher, not connected yet. `confirm_deadline` bounds one batch from its first publish to its last confirm;
    /// after it the outcome of an unanswered message is unknown.
    pub fn new(endpoint: Endpoint, status: ConnectionStatus, confirm_deadline: Duration) -> Self {
        let (queue_refused, checked_returns) = (None, None);
        Self { endpoint, status, confirm_deadline, open: None, queue_refused, checked_returns, returns: true }
    }
}

impl Publisher for ConfirmingPublisher {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        if let Err(error) = self.prepare(LONGEST_DECLARE_INTERVAL).await {
            let reason = self.endpoint.at_node(&error);
            match error {
                // A blocked connection is alive: the next one would be blocked too.
                Error::Blocked => self.status.impeded(&reason),
                _ => self.disconnect(&reason).await,
            }
            return Err(BrokerUnavailable(reason));
        }
        match self.queue_refused {
            Some(at) if at.elapsed() < REFUSAL_SHOWN => self.status.impeded(REFUSED),
            _ if !self.returns => self.status.impeded(NOT_RETURNED),
            _ => self.status.working(),
        }
        Ok(())
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        let (began, deadline) = (SystemTime::now(), Instant::now() + self.confirm_deadline);
        let (mut outcomes, closes_channel) = self.publish_together(batch, deadline).await;
        // The broker has closed the channel over one of these. Alone, each shows whether it is the one.
        for (message, outcome) in batch.iter().zip(&mut outcomes) {
            if !closes_channel || *outcome != PublishOutcome::Unknown {
                continue;
            }
            let (alone, closes_channel) = self.publish_together(&[message], deadline).await;
            *outcome = match alone[..] {
                _ if closes_channel => PublishOutcome::Refused(Refusal::Rejected),
                [PublishOutcome::Unknown] | [] => break,
                [outcome, ..] => outcome,
            };
        }
        if self.open.as_ref().is_some_and(|open| open.channel.is_some()) {
            let prepared = timeout_at(deadline, self.prepare(DECLARE_INTERVAL)).await;
            // After a failure the next batch waits for the declaration.
            if !matches!(prepared, Ok(Ok(())))
                && let Some(open) = &mut self.open
            {
                open.declared = None;
            }
        }
        record_spans(batch, &outcomes, began);
        outcomes
    }
}

impl ConfirmingPublisher {
    /// Publishes messages on one channel, up to the deadline. `true`: the broker has closed it over one of those whose
    /// outcome is unknown.
    async fn publish_together(
        &mut self,
        batch: &[&Outgoing],
        deadline: Instant,
    ) -> (Vec<PublishOutcome>, bool) {
        let is_ready =
            matches!(timeout_at(deadline, self.prepare(LONGEST_DECLARE_INTERVAL)).await, Ok(Ok(())));
        let open = self.open.as_mut().filter(|_| is_ready);
        let Some((open, channel)) = open.and_then(|open| open.channel.take().map(|channel| (open, channel)))
        else {
            return (vec![PublishOutcome::Unknown; batch.len()], false);
        };
        // Once a minute a message that no queue is bound for comes first. If the broker confirms it, instead of returning it, an
        // alternate exchange takes unroutable messages, and confirms prove nothing.
        let is_due = self.checked_returns.is_none_or(|at| at.elapsed() > RETURN_CHECK_INTERVAL);
        let unbound = batch.first().filter(|_| is_due).map(|message| unbound(message));
        let all: Vec<_> = unbound.iter().chain(batch.iter().copied()).collect();
        let sent = send_all(&channel, &all, &self.endpoint, deadline).await;
        crash_point("batch-sent");
        // Partitions are the queues that share a service's events (docs/operations.md). While an operator changes their number,
        // a message may reach no service, and is not returned if an external consumer's queue takes it. The command records
        // the change before it touches bindings, so it is enough to ask after the batch was routed; the answer comes while the
        // confirms are awaited.
        let (confirms, partitions) = tokio::join!(
            await_confirms(&open.connection, &all, sent, deadline),
            self.endpoint.check_partitions(&channel)
        );
        let (mut outcomes, closed_because) = confirms;
        let now = Instant::now();
        if unbound.is_some() {
            self.checked_returns = Some(now);
            match outcomes.remove(0) {
                PublishOutcome::Confirmed => self.returns = false,
                PublishOutcome::Refused(Refusal::Unroutable) => self.returns = true,
                _ => {}
            }
            metrics::gauge!("broker_returns_unroutable").set(f64::from(u8::from(self.returns)));
        }
        open.last_answer = now;
        let is_nacked = outcomes.contains(&PublishOutcome::Refused(Refusal::Nacked));
        if is_nacked {
            self.queue_refused = Some(now);
        }
        // On the same connection: events of a type that no queue wants must not slow down the others.
        open.needs_repair |= outcomes.contains(&PublishOutcome::Refused(Refusal::Unroutable));
        let all_known = !outcomes.contains(&PublishOutcome::Unknown);
        if partitions.is_err() {
            open.declared = None;
            let confirmed = outcomes.iter_mut().filter(|it| **it == PublishOutcome::Confirmed);
            confirmed.for_each(|it| *it = PublishOutcome::Unknown);
        }
        if doubt_confirms(batch, &mut outcomes, self.endpoint.partitions) {
            open.declared = None;
        }
        if all_known {
            if partitions.is_ok() && (!is_nacked || now < open.renew_at) {
                open.channel = Some(channel);
            }
            return (outcomes, false);
        }
        match Trouble::of(&open.connection, &channel, closed_because).await {
            Trouble::Closed(Some(Error::Refused(Fault::Message, _))) => return (outcomes, true),
            Trouble::Closed(reason) => {
                open.declared = None;
                match reason {
                    Some(error) if open.connection.status().connected() => {
                        self.status.impeded(&error.to_string());
                    }
                    Some(error) => self.status.disconnected(&self.endpoint.at_node(&error)),
                    None => {}
                }
            }
            Trouble::Blocked => self.status.impeded(&Error::Blocked.to_string()),
            Trouble::QueueStuck(channel) => {
                // As unknown these would be published again at once, into the other queues too, every time.
                let unconfirmed = PublishOutcome::Refused(Refusal::Unconfirmed);
                let unknown = outcomes.iter_mut().filter(|it| **it == PublishOutcome::Unknown);
                unknown.for_each(|it| *it = unconfirmed);
                self.queue_refused = Some(now);
                if self.endpoint.nodes() > 1 {
                    // Or this node is cut off from a majority, and goes on serving clients.
                    self.disconnect(&self.endpoint.at_node(REFUSED)).await;
                } else {
                    open.channel = Some(channel);
                    self.status.impeded(REFUSED);
                }
            }
            Trouble::Silent => {
                self.disconnect(&self.endpoint.at_node("a publish was not confirmed")).await;
            }
        }
        (outcomes, false)
    }

    /// Connects, opens a channel and declares the topology, as far as that is due: `interval` after the last time.
    async fn prepare(&mut self, interval: Duration) -> Result<(), Error> {
        if self.open.as_ref().is_some_and(|open| !open.connection.status().connected()) {
            self.disconnect(&self.endpoint.at_node("the connection was lost")).await;
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(Open {
                connection: self.endpoint.connect(Role::PUBLISHER).await?,
                channel: None,
                last_answer: Instant::now(),
                declared: None,
                needs_repair: false,
                renew_at: Instant::now(),
            }),
        };
        // The broker answers nothing during an alarm.
        if open.connection.status().blocked() {
            return Err(Error::Blocked);
        }
        let channel = match open.channel.take().filter(|channel| channel.status().connected()) {
            Some(channel) => channel,
            None => {
                open.renew_at = Instant::now() + RENEW_INTERVAL;
                confirm_channel(&open.connection).await?
            }
        };
        let is_urgent = open.needs_repair || !self.returns;
        let interval = if is_urgent { REPAIR_INTERVAL } else { interval };
        if open.declared.is_none_or(|at| at.elapsed() > interval) {
            self.endpoint.declare(&open.connection, &channel).await?;
            open.last_answer = Instant::now();
            (open.declared, open.needs_repair) = (Some(open.last_answer), false);
        } else if open.last_answer.elapsed() > MAX_SILENCE {
            // Changes nothing; an answer shows that the broker is there.
            let confirms = channel.confirm_select(ConfirmSelectOptions::default());
            request("confirm.select", confirms).await?;
            open.last_answer = Instant::now();
        }
        open.channel = Some(channel);
        Ok(())
    }

    /// Closes the connection: the outcome of everything in flight on it is unknown now.
    async fn disconnect(&mut self, reason: &str) {
        self.status.disconnected(reason);
        if let Some(open) = self.open.take() {
            close(open.connection).await;
        }
    }
}

/// Why the broker has not said what became of some messages.
enum Trouble {
    /// It has closed the channel, or the connection is lost.
    Closed(Option<Error>),
    /// It has raised an alarm, and confirms nothing until that is over.
    Blocked,
    /// It still opens channels, so only a queue is stuck.
    QueueStuck(Channel),
    /// It answers nothing.
    Silent,
}

impl Trouble {
    /// `closed_because`: the error that ended the wait for a confirm.
    async fn of(connection: &Connection, channel: &Channel, closed_because: Option<Error>) -> Self {
        if !channel.status().connected() {
            return Self::Closed(closed_because);
        }
        if connection.status().blocked() {
            return Self::Blocked;
        }
        confirm_channel(connection).await.map_or(Self::Silent, Self::QueueStuck)
    }
}

/// Opens a channel that confirms: without that, every publish would be "confirmed" at once, as `NotRequested`.
async fn confirm_channel(connection: &Connection) -> Result<Channel, Error> {
    let opening = async {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    };
    request("channel.open", opening).await
}

/// Sends all messages without waiting for confirms: a round trip for each would cost nine tenths of the throughput.
/// `None` stands for a message that is too large to send.
async fn send_all(
    channel: &Channel,
    batch: &[&Outgoing],
    endpoint: &Endpoint,
    deadline: Instant,
) -> Vec<Option<PublisherConfirm>> {
    let mut sent = Vec::with_capacity(batch.len());
    for (index, message) in batch.iter().enumerate() {
        if index == batch.len() / 2 {
            crash_point("batch-half-sent");
        }
        let key = routing_key(&message.event_type);
        if is_too_large(message, &key) {
            sent.push(None);
            continue;
        }
        // A message that no queue is bound for is returned, instead of being confirmed and dropped.
        let mandatory = !FOR_EXTERNAL_CONSUMERS.contains(&key.as_str());
        let properties = properties(message, &key, endpoint);
        let publish = channel.basic_publish(
            EVENTS.into(),
            key.into(),
            BasicPublishOptions { mandatory, ..Default::default() },
            &message.body,
            properties,
        );
        match timeout_at(deadline, publish).await {
            Ok(Ok(confirm)) => sent.push(Some(confirm)),
            // The connection is lost or stuck: later messages would not get through either.
            Ok(Err(_)) | Err(_) => break,
        }
    }
    sent
}

/// Waits for all confirms of a batch, and only then decides. Also returns why the channel was closed in the meantime.
async fn await_confirms(
    connection: &Connection,
    batch: &[&Outgoing],
    sent: Vec<Option<PublisherConfirm>>,
    mut deadline: Instant,
) -> (Vec<PublishOutcome>, Option<Error>) {
    let mut closed_because = None;
    let mut answers = Vec::with_capacity(batch.len());
    for confirm in sent {
        let Some(confirm) = confirm else {
            answers.push(Confirm::TooLarge);
            continue;
        };
        let mut confirm = pin!(confirm);
        let answer = loop {
            let until = deadline.min(Instant::now() + ALARM_CHECK_INTERVAL);
            let answer = timeout_at(until, &mut confirm).await;
            if answer.is_ok() || until == deadline {
                break answer;
            }
            if connection.status().blocked() {
                deadline = until;
            }
        };
        answers.push(match answer {
            Ok(Ok(Confirmation::Ack(message))) => Confirm::Ack { returned: returned_id(message) },
            Ok(Ok(Confirmation::Nack(message))) => Confirm::Nack { returned: returned_id(message) },
            Ok(Err(error)) => {
                closed_because.get_or_insert(error.into());
                Confirm::Silence
            }
            Ok(Ok(Confirmation::NotRequested)) | Err(_) => Confirm::Silence,
        });
    }
    (confirms::decide(batch, &answers), closed_because)
}

/// Whether a message has a part that cannot be sent. It must not end the process or the connection: the next would claim it
/// again.
fn is_too_large(message: &Outgoing, routing_key: &str) -> bool {
    message.body.len() > MAX_BODY_BYTES
        || routing_key.len().max(message.event_type.len()) > MAX_NAME_BYTES
        || message.traceparent.as_ref().is_some_and(|trace| trace.len() > MAX_TRACEPARENT_BYTES)
}

/// Makes confirms unknown where bindings changed during the batch, and returns whether there are any. If one message was returned
/// and another with the same routing keys was not, bindings were being deleted or restored one by one: the other message may
/// have reached one queue of two.
fn doubt_confirms(batch: &[&Outgoing], outcomes: &mut [PublishOutcome], partitions: u8) -> bool {
    let keys = |message: &Outgoing| {
        let key = routing_key(&message.event_type);
        let partition = partition_key(&key, message.lane, partitions);
        (key, partition)
    };
    let unroutable = PublishOutcome::Refused(Refusal::Unroutable);
    let returned = batch.iter().zip(&*outcomes).filter(|(_, outcome)| **outcome == unroutable);
    let returned: HashSet<_> = returned.map(|(message, _)| keys(message)).collect();
    let mut is_any = false;
    if !returned.is_empty() {
        for (message, outcome) in batch.iter().zip(outcomes) {
            if *outcome == PublishOutcome::Confirmed && returned.contains(&keys(message)) {
                *outcome = PublishOutcome::Unknown;
                is_any = true;
            }
        }
    }
    is_any
}

/// A message that no queue is bound for. Its routing key begins like that of an event which this login may publish.
fn unbound(event: &Outgoing) -> Outgoing {
    let event_type = format!("{}Unbound", event.event_type);
    Outgoing { id: Uuid::now_v7(), event_type, lane: event.lane, body: vec![], traceparent: None }
}

/// The id of a message that was returned with a confirm.
fn returned_id(message: Option<BasicReturnMessage>) -> Option<Uuid> {
    message?.delivery.properties.message_id().as_ref()?.as_str().parse().ok()
}

fn properties(message: &Outgoing, key: &str, endpoint: &Endpoint) -> BasicProperties {
    let mut headers = FieldTable::default();
    if let Some(traceparent) = &message.traceparent {
        headers.insert("traceparent".into(), AMQPValue::LongString(traceparent.as_str().into()));
    }
    // A message is routed by the keys in this header too: https://www.rabbitmq.com/docs/sender-selected
    if let Some(key) = partition_key(key, message.lane, endpoint.partitions) {
        let keys = FieldArray::from(vec![AMQPValue::LongString(key.into())]);
        headers.insert("CC".into(), AMQPValue::FieldArray(keys));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    BasicProperties::default()
        .with_message_id(message.id.to_string().into())
        .with_type(message.event_type.as_str().into())
        .with_content_type("application/cloudevents+json".into())
        // 2: persistent.
        .with_delivery_mode(2)
        .with_timestamp(now)
        .with_app_id(endpoint.name.as_str().into())
        .with_user_id(endpoint.login().into())
        .with_headers(headers)
}

/// Records for each message of a batch how long its publishing took, from the first byte of the batch to its last confirm.
fn record_spans(batch: &[&Outgoing], outcomes: &[PublishOutcome], began: SystemTime) {
    for (message, outcome) in batch.iter().zip(outcomes) {
        events::spans::record(|| {
            let context = TraceContext::child_of(message.traceparent.as_deref());
            let span = Span::ended(context, Kind::Producer, format!("publish {}", message.event_type), began)
                .with("messaging.system", "rabbitmq")
                .with("messaging.operation.type", "send")
                .with("messaging.operation.name", "publish")
                .with("messaging.destination.name", EVENTS)
                .with("messaging.rabbitmq.destination.routing_key", routing_key(&message.event_type))
                .with("messaging.message.id", message.id.to_string())
                .with("messaging.batch.message_count", i64::try_from(batch.len()).unwrap_or(i64::MAX));
            match outcome {
                PublishOutcome::Confirmed => span,
                PublishOutcome::Refused(refusal) => span.failed(refusal.to_string()),
                PublishOutcome::Unknown => span.failed("not confirmed: the broker may or may not have it"),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use events::{Line, Money, NewEvent, OrderCreated};

    use super::*;

    #[test]
    fn every_broker_of_ours_has_the_limit_of_the_publisher_and_a_prefetch_fits_into_a_service() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for file in [
            "compose.yaml",
            "examples/kubernetes/components/single-servers/rabbitmq.conf",
            "examples/kubernetes/components/rabbitmq-operator/cluster.yaml",
            "lab/testbed/src/rabbitmq.rs",
        ] {
            let text = fs::read_to_string(root.join(file)).unwrap();
            assert!(text.contains(&format!("max_message_size = {MAX_BODY_BYTES}")), "{file}");
        }
        // Of the 512 MiB that `compose.yaml` gives a service.
        assert!(usize::from(crate::consumer::PREFETCH) * MAX_BODY_BYTES <= 512 * 1024 * 1024 / 8);
    }

    #[test]
    fn largest_event_that_the_contracts_allow_can_be_sent() {
        // A control character takes six bytes in JSON, more than any other.
        let sku = "\u{1}".repeat(32);
        let lines = vec![Line { sku, quantity: i32::MAX, unit_price: i64::MAX / 1_000_000_000_000 }; 100];
        let total = Money { amount: OrderCreated::sum(&lines).unwrap(), currency: "\u{1}".repeat(3) };
        let order = OrderCreated { order_id: Uuid::now_v7(), customer_id: Uuid::now_v7(), lines, total };
        let event = NewEvent::of(order.order_id, 1, &TraceContext::root(), &order).unwrap();
        let decoded = events::decode(event.payload.as_bytes(), Some(&event.event_id.to_string()), None);
        assert!(decoded.is_ok() && event.payload.len() < MAX_BODY_BYTES / 2, "{}", event.payload.len());
    }
}
