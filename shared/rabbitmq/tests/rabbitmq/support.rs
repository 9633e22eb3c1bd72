//! A virtual host with the topology, a plain channel to inspect it, and events to send.

use std::time::Duration;

use anyhow::Context;
use events::{Line, Money, NewEvent, OrderCreated, TraceContext};
use futures_util::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, BasicRejectOptions,
        ConfirmSelectOptions, QueueDeclareOptions,
    },
    types::FieldTable,
};
use messaging::{Outgoing, Publisher as _};
use rabbitmq::{ConfirmingPublisher, ConnectionStatus, Endpoint};
use serde_json::Value;
use testbed::{TestVhost, eventually};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How long a test waits for any condition.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Vhost {
    /// A plain channel in confirm mode.
    pub(crate) channel: Channel,
    connection: Connection,
    url: String,
    /// `None` on a private server.
    vhost: Option<TestVhost>,
}

impl Vhost {
    /// Creates a virtual host and declares the topology in it.
    pub(crate) async fn new() -> anyhow::Result<Self> {
        let vhost = testbed::vhost().await?;
        let declared = Self::at(vhost.url()).await?;
        Ok(Self { vhost: Some(vhost), ..declared })
    }

    /// Declares the topology in a virtual host that exists.
    pub(crate) async fn at(url: String) -> anyhow::Result<Self> {
        Endpoint::new(&url, "test")?.check().await?;
        let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { channel, connection, url, vhost: None })
    }

    /// Sets the only policy, on one queue; `None` removes it.
    pub(crate) async fn set_policy(&self, queue: &str, definition: Option<&str>) -> anyhow::Result<()> {
        self.vhost.as_ref().context("on a private server")?.set_policy(queue, definition).await
    }

    /// Limits the number of connections to the virtual host; `None` removes the limit.
    pub(crate) async fn limit_connections(&self, connections: Option<u32>) -> anyhow::Result<()> {
        self.vhost.as_ref().context("on a private server")?.limit_connections(connections).await
    }

    /// Permits to publish to an exchange under the routing keys that match `keys` only.
    pub(crate) async fn permit_topics(&self, exchange: &str, keys: &str) -> anyhow::Result<()> {
        self.vhost.as_ref().context("on a private server")?.permit_topics(exchange, keys).await
    }

    /// Permits to publish to the exchanges that match `exchanges` only.
    pub(crate) async fn permit_writes(&self, exchanges: &str) -> anyhow::Result<()> {
        self.vhost.as_ref().context("on a private server")?.permit_writes(exchanges).await
    }

    /// The arguments that a queue was declared with.
    pub(crate) async fn arguments(&self, queue: &str) -> anyhow::Result<Value> {
        let vhost = self.vhost.as_ref().context("on a private server")?;
        let described: Value = serde_json::from_str(&vhost.describe_queue(queue).await?)?;
        Ok(described["arguments"].clone())
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::new(&self.url, "test").unwrap()
    }

    /// Opens another channel, for requests that may fail: an error closes the channel.
    pub(crate) async fn open_channel(&self) -> anyhow::Result<Channel> {
        Ok(self.connection.create_channel().await?)
    }

    /// A publisher that is connected.
    pub(crate) async fn publisher(&self) -> anyhow::Result<ConfirmingPublisher> {
        let mut publisher =
            ConfirmingPublisher::new(self.endpoint(), ConnectionStatus::new("test"), Duration::from_secs(10));
        ready(&mut publisher).await?;
        Ok(publisher)
    }

    /// Publishes a message straight into `queue`.
    pub(crate) async fn put(&self, queue: &str, id: &str, body: &[u8]) -> anyhow::Result<()> {
        self.put_with(queue, BasicProperties::default().with_message_id(id.into()), body).await
    }

    pub(crate) async fn put_with(
        &self,
        queue: &str,
        properties: BasicProperties,
        body: &[u8],
    ) -> anyhow::Result<()> {
        let properties = properties.with_delivery_mode(2);
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let confirm = self.channel.basic_publish("".into(), queue.into(), options, body, properties).await?;
        anyhow::ensure!(confirm.await?.is_ack(), "the broker did not confirm a message");
        Ok(())
    }

    pub(crate) async fn put_event(&self, queue: &str, event: &NewEvent) -> anyhow::Result<()> {
        self.put(queue, &event.event_id.to_string(), event.payload.as_bytes()).await
    }

    /// Waits for one message of `queue`, and acknowledges it.
    pub(crate) async fn take(&self, queue: &str) -> anyhow::Result<Delivery> {
        let (channel, delivery) = self.next(queue).await?;
        delivery.ack(BasicAckOptions::default()).await?;
        channel.close(200, "done".into()).await?;
        Ok(delivery)
    }

    /// Waits for one message of `queue`, and has the broker move it to the dead-letter queue.
    pub(crate) async fn reject(&self, queue: &str) -> anyhow::Result<()> {
        let (channel, delivery) = self.next(queue).await?;
        delivery.reject(BasicRejectOptions { requeue: false }).await?;
        channel.close(200, "done".into()).await?;
        Ok(())
    }

    /// The next message of `queue`, and the channel that received it. Consumes, because a queue with a single active
    /// consumer refuses `basic.get`.
    async fn next(&self, queue: &str) -> anyhow::Result<(Channel, Delivery)> {
        let channel = self.open_channel().await?;
        channel.basic_qos(1, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let mut deliveries =
            channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?;
        let delivery = timeout(DEADLINE, deliveries.next())
            .await
            .with_context(|| format!("no message arrived in {queue}"))?
            .context("the broker cancelled the consumer")??;
        Ok((channel, delivery))
    }

    /// How many messages of `queue` are ready for delivery.
    pub(crate) async fn count(&self, queue: &str) -> anyhow::Result<u32> {
        Ok(self.counts(queue).await?.0)
    }

    /// How many messages of `queue` are ready for delivery, and how many consumers it has.
    async fn counts(&self, queue: &str) -> anyhow::Result<(u32, u32)> {
        let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
        let queue = self.channel.queue_declare(queue.into(), passive, FieldTable::default()).await?;
        Ok((queue.message_count(), queue.consumer_count()))
    }

    /// Whether no message of `queue` is ready for delivery. Messages that a consumer has not acknowledged do not count.
    pub(crate) async fn is_empty(&self, queue: &str) -> anyhow::Result<bool> {
        Ok(self.count(queue).await? == 0)
    }

    /// Waits until `queue` has no consumer, which returns all unacknowledged messages to it. Then counts them.
    pub(crate) async fn count_without_consumers(&self, queue: &str) -> anyhow::Result<u32> {
        eventually("the last consumer to be gone", DEADLINE, async || {
            let (messages, consumers) = self.counts(queue).await?;
            Ok((consumers == 0).then_some(messages))
        })
        .await
    }
}

/// Waits until the publisher is connected and ready.
pub(crate) async fn ready(publisher: &mut ConfirmingPublisher) -> anyhow::Result<()> {
    eventually("the publisher to be ready", DEADLINE, async || Ok(Some(publisher.ready().await?))).await
}

/// A consumer or a collector in a task of its own. Dropping it stops the task.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub(crate) fn start<F>(run: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = CancellationToken::new();
        Self { task: tokio::spawn(run(stop.clone())), stop }
    }

    /// Stops the task and waits for its end.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        Ok(timeout(DEADLINE, &mut self.task).await.context("the task did not stop")??)
    }

    /// Ends the task at its next await, as a crash would.
    pub(crate) fn kill(self) {
        self.task.abort();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// An event that every consumer can apply.
pub(crate) fn order_created() -> NewEvent {
    let order = OrderCreated {
        order_id: Uuid::now_v7(),
        customer_id: Uuid::new_v4(),
        lines: vec![Line { sku: "TEA-001".into(), quantity: 2, unit_price: 625 }],
        total: Money { amount: 1250, currency: "EUR".into() },
    };
    NewEvent::of(order.order_id, 1, &TraceContext::root(), &order).unwrap()
}

/// A batch of messages, as a publisher takes it.
pub(crate) fn refs(batch: &[Outgoing]) -> Vec<&Outgoing> {
    batch.iter().collect()
}

/// The same as a message to publish, under the routing key of `event_type`.
pub(crate) fn outgoing(event_type: &str) -> Outgoing {
    let event = order_created();
    Outgoing {
        id: event.event_id,
        event_type: event_type.into(),
        body: event.payload.into_bytes(),
        traceparent: event.headers["traceparent"].as_str().map(String::from),
    }
}
