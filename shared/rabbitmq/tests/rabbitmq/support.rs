//! A virtual host with the topology, a plain channel to inspect it, and events to send.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

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
use messaging::{Outgoing, PublishOutcome, Publisher as _};
use rabbitmq::{ConfirmingPublisher, ConnectionStatus, Endpoint, queues};
use testbed::{TestVhost, eventually};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How long a test waits for any condition.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// After 250 ms without an answer of a queue's leader RabbitMQ reports no messages and no consumers.
const LEADER_DEADLINE: Duration = Duration::from_millis(200);

/// The queue that tests consume.
pub(crate) const QUEUE: &str = queues::INVENTORY;

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
    eventually(what, DEADLINE, async || Ok(holds().then_some(()))).await
}

/// A condition that a test sets. Off at first.
#[derive(Clone, Default)]
pub(crate) struct Switch(Arc<AtomicBool>);

impl Switch {
    pub(crate) fn set(&self, on: bool) {
        self.0.store(on, Ordering::SeqCst);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

pub(crate) struct Vhost {
    /// A plain channel in confirm mode.
    pub(crate) channel: Channel,
    pub(crate) url: String,
    connection: Connection,
    /// `None` on a private server.
    vhost: Option<TestVhost>,
}

impl Vhost {
    /// Creates a virtual host and declares the topology in it.
    pub(crate) async fn new() -> anyhow::Result<Self> {
        Self::partitioned(1).await
    }

    /// The same, with partitions.
    pub(crate) async fn partitioned(partitions: u8) -> anyhow::Result<Self> {
        let vhost = testbed::vhost().await?;
        let declared = Self::declare(vhost.url(), partitions).await?;
        Ok(Self { vhost: Some(vhost), ..declared })
    }

    /// Declares the topology in a virtual host that exists.
    pub(crate) async fn at(url: String) -> anyhow::Result<Self> {
        Self::declare(url, 1).await
    }

    async fn declare(url: String, partitions: u8) -> anyhow::Result<Self> {
        Endpoint::new(&url, "test")?.with_partitions(partitions).check().await?;
        let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { channel, url, connection, vhost: None })
    }

    /// What an operator can set. Not on a private server.
    pub(crate) fn operator(&self) -> &TestVhost {
        self.vhost.as_ref().unwrap()
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::new(&self.url, "test").unwrap()
    }

    /// Opens another channel, for requests that may fail: an error closes the channel.
    pub(crate) async fn open_channel(&self) -> anyhow::Result<Channel> {
        Ok(self.connection.create_channel().await?)
    }

    /// A publisher that is connected.
    pub(crate) async fn publisher(&self) -> anyhow::Result<TestPublisher> {
        self.publisher_with(DEADLINE).await
    }

    pub(crate) async fn publisher_with(&self, confirm_deadline: Duration) -> anyhow::Result<TestPublisher> {
        let mut publisher = TestPublisher::new(self.endpoint(), confirm_deadline);
        publisher.until_ready().await?;
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
        let user = self.url.trim_start_matches("amqp://").split(':').next().unwrap_or_default();
        let properties = properties.with_delivery_mode(2).with_user_id(user.into());
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let confirm = self.channel.basic_publish("".into(), queue.into(), options, body, properties).await?;
        anyhow::ensure!(confirm.await?.is_ack(), "the broker did not confirm a message");
        Ok(())
    }

    /// Publishes an event into the queue that tests consume, and returns its id.
    pub(crate) async fn put_event(&self) -> anyhow::Result<Uuid> {
        let event = order_created();
        self.put(QUEUE, &event.event_id.to_string(), event.payload.as_bytes()).await?;
        Ok(event.event_id)
    }

    pub(crate) async fn put_events(&self, count: usize) -> anyhow::Result<Vec<Uuid>> {
        let mut ids = vec![];
        for _ in 0..count {
            ids.push(self.put_event().await?);
        }
        Ok(ids)
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
        Ok(channel.close(200, "done".into()).await?)
    }

    /// Consumes `queue`, with at most `prefetch` unacknowledged deliveries. A queue with a single active consumer refuses
    /// `basic.get`.
    pub(crate) async fn consume(
        &self,
        queue: &str,
        prefetch: u16,
    ) -> anyhow::Result<(Channel, lapin::Consumer)> {
        let channel = self.open_channel().await?;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let deliveries =
            channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?;
        Ok((channel, deliveries))
    }

    /// The next message of `queue`, and the channel that received it.
    async fn next(&self, queue: &str) -> anyhow::Result<(Channel, Delivery)> {
        let (channel, mut deliveries) = self.consume(queue, 1).await?;
        let delivery = timeout(DEADLINE, deliveries.next())
            .await
            .with_context(|| format!("no message arrived in {queue}"))?
            .context("the broker cancelled the consumer")??;
        Ok((channel, delivery))
    }

    /// How many messages of `queue` are ready for delivery, and how many consumers it has. Messages that a consumer has not
    /// acknowledged do not count.
    pub(crate) async fn counts(&self, queue: &str) -> anyhow::Result<(u32, u32)> {
        let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
        eventually("the leader of the queue to answer", DEADLINE, async || {
            let asked = Instant::now();
            let state = self.channel.queue_declare(queue.into(), passive, FieldTable::default()).await?;
            let counts = (state.message_count(), state.consumer_count());
            let is_answer = counts != (0, 0) || asked.elapsed() < LEADER_DEADLINE;
            Ok(is_answer.then_some(counts))
        })
        .await
    }

    pub(crate) async fn is_empty(&self, queue: &str) -> anyhow::Result<bool> {
        Ok(self.counts(queue).await?.0 == 0)
    }

    /// Waits until all messages of the queue that tests consume are delivered.
    pub(crate) async fn until_delivered(&self) -> anyhow::Result<()> {
        eventually("all messages to be delivered", DEADLINE, async || {
            Ok(self.is_empty(QUEUE).await?.then_some(()))
        })
        .await
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

/// A publisher with its status.
pub(crate) struct TestPublisher {
    pub(crate) publisher: ConfirmingPublisher,
    pub(crate) status: ConnectionStatus,
}

impl TestPublisher {
    /// A publisher that is not connected yet.
    pub(crate) fn new(endpoint: Endpoint, confirm_deadline: Duration) -> Self {
        let status = ConnectionStatus::new("test");
        Self { publisher: ConfirmingPublisher::new(endpoint, status.clone(), confirm_deadline), status }
    }

    /// Waits until the publisher is connected and ready.
    pub(crate) async fn until_ready(&mut self) -> anyhow::Result<()> {
        let ready = async || Ok(Some(self.publisher.ready().await?));
        eventually("the publisher to be ready", DEADLINE, ready).await
    }

    pub(crate) async fn publish(&mut self, batch: &[Outgoing]) -> Vec<PublishOutcome> {
        self.publisher.publish(&batch.iter().collect::<Vec<_>>()).await
    }

    /// Publishes an event, until one is confirmed.
    pub(crate) async fn until_confirmed(&mut self) -> anyhow::Result<()> {
        eventually("a message to be confirmed", DEADLINE, async || {
            self.publisher.ready().await?;
            let outcomes = self.publish(&[outgoing("OrderCreated")]).await;
            Ok((outcomes == [PublishOutcome::Confirmed]).then_some(()))
        })
        .await
    }
}

/// A consumer or a collector in its own task, with its status. Dropping it stops the task.
pub(crate) struct Running {
    pub(crate) status: ConnectionStatus,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub(crate) fn start<F>(run: impl FnOnce(ConnectionStatus, CancellationToken) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (status, stop) = (ConnectionStatus::new("test"), CancellationToken::new());
        Self { task: tokio::spawn(run(status.clone(), stop.clone())), status, stop }
    }

    /// Waits until it can work.
    pub(crate) async fn until_working(&self) -> anyhow::Result<()> {
        until("health to be good", || self.status.state().is_ok()).await
    }

    /// Waits until its health gives this reason.
    pub(crate) async fn until_failing(&self, reason: &str) -> anyhow::Result<()> {
        until(reason, || self.status.state().is_err_and(|shown| shown.contains(reason))).await
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

/// The same as a message to publish, under the routing key of `event_type`.
pub(crate) fn outgoing(event_type: &str) -> Outgoing {
    let event = order_created();
    Outgoing {
        id: event.event_id,
        event_type: event_type.into(),
        lane: event.lane,
        body: event.payload.into_bytes(),
        traceparent: event.headers["traceparent"].as_str().map(String::from),
    }
}
