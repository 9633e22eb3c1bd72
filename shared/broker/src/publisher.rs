use std::{pin::pin, time::Duration};

use events::transport::{self, Away, Outcome, Outgoing, Refusal};
use faults::{Point, Sabotage};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, PublisherConfirm,
    message::BasicReturnMessage,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable},
};
use time::OffsetDateTime;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::{
    Endpoint, Error, Link,
    answers::{self, Answer},
    connect::{PATIENCE, close, within},
    topology::EVENTS,
};

/// The largest body that is sent, in bytes. RabbitMQ closes the channel over a message that is too large for it
/// (16 MiB by default since 4.0), and takes the confirms of the whole batch along; then the same batch comes again.
const LARGEST_BODY: usize = 1024 * 1024;

/// How often the topology is declared again, however busy the connection is. When one of several queues loses its binding,
/// the broker has somewhere to route a message and says nothing: this bounds for how long.
const DECLARE_EVERY: Duration = Duration::from_secs(5);

/// How often the wait for confirms looks up: an alarm is announced in answer to the first publish, and confirms do not
/// come before it is over.
const LOOK_FOR_ALARMS: Duration = Duration::from_millis(250);

/// A connection that has been quiet for this long is asked whether it is still there before anything is claimed.
const ASK_AFTER: Duration = Duration::from_secs(2);

/// Publishes with confirms over one channel of one connection. Has one task as its owner: publishing from two tasks on
/// clones of a channel hands confirms to the wrong message.
pub struct Publisher {
    endpoint: Endpoint,
    link: Link,
    confirm_deadline: Duration,
    open: Option<Open>,
}

struct Open {
    connection: Connection,
    channel: Channel,
    /// When the broker last answered.
    heard: Instant,
    /// When the topology was last declared.
    declared: Instant,
    /// Confirms were given up because of an alarm: they may still come, so nothing else is published here.
    abandoned: bool,
}

impl Publisher {
    /// A publisher that is not connected yet. `confirm_deadline` bounds one batch, from its first publish to its last
    /// confirm; past it the outcome of what is unanswered is unknown.
    pub fn new(endpoint: Endpoint, link: Link, confirm_deadline: Duration) -> Self {
        Self { endpoint, link, confirm_deadline, open: None }
    }

    async fn connect(&self) -> Result<Open, Error> {
        let (connection, channel) = self.endpoint.open("publisher").await?;
        if faults::sabotaged(Sabotage::ConfirmsOff) {
            return Ok(Open::new(connection, channel));
        }
        // Without this every publish would be "confirmed" at once, as `NotRequested`.
        within(PATIENCE, "confirm.select", channel.confirm_select(ConfirmSelectOptions::default())).await?;
        Ok(Open::new(connection, channel))
    }

    /// Drops the connection: whatever was in flight on it has an unknown outcome now.
    async fn give_up(&mut self, reason: &str) {
        self.link.down(reason);
        if let Some(open) = self.open.take() {
            close(open.connection).await;
        }
    }
}

impl transport::Publisher for Publisher {
    async fn ready(&mut self) -> Result<(), Away> {
        if let Some(open) = &mut self.open
            && let Err(reason) = open.still_there(&self.endpoint).await
        {
            // A blocked connection is alive: closing it would only have us blocked again on the next one.
            if reason == BLOCKED && open.connection.status().connected() {
                self.link.down(&reason);
            } else {
                self.give_up(&reason).await;
            }
            return Err(Away(reason));
        }
        if self.open.is_none() {
            match self.connect().await {
                Ok(open) => self.open = Some(open),
                Err(error) => {
                    let reason = error.to_string();
                    self.link.down(&reason);
                    return Err(Away(reason));
                }
            }
        }
        self.link.up();
        Ok(())
    }

    async fn publish(&mut self, batch: &[Outgoing]) -> Vec<Outcome> {
        // An abandoned channel has answers to come that would be taken for those of this batch.
        let Some(open) = self.open.as_mut().filter(|open| !open.abandoned) else {
            return vec![Outcome::Unknown; batch.len()];
        };
        let deadline = Instant::now() + self.confirm_deadline;
        let sent = open.send_all(batch, self.endpoint.name(), deadline).await;
        faults::reach(Point::BatchSent);
        let answers = open.collect(batch, sent, deadline).await;
        open.heard = Instant::now();
        if answers.contains(&Outcome::Unknown) && open.connection.status().blocked() {
            open.abandoned = true;
            self.link.down(BLOCKED);
        } else if answers.contains(&Outcome::Unknown) {
            // Confirms that are still to come would be counted for the next batch's messages, and returns with them.
            self.give_up("a publish was not confirmed").await;
        } else if answers.contains(&Outcome::Refused(Refusal::Unroutable)) {
            // A binding has gone. Connecting again declares it again, and the retry finds it.
            self.give_up("a message came back unroutable").await;
        }
        answers
    }
}

/// What [`Open::still_there`] says while an alarm (memory, disk) keeps the broker from reading what we send.
const BLOCKED: &str = "blocked by an alarm";

impl Open {
    fn new(connection: Connection, channel: Channel) -> Self {
        let now = Instant::now();
        Self { connection, channel, heard: now, declared: now, abandoned: false }
    }

    async fn still_there(&mut self, endpoint: &Endpoint) -> Result<(), String> {
        let status = self.connection.status();
        if !status.connected() || !self.channel.status().connected() {
            return Err("the connection was lost".into());
        }
        // Nothing that is published during an alarm is answered, and nothing says so: it would hang to the deadline.
        if status.blocked() {
            return Err(BLOCKED.into());
        }
        if self.abandoned {
            return Err("the alarm is over".into());
        }
        if self.heard.elapsed() > ASK_AFTER || self.declared.elapsed() > DECLARE_EVERY {
            endpoint.declare(&self.channel).await.map_err(|error| error.to_string())?;
            self.heard = Instant::now();
            self.declared = self.heard;
        }
        Ok(())
    }

    /// Puts all messages on the wire without waiting for answers: a round trip for each would cost nine tenths of
    /// the throughput. `None` stands for a message that was not sent.
    async fn send_all(
        &self,
        batch: &[Outgoing],
        app: &str,
        deadline: Instant,
    ) -> Vec<Option<PublisherConfirm>> {
        let mut sent = Vec::with_capacity(batch.len());
        // `mandatory`: a message that no queue is bound for comes back, instead of being confirmed and dropped.
        let mandatory = BasicPublishOptions {
            mandatory: !faults::sabotaged(Sabotage::UnroutableIgnored),
            ..Default::default()
        };
        for (index, message) in batch.iter().enumerate() {
            if index == batch.len() / 2 {
                faults::reach(Point::BatchHalfSent);
            }
            if message.body.len() > LARGEST_BODY {
                sent.push(None);
                continue;
            }
            #[cfg(feature = "drill")]
            let message = &renamed(message);
            let publish = self.channel.basic_publish(
                EVENTS.into(),
                events::routing_key(&message.event_type).into(),
                mandatory,
                &message.body,
                properties(message, app),
            );
            match timeout_at(deadline, publish).await {
                Ok(Ok(confirm)) => sent.push(Some(confirm)),
                // The link is gone or stuck: what follows would not get through either.
                Ok(Err(_)) | Err(_) => break,
            }
        }
        sent
    }

    /// Waits for all answers of a batch, and only then decides.
    async fn collect(
        &self,
        batch: &[Outgoing],
        sent: Vec<Option<PublisherConfirm>>,
        mut deadline: Instant,
    ) -> Vec<Outcome> {
        let mut answers = Vec::with_capacity(batch.len());
        for confirm in sent {
            let Some(confirm) = confirm else {
                answers.push(Answer::TooLarge);
                continue;
            };
            let mut confirm = pin!(confirm);
            let heard = loop {
                let look = deadline.min(Instant::now() + LOOK_FOR_ALARMS);
                let waited = timeout_at(look, &mut confirm).await;
                if waited.is_err() && look < deadline {
                    if !self.connection.status().blocked() {
                        continue;
                    }
                    deadline = look;
                }
                break waited;
            };
            answers.push(match heard {
                Ok(Ok(Confirmation::Ack(message))) => Answer::Ack { returned: id_of(message) },
                Ok(Ok(Confirmation::Nack(message))) => Answer::Nack { returned: id_of(message) },
                Ok(Ok(Confirmation::NotRequested)) if faults::sabotaged(Sabotage::ConfirmsOff) => {
                    Answer::Ack { returned: None }
                }
                Ok(Ok(Confirmation::NotRequested) | Err(_)) | Err(_) => Answer::Silence,
            });
        }
        answers::decide(batch, &answers)
    }
}

/// The id of a message that came back along with a confirm.
fn id_of(returned: Option<BasicReturnMessage>) -> Option<Uuid> {
    let returned = returned?;
    Uuid::parse_str(returned.delivery.properties.message_id().as_ref()?.as_str()).ok()
}

/// The same event under a new name, if that is the sabotage of the day.
#[cfg(feature = "drill")]
fn renamed(message: &Outgoing) -> Outgoing {
    if !faults::sabotaged(Sabotage::NewIdPerAttempt) {
        return message.clone();
    }
    let id = Uuid::now_v7();
    let body = String::from_utf8_lossy(&message.body).replace(&message.id.to_string(), &id.to_string());
    Outgoing { id, body: body.into_bytes(), ..message.clone() }
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
