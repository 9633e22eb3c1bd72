//! The limit that the consumers are held against: the same messages from the same queues, and nothing done with them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::StreamExt as _;
use lapin::{
    Channel, Connection, ConnectionProperties,
    options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use tokio::time::timeout;

/// As many as our consumers take at once, and as many as they answer with one acknowledgement.
pub(crate) const PREFETCH: u16 = 500;
const GROUP: u32 = 250;

/// lapin bounds nothing by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection that takes messages away.
pub(crate) struct BareConsumer {
    connection: Connection,
    channel: Channel,
}

impl BareConsumer {
    /// Connects.
    ///
    /// # Errors
    /// When the broker refuses or does not answer.
    pub(crate) async fn connect(amqp_url: &str) -> anyhow::Result<Self> {
        let properties = ConnectionProperties::default().with_connection_name("load-tests".into());
        let connection = timeout(PATIENCE, Connection::connect(amqp_url, properties)).await??;
        let channel = timeout(PATIENCE, connection.create_channel()).await??;
        timeout(PATIENCE, channel.basic_qos(PREFETCH, BasicQosOptions::default())).await??;
        Ok(Self { connection, channel })
    }

    /// Takes `count` messages from `queue`, and acknowledges them in groups. Returns how many a second, counted from the
    /// end of the first group.
    ///
    /// # Errors
    /// When they are not all there.
    pub(crate) async fn consume(&self, queue: &str, count: u32) -> anyhow::Result<f64> {
        ensure!(count > GROUP, "{count} messages are too few to measure");
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consuming = self.channel.basic_consume(queue.into(), "bare".into(), options, arguments);
        let mut consumer = timeout(PATIENCE, consuming).await??;
        let mut start = Instant::now();
        for number in 1..=count {
            let delivery = timeout(PATIENCE, consumer.next()).await.context("a message is missing")?;
            let delivery = delivery.context("the consumer was cancelled")??;
            if number.is_multiple_of(GROUP) || number == count {
                timeout(PATIENCE, delivery.ack(BasicAckOptions { multiple: true })).await??;
            }
            if number == GROUP {
                start = Instant::now();
            }
        }
        let took = start.elapsed();
        timeout(PATIENCE, self.channel.basic_cancel("bare".into(), BasicCancelOptions::default())).await??;
        Ok(f64::from(count - GROUP) / took.as_secs_f64())
    }

    /// Says goodbye.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        timeout(PATIENCE, self.connection.close(200, "done".into())).await??;
        Ok(())
    }
}
