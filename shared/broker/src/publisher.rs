use std::{
    pin::pin,
    time::{Duration, SystemTime},
};

use crash_points::crash_point;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, PublisherConfirm,
    message::BasicReturnMessage,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable},
};
use messaging::{BrokerUnavailable, Outgoing, PublishOutcome, Refusal};
use time::OffsetDateTime;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::{
    ConnectionStatus, Endpoint, Error,
    confirms::{self, Confirm},
    connect::{Role, close},
    error::{REQUEST_DEADLINE, within},
    publish_span,
    topology::EVENTS,
};

/// The largest body that is sent. RabbitMQ closes the channel over a message that is too large for it (16 MiB by default
/// since 4.0), and the confirms of the whole batch are lost with it; then the same batch would come again.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// The longest routing key and type of AMQP. lapin panics over a longer one.
const MAX_NAME_BYTES: usize = 255;

/// The longest trace context that is sent; W3C's has 55 bytes. The headers of a message have to fit into one frame, and over
/// a larger frame RabbitMQ closes the connection.
const MAX_TRACEPARENT_BYTES: usize = 1024;

/// How often the topology is declared again under load. When one of several queues loses its binding, the broker still
/// routes the message to the others and reports nothing: this bounds for how long.
const DECLARE_INTERVAL: Duration = Duration::from_secs(5);

/// How often the topology is declared again because messages are returned: a binding is missing, or no queue wants them.
const REPAIR_INTERVAL: Duration = Duration::from_secs(1);

/// How often a channel is replaced while messages are negatively acknowledged. RabbitMQ 3.10 goes on refusing on a channel
/// after the queue has room again, until the channel is closed.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// How long health shows that a queue refuses messages, after the last refusal: longer than the longest wait before the next
/// attempt of a refused event.
const REFUSAL_SHOWN: Duration = Duration::from_secs(65);

/// How often the wait for confirms checks for an alarm: the broker announces it in answer to the first publish, and sends
/// no confirms before it is over.
const ALARM_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A connection that has been silent for this long is checked before anything is claimed.
const MAX_SILENCE: Duration = Duration::from_secs(2);

/// Publishes with confirms over one channel of one connection. One task owns it: two tasks that publish on clones of a
/// channel get each other's confirms.
pub struct Publisher {
    endpoint: Endpoint,
    status: ConnectionStatus,
    confirm_deadline: Duration,
    open: Option<Open>,
    /// When a message was last negatively acknowledged.
    refused: Option<Instant>,
}

struct Open {
    connection: Connection,
    channel: Channel,
    /// When the broker last answered.
    last_answer: Instant,
    /// When the topology was last declared.
    declared: Instant,
    /// A message was returned since then.
    needs_repair: bool,
    /// When the topology was last declared for that reason.
    repaired: Option<Instant>,
    opened: Instant,
    /// Confirms were given up because of an alarm. They may still come, so nothing else is published here.
    abandoned: bool,
}

impl Publisher {
    /// A publisher, not connected yet. `confirm_deadline` bounds one batch from its first publish to its last confirm;
    /// after it the outcome of an unanswered message is unknown.
    pub fn new(endpoint: Endpoint, status: ConnectionStatus, confirm_deadline: Duration) -> Self {
        Self { endpoint, status, confirm_deadline, open: None, refused: None }
    }

    async fn connect(&self) -> Result<Open, Error> {
        let (connection, channel) = self.endpoint.open(Role::Publisher).await?;
        // Without this every publish would be "confirmed" at once, as `NotRequested`.
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        within(REQUEST_DEADLINE, "confirm.select", select).await?;
        let now = Instant::now();
        Ok(Open {
            connection,
            channel,
            last_answer: now,
            declared: now,
            needs_repair: false,
            repaired: None,
            opened: now,
            abandoned: false,
        })
    }

    /// Closes the connection: the outcome of everything in flight on it is unknown now.
    async fn disconnect(&mut self, reason: &str) {
        self.status.down(reason);
        if let Some(open) = self.open.take() {
            close(open.connection).await;
        }
    }
}

impl messaging::Publisher for Publisher {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        if let Some(open) = &mut self.open
            && let Err(reason) = open.check(&self.endpoint).await
        {
            // A blocked connection is alive: the next one would be blocked too.
            if reason == BLOCKED && open.connection.status().connected() {
                self.status.down(&reason);
            } else {
                self.disconnect(&reason).await;
            }
            return Err(BrokerUnavailable(reason));
        }
        if self.open.is_none() {
            match self.connect().await {
                Ok(open) => self.open = Some(open),
                Err(error) => {
                    let reason = error.to_string();
                    self.status.down(&reason);
                    return Err(BrokerUnavailable(reason));
                }
            }
        }
        match self.refused {
            Some(at) if at.elapsed() < REFUSAL_SHOWN => self.status.down(REFUSED),
            _ => self.status.up(),
        }
        Ok(())
    }

    async fn publish(&mut self, batch: &[Outgoing]) -> Vec<PublishOutcome> {
        let began = SystemTime::now();
        let outcomes = self.publish_and_confirm(batch).await;
        publish_span::record(batch, &outcomes, began);
        outcomes
    }
}

impl Publisher {
    async fn publish_and_confirm(&mut self, batch: &[Outgoing]) -> Vec<PublishOutcome> {
        // Confirms that are still to come on an abandoned channel would be taken for those of this batch.
        let Some(open) = self.open.as_mut().filter(|open| !open.abandoned) else {
            return vec![PublishOutcome::Unknown; batch.len()];
        };
        let deadline = Instant::now() + self.confirm_deadline;
        let sent = open.send_all(batch, self.endpoint.name(), deadline).await;
        crash_point("batch-sent");
        let mut outcomes = open.await_confirms(batch, sent, deadline).await;
        open.last_answer = Instant::now();
        if outcomes.contains(&PublishOutcome::Unknown) && open.is_usable().await {
            // A queue is stuck. As unknown these would be published again at once, into the other queues too, every time.
            let unconfirmed = PublishOutcome::Refused(Refusal::Unconfirmed);
            outcomes.iter_mut().filter(|it| **it == PublishOutcome::Unknown).for_each(|it| *it = unconfirmed);
            self.refused = Some(open.last_answer);
            self.disconnect(UNCONFIRMED).await;
            return outcomes;
        }
        if outcomes.contains(&PublishOutcome::Refused(Refusal::Nacked)) {
            self.refused = Some(open.last_answer);
        }
        if outcomes.contains(&PublishOutcome::Unknown) && open.connection.status().blocked() {
            open.abandoned = true;
            self.status.down(BLOCKED);
        } else if outcomes.contains(&PublishOutcome::Unknown) {
            // Confirms and returns that are still to come would be counted for the next batch's messages.
            self.disconnect("a publish was not confirmed").await;
        } else if outcomes.contains(&PublishOutcome::Refused(Refusal::Nacked))
            && open.opened.elapsed() > RENEW_INTERVAL
        {
            self.disconnect(REFUSED).await;
        } else if outcomes.contains(&PublishOutcome::Refused(Refusal::Unroutable)) {
            // On the same connection: events of a type that no queue wants must not slow down the others.
            open.needs_repair = true;
        }
        outcomes
    }
}

/// What health says while messages are negatively acknowledged, or not at all.
const REFUSED: &str = "a queue refuses messages, or does not confirm them";

/// What health says when a broker that answers did not confirm.
const UNCONFIRMED: &str = "a queue does not confirm";

/// What [`Open::check`] says while an alarm (memory, disk) keeps the broker from reading what we send.
const BLOCKED: &str = "blocked by an alarm";

impl Open {
    /// Whether the broker answers, and would take messages on this channel: what it has not confirmed waits for a queue.
    async fn is_usable(&self) -> bool {
        let status = self.connection.status();
        status.connected()
            && !status.blocked()
            && self.channel.status().connected()
            && within(REQUEST_DEADLINE, "channel.open", self.connection.create_channel()).await.is_ok()
    }

    async fn check(&mut self, endpoint: &Endpoint) -> Result<(), String> {
        let status = self.connection.status();
        if !status.connected() || !self.channel.status().connected() {
            return Err("the connection was lost".into());
        }
        // The broker answers no publish during an alarm: it would wait until the deadline.
        if status.blocked() {
            return Err(BLOCKED.into());
        }
        if self.abandoned {
            return Err("the alarm is over".into());
        }
        let repairs = self.needs_repair && self.repaired.is_none_or(|at| at.elapsed() > REPAIR_INTERVAL);
        let is_due = repairs || self.declared.elapsed() > DECLARE_INTERVAL;
        if is_due || self.last_answer.elapsed() > MAX_SILENCE {
            if repairs {
                (self.needs_repair, self.repaired) = (false, Some(Instant::now()));
            }
            endpoint.declare(&self.channel).await.map_err(|error| error.to_string())?;
            self.last_answer = Instant::now();
            self.declared = self.last_answer;
        }
        Ok(())
    }

    /// Sends all messages without waiting for confirms: a round trip for each would cost nine tenths of the throughput.
    /// `None` stands for a message that is too large to send.
    async fn send_all(
        &self,
        batch: &[Outgoing],
        app: &str,
        deadline: Instant,
    ) -> Vec<Option<PublisherConfirm>> {
        let mut sent = Vec::with_capacity(batch.len());
        // `mandatory`: a message that no queue is bound for is returned, instead of being confirmed and dropped.
        let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
        for (index, message) in batch.iter().enumerate() {
            if index == batch.len() / 2 {
                crash_point("batch-half-sent");
            }
            let routing_key = events::routing_key(&message.event_type);
            if is_too_large(message, &routing_key) {
                sent.push(None);
                continue;
            }
            let publish = self.channel.basic_publish(
                EVENTS.into(),
                routing_key.into(),
                mandatory,
                &message.body,
                properties(message, app),
            );
            match timeout_at(deadline, publish).await {
                Ok(Ok(confirm)) => sent.push(Some(confirm)),
                // The connection is lost or stuck: later messages would not get through either.
                Ok(Err(_)) | Err(_) => break,
            }
        }
        sent
    }

    /// Waits for all confirms of a batch, and only then decides.
    async fn await_confirms(
        &self,
        batch: &[Outgoing],
        sent: Vec<Option<PublisherConfirm>>,
        mut deadline: Instant,
    ) -> Vec<PublishOutcome> {
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
                if answer.is_err() && until < deadline {
                    if !self.connection.status().blocked() {
                        continue;
                    }
                    deadline = until;
                }
                break answer;
            };
            answers.push(match answer {
                Ok(Ok(Confirmation::Ack(message))) => Confirm::Ack { returned: id_of(message) },
                Ok(Ok(Confirmation::Nack(message))) => Confirm::Nack { returned: id_of(message) },
                Ok(Ok(Confirmation::NotRequested) | Err(_)) | Err(_) => Confirm::Silence,
            });
        }
        confirms::decide(batch, &answers)
    }
}

/// Whether a message has a part that cannot be sent. One row in the outbox, of whatever writer, must not end the process or
/// the connection: it would be claimed again by the next.
fn is_too_large(message: &Outgoing, routing_key: &str) -> bool {
    message.body.len() > MAX_BODY_BYTES
        || routing_key.len().max(message.event_type.len()) > MAX_NAME_BYTES
        || message.traceparent.as_ref().is_some_and(|trace| trace.len() > MAX_TRACEPARENT_BYTES)
}

/// The id of a message that was returned with a confirm.
fn id_of(returned: Option<BasicReturnMessage>) -> Option<Uuid> {
    let returned = returned?;
    Uuid::parse_str(returned.delivery.properties.message_id().as_ref()?.as_str()).ok()
}

fn properties(message: &Outgoing, app: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    if let Some(traceparent) = &message.traceparent {
        headers.insert("traceparent".into(), AMQPValue::LongString(traceparent.as_str().into()));
    }
    let now = OffsetDateTime::now_utc().unix_timestamp();
    BasicProperties::default()
        .with_message_id(message.id.to_string().into())
        .with_type(message.event_type.as_str().into())
        .with_content_type("application/cloudevents+json".into())
        // 2: persistent.
        .with_delivery_mode(2)
        .with_timestamp(now.unsigned_abs())
        .with_app_id(app.into())
        .with_headers(headers)
}
