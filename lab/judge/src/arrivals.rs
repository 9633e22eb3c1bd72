//! What arrives in the judge's queue, recorded in the order of its arrival.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use lapin::{
    Channel, Connection, ConnectionProperties, ExchangeKind,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions, QueueBindOptions,
        QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use serde_json::Value;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use uuid::Uuid;

use crate::outbox::WANTED;

/// The queue that wants [`WANTED`] events.
pub(crate) const QUEUE: &str = "judge";
/// The pause before the judge connects again to a broker that was killed.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
const PREFETCH: u16 = 500;

/// A message that has arrived.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    /// `id` in the body. `None`: the body is not the judge's.
    pub(crate) id: Option<Uuid>,
    pub(crate) at: Instant,
    /// The id that a consumer recognizes copies by: `message_id`, or the entrant's header.
    pub(crate) message_id: Option<String>,
    pub(crate) is_persistent: bool,
    pub(crate) body: Value,
}

#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) all: Vec<Arrival>,
    /// The first arrival of each event.
    pub(crate) first: HashMap<Uuid, usize>,
    /// How often the judge has begun to consume: again after the broker was killed.
    pub(crate) begun: usize,
}

/// The consumer of the judge's queue. It reconnects until it is dropped.
#[derive(Debug)]
pub(crate) struct Arrivals {
    record: Arc<Mutex<Record>>,
    paused: watch::Sender<bool>,
    consumer: JoinHandle<()>,
    amqp_url: String,
    exchange: String,
}

impl Arrivals {
    /// Declares exchange and queue, and consumes. `amqp_url` leads past the fault proxy.
    pub(crate) async fn start(amqp_url: &str, exchange: &str, id_header: Option<String>) -> Result<Self> {
        let (connection, channel) =
            connect(amqp_url, exchange).await.context("failed to declare the queue")?;
        let record = Arc::<Mutex<Record>>::default();
        let (paused, mut is_paused) = watch::channel(false);
        let (url, exchange, kept) = (amqp_url.to_owned(), exchange.to_owned(), record.clone());
        let (amqp_url, to) = (url.clone(), exchange.clone());
        let consumer = tokio::spawn(async move {
            let mut open = Some((connection, channel));
            loop {
                if let Some((_connection, channel)) = open.take() {
                    // It ends when the broker is killed. What was not acknowledged is delivered again.
                    tokio::select! {
                        _ = consume(&channel, &kept, id_header.as_deref()) => {}
                        _ = is_paused.wait_for(|paused| *paused) => {}
                    }
                }
                sleep(RETRY_INTERVAL).await;
                let _ = is_paused.wait_for(|paused| !paused).await;
                // Without a deadline, a broker that is starting lets it wait forever.
                open = timeout(CONNECT_DEADLINE, connect(&url, &to)).await.ok().and_then(Result::ok);
            }
        });
        Ok(Self { record, paused, consumer, amqp_url, exchange })
    }

    /// Ends the consumption, or begins again.
    pub(crate) fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
    }

    /// Lets the queue take the events with this routing key, too.
    pub(crate) async fn bind(&self, routing_key: &str) -> Result<()> {
        let (_connection, channel) = connect(&self.amqp_url, &self.exchange).await?;
        let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
        let bound = channel.queue_bind(
            QUEUE.into(),
            self.exchange.as_str().into(),
            routing_key.into(),
            options,
            arguments,
        );
        bound.await.context("failed to bind the queue")
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has(&self, event: Uuid) -> bool {
        self.record().first.contains_key(&event)
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.consumer.abort();
    }
}

async fn connect(amqp_url: &str, exchange: &str) -> Result<(Connection, Channel)> {
    let properties = ConnectionProperties::default().with_connection_name("judge".into());
    let connection = Connection::connect(amqp_url, properties).await?;
    let channel = connection.create_channel().await?;
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel.exchange_declare(exchange.into(), ExchangeKind::Topic, durable, FieldTable::default()).await?;
    // A classic queue: after a kill, RabbitMQ 3.10 may deliver and confirm nothing of a quorum queue for half a minute.
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(QUEUE.into(), durable, FieldTable::default()).await?;
    let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind(QUEUE.into(), exchange.into(), WANTED.into(), options, arguments).await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    Ok((connection, channel))
}

async fn consume(channel: &Channel, record: &Mutex<Record>, id_header: Option<&str>) -> Result<()> {
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut deliveries = channel.basic_consume(QUEUE.into(), "judge".into(), options, arguments).await?;
    record.lock().unwrap_or_else(PoisonError::into_inner).begun += 1;
    while let Some(delivery) = deliveries.next().await {
        let delivery = delivery?;
        {
            let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
            let arrival = Arrival::of(&delivery, id_header);
            let position = record.all.len();
            if let Some(id) = arrival.id {
                record.first.entry(id).or_insert(position);
            }
            record.all.push(arrival);
        }
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}

impl Arrival {
    fn of(delivery: &Delivery, id_header: Option<&str>) -> Self {
        let at = Instant::now();
        let body: Value = serde_json::from_slice(&delivery.data).unwrap_or_default();
        let id = body.get("id").and_then(Value::as_str).and_then(|id| id.parse().ok());
        let message_id = match id_header {
            None => delivery.properties.message_id().as_ref().map(|id| id.as_str().to_owned()),
            Some(name) => {
                let headers = delivery.properties.headers().as_ref();
                match headers.and_then(|headers| headers.inner().get(name)) {
                    Some(AMQPValue::LongString(id)) => Some(id.to_string()),
                    _ => None,
                }
            }
        };
        let is_persistent = *delivery.properties.delivery_mode() == Some(2);
        Self { id, at, message_id, is_persistent, body }
    }
}
