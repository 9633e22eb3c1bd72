//! A queue of the benchmark's own that receives everything that is published, and when.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use futures_util::StreamExt as _;
use lapin::{
    Connection,
    options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};
use serde::Deserialize;
use time::OffsetDateTime;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::bare_publisher::{EXCHANGE, answered, close, connect};

/// The queue exists as long as the connection. It is a classic queue, and needs no acknowledgements.
pub(crate) struct Tap {
    connection: Connection,
    receiving: JoinHandle<()>,
    received: Arc<Mutex<Received>>,
}

#[derive(Debug, Default)]
struct Received {
    arrivals: Vec<Arrival>,
    /// Why it receives no longer, or not everything. A count without this would take an event for one that was not published.
    failed: Option<String>,
}

/// One message.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    event: Envelope,
    at: SystemTime,
}

#[derive(Debug, Clone, Deserialize)]
struct Envelope {
    id: Uuid,
    /// The order.
    subject: Uuid,
    sequence: i64,
    /// When the event was made, just before its transaction was written.
    #[serde(with = "time::serde::rfc3339")]
    time: OffsetDateTime,
}

impl Tap {
    /// Receives what is published from now on. The exchange must exist.
    pub(crate) async fn open(amqp_url: &str) -> anyhow::Result<Self> {
        let (connection, channel) = connect(amqp_url).await?;
        let own = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
        let queue = channel.queue_declare("".into(), own, FieldTable::default());
        let queue = answered("declare a queue", queue).await?;
        let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
        let bound = channel.queue_bind(queue.name().clone(), EXCHANGE.into(), "#".into(), options, arguments);
        answered("bind a queue", bound).await?;
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let consumer =
            channel.basic_consume(queue.name().clone(), "tap".into(), options, FieldTable::default());
        let mut consumer = answered("consume", consumer).await?;
        let received: Arc<Mutex<Received>> = Arc::default();
        let shared = received.clone();
        let receiving = tokio::spawn(async move {
            // The channel lives as long as this task.
            let _channel = channel;
            loop {
                let next = consumer.next().await;
                let at = SystemTime::now();
                let mut received = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let data = match next {
                    Some(Ok(delivery)) => delivery.data,
                    Some(Err(error)) => return received.failed = Some(format!("failed to receive: {error}")),
                    None => return received.failed = Some("the broker ended the subscription".into()),
                };
                match serde_json::from_slice(&data) {
                    Ok(event) => received.arrivals.push(Arrival { event, at }),
                    Err(error) => received.failed = Some(format!("failed to read a message: {error}")),
                }
            }
        });
        Ok(Self { connection, receiving, received })
    }

    /// What has arrived so far, copies included, in the order of arrival. Fails unless everything was received.
    pub(crate) fn arrived(&self) -> anyhow::Result<Arrivals> {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        anyhow::ensure!(received.failed.is_none(), "the benchmark's own queue: {:?}", received.failed);
        Ok(Arrivals(received.arrivals.clone()))
    }

    /// Waits until `count` different events have arrived.
    pub(crate) async fn wait_for(&self, count: usize, deadline: Duration) -> anyhow::Result<()> {
        testbed::eventually("the events to be published", deadline, async || {
            let different = self.arrived()?.first_copies().len();
            anyhow::ensure!(different >= count, "{different} of {count} events were published");
            Ok(Some(()))
        })
        .await
    }

    /// Forgets what has arrived.
    pub(crate) fn forget(&self) {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).arrivals.clear();
    }

    pub(crate) async fn close(self) -> anyhow::Result<()> {
        let closed = close(self.connection).await;
        self.receiving.abort();
        closed
    }
}

/// Messages in the order of arrival.
pub(crate) struct Arrivals(Vec<Arrival>);

impl Arrivals {
    /// The first copy of each event, in the order of arrival.
    fn first_copies(&self) -> Vec<&Arrival> {
        let mut seen = HashSet::new();
        self.0.iter().filter(|arrival| seen.insert(arrival.event.id)).collect()
    }

    /// How many messages are a second or later copy of an event.
    pub(crate) fn copies(&self) -> usize {
        self.0.len() - self.first_copies().len()
    }

    /// How many events a second arrived, from the first tenth to the last: the start of the relay is not in it.
    pub(crate) fn rate(&self) -> anyhow::Result<f64> {
        let first_copies = self.first_copies();
        let count = first_copies.len();
        let (from, to) =
            (first_copies.get(count / 10), first_copies.get(count.saturating_sub(1 + count / 10)));
        let (from, to) = from.zip(to).context("failed to measure the rate: nothing was published")?;
        let took = to.at.duration_since(from.at)?.as_secs_f64();
        Ok((count - 2 * (count / 10)) as f64 / took.max(f64::MIN_POSITIVE))
    }

    /// Milliseconds from the making of each event until its first copy arrived, sorted.
    pub(crate) fn latencies(&self) -> Vec<f64> {
        let since_made = |arrival: &&Arrival| {
            let made = SystemTime::from(arrival.event.time);
            arrival.at.duration_since(made).unwrap_or_default().as_secs_f64() * 1e3
        };
        let mut latencies: Vec<f64> = self.first_copies().iter().map(since_made).collect();
        latencies.sort_by(f64::total_cmp);
        latencies
    }

    /// How many of `orders` have had no event published.
    pub(crate) fn missing(&self, orders: &[Uuid]) -> usize {
        let published: HashSet<Uuid> = self.0.iter().map(|arrival| arrival.event.subject).collect();
        orders.iter().filter(|order| !published.contains(order)).count()
    }

    /// How many events arrived before an older one of their order.
    pub(crate) fn out_of_order(&self) -> usize {
        let mut last: HashMap<Uuid, i64> = HashMap::new();
        let mut overtaken = 0;
        for Arrival { event, .. } in self.first_copies() {
            let last = last.entry(event.subject).or_default();
            overtaken += usize::from(event.sequence < *last);
            *last = event.sequence.max(*last);
        }
        overtaken
    }
}
