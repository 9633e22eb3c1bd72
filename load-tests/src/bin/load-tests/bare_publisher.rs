//! The limit that the relay is compared with: the same messages, from memory, to the same queues.

use std::{collections::VecDeque, time::Duration};

use anyhow::{Context as _, bail, ensure};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, PublisherConfirm,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions},
    types::FieldTable,
};
use tokio::time::timeout;

/// What the services declare. Named again here, because a benchmark uses the system only from outside.
const EXCHANGE: &str = "shop.events";
const QUEUES: [&str; 2] = ["inventory.events", "billing.events"];
const ROUTING_KEY: &str = "order.created";

/// At most this many messages are unconfirmed. With more the rate hardly grows, and the relay's batch is as large.
pub(crate) const IN_FLIGHT: usize = 500;

/// How long the broker may take for one answer. lapin itself waits without a limit, for a silent server as for an alarm.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// A connection with one channel in confirm mode, used by one task.
pub(crate) struct BarePublisher {
    connection: Connection,
    channel: Channel,
}

/// One message as the relay would publish it.
pub(crate) struct Message {
    /// The event's id.
    pub(crate) id: String,
    /// The envelope.
    pub(crate) body: Vec<u8>,
}

/// Awaits an answer of the broker. `what` completes "failed to …".
async fn answered<T>(what: &str, answer: impl Future<Output = lapin::Result<T>>) -> anyhow::Result<T> {
    timeout(ANSWER_DEADLINE, answer)
        .await
        .with_context(|| format!("failed to {what}: no answer within {ANSWER_DEADLINE:?}"))?
        .with_context(|| format!("failed to {what}"))
}

impl BarePublisher {
    /// Connects to the broker. The exchange and the queues must exist: the services declare them.
    pub(crate) async fn connect(amqp_url: &str) -> anyhow::Result<Self> {
        let properties = ConnectionProperties::default().with_connection_name("load-tests".into());
        let connection = answered("connect to the broker", Connection::connect(amqp_url, properties)).await?;
        let channel = answered("open a channel", connection.create_channel()).await?;
        let confirms = channel.confirm_select(ConfirmSelectOptions::default());
        answered("select confirms", confirms).await?;
        Ok(Self { connection, channel })
    }

    /// Empties both queues, so that every round begins alike, and returns how many messages were in each.
    ///
    /// # Errors
    /// When a queue does not exist, or has a consumer: the broker then does other work than in the other turns.
    pub(crate) async fn empty_queues(&self) -> anyhow::Result<[u32; 2]> {
        let mut removed = [0; 2];
        for (queue, removed) in QUEUES.into_iter().zip(&mut removed) {
            let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
            let declared = self.channel.queue_declare(queue.into(), passive, FieldTable::default());
            let consumers = answered("inspect a queue", declared).await?.consumer_count();
            ensure!(consumers == 0, "failed to empty {queue}: it has {consumers} consumers");
            let purged = self.channel.queue_purge(queue.into(), QueuePurgeOptions::default());
            *removed = answered("empty a queue", purged).await?;
        }
        Ok(removed)
    }

    /// Publishes all messages as the relay does: persistent, mandatory, each one confirmed.
    ///
    /// # Errors
    /// When a message is not confirmed, or is returned.
    pub(crate) async fn publish(&self, messages: &[Message]) -> anyhow::Result<()> {
        let mut waiting = VecDeque::with_capacity(IN_FLIGHT);
        for message in messages {
            if waiting.len() == IN_FLIGHT
                && let Some(oldest) = waiting.pop_front()
            {
                confirmed(oldest).await?;
            }
            waiting.push_back(self.send(message).await?);
        }
        for confirm in waiting {
            confirmed(confirm).await?;
        }
        Ok(())
    }

    async fn send(&self, message: &Message) -> anyhow::Result<PublisherConfirm> {
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let properties = BasicProperties::default()
            .with_message_id(message.id.as_str().into())
            .with_type("OrderCreated".into())
            .with_content_type("application/cloudevents+json".into())
            .with_delivery_mode(2);
        let published = self.channel.basic_publish(
            EXCHANGE.into(),
            ROUTING_KEY.into(),
            options,
            &message.body,
            properties,
        );
        answered("publish a message", published).await
    }

    /// Closes the connection, so that the broker does not log it as broken.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        answered("close the connection", self.connection.close(200, "done".into())).await
    }
}

async fn confirmed(confirm: PublisherConfirm) -> anyhow::Result<()> {
    match answered("receive a confirm", confirm).await? {
        Confirmation::Ack(None) => Ok(()),
        other => bail!("failed to publish a message: the broker answered {other:?}"),
    }
}
