//! The limit that the relay is held against: the same messages, from memory, to the same queues.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, PublisherConfirm,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions},
    types::FieldTable,
};
use tokio::time::timeout;

/// What the services declare. Named again here, because a benchmark meets the system from outside.
const EXCHANGE: &str = "shop.events";
const QUEUES: [&str; 2] = ["inventory.events", "billing.events"];
const ROUTING_KEY: &str = "order.created";

/// As many publishes wait for their confirm at once. Past this the rate hardly grows, and the relay's batch is as large.
pub(crate) const IN_FLIGHT: usize = 500;

/// lapin bounds nothing by itself: connecting to a silent server, or publishing during an alarm, waits for ever.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection with one channel in confirm mode, used by one task.
pub(crate) struct BarePublisher {
    connection: Connection,
    channel: Channel,
}

/// One message as the relay would send it.
pub(crate) struct Message {
    /// The event's id.
    pub(crate) id: String,
    /// The envelope.
    pub(crate) body: Vec<u8>,
}

async fn within<T>(what: &str, answer: impl Future<Output = lapin::Result<T>>) -> anyhow::Result<T> {
    timeout(PATIENCE, answer)
        .await
        .with_context(|| format!("{what}: no answer within {PATIENCE:?}"))?
        .with_context(|| what.to_owned())
}

impl BarePublisher {
    /// Connects. The exchange and the queues must exist: the services declare them.
    ///
    /// # Errors
    /// When the broker refuses or does not answer.
    pub(crate) async fn connect(amqp_url: &str) -> anyhow::Result<Self> {
        let properties = ConnectionProperties::default().with_connection_name("load-tests".into());
        let connection = within("connect to the broker", Connection::connect(amqp_url, properties)).await?;
        let channel = within("open a channel", connection.create_channel()).await?;
        within("confirm.select", channel.confirm_select(ConfirmSelectOptions::default())).await?;
        Ok(Self { connection, channel })
    }

    /// Empties both queues, so that every round begins with the same ones. Returns how many messages were in each.
    ///
    /// # Errors
    /// When a queue does not exist, or somebody consumes from it: then this would not be the same work.
    pub(crate) async fn empty_queues(&self) -> anyhow::Result<[u32; 2]> {
        let mut removed = [0; 2];
        for (queue, removed) in QUEUES.into_iter().zip(&mut removed) {
            let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
            let declared = self.channel.queue_declare(queue.into(), passive, FieldTable::default());
            let consumers = within("look at a queue", declared).await?.consumer_count();
            ensure!(consumers == 0, "{queue} has {consumers} consumers");
            let purged = self.channel.queue_purge(queue.into(), QueuePurgeOptions::default());
            *removed = within("empty a queue", purged).await?;
        }
        Ok(removed)
    }

    /// Publishes all messages with as much confirmed as the relay demands: persistent, mandatory, each one confirmed.
    /// Returns how long that took, from the first publish to the last confirm.
    ///
    /// # Errors
    /// When a message is not confirmed, or comes back: there is no figure then.
    pub(crate) async fn publish(&self, messages: &[Message]) -> anyhow::Result<Duration> {
        let mut waiting = VecDeque::with_capacity(IN_FLIGHT);
        let start = Instant::now();
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
        Ok(start.elapsed())
    }

    /// Publishes one message and waits for its confirm: the least that any publisher adds to a commit.
    ///
    /// # Errors
    /// When it is not confirmed.
    pub(crate) async fn publish_one(&self, message: &Message) -> anyhow::Result<Duration> {
        let start = Instant::now();
        confirmed(self.send(message).await?).await?;
        Ok(start.elapsed())
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
        within("publish", published).await
    }

    /// Says goodbye, so that the broker does not log a connection that broke.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        within("close the connection", self.connection.close(200, "done".into())).await
    }
}

async fn confirmed(confirm: PublisherConfirm) -> anyhow::Result<()> {
    match within("wait for a confirm", confirm).await? {
        Confirmation::Ack(None) => Ok(()),
        other => bail!("a message was not accepted: {other:?}"),
    }
}
