//! The limit that the consumers are compared with: the same messages from the same queues, acknowledged and not applied.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use futures_util::StreamExt as _;
use lapin::{
    Channel, Connection,
    options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};

use crate::bare_publisher::{answered, close, connect};

/// The product's consumers have this many unacknowledged messages at most.
pub(crate) const PREFETCH: u16 = 500;
/// The product's consumers acknowledge at most this many messages at once.
const GROUP: u32 = 250;

/// A connection that consumes messages and does nothing with them.
pub(crate) struct BareConsumer {
    connection: Connection,
    channel: Channel,
}

impl BareConsumer {
    pub(crate) async fn connect(amqp_url: &str) -> anyhow::Result<Self> {
        let (connection, channel) = connect(amqp_url).await?;
        answered("set the prefetch", channel.basic_qos(PREFETCH, BasicQosOptions::default())).await?;
        Ok(Self { connection, channel })
    }

    /// Consumes `count` messages from `queue` and acknowledges them in groups.
    ///
    /// Returns how many a second, counted from the end of the first group.
    ///
    /// # Errors
    /// When there are fewer messages.
    pub(crate) async fn consume(&self, queue: &str, count: u32) -> anyhow::Result<f64> {
        ensure!(count > GROUP, "failed to measure the bare consumer: {count} messages are too few");
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consuming = self.channel.basic_consume(queue.into(), "bare".into(), options, arguments);
        let mut consumer = answered("consume", consuming).await?;
        let mut start = Instant::now();
        for number in 1..=count {
            let delivery = async { consumer.next().await.transpose() };
            let delivery = answered("receive a message", delivery).await?;
            let delivery = delivery
                .with_context(|| format!("failed to receive message {number} of {count}: cancelled"))?;
            if number.is_multiple_of(GROUP) || number == count {
                let acknowledged = delivery.ack(BasicAckOptions { multiple: true });
                answered("acknowledge messages", acknowledged).await?;
            }
            if number == GROUP {
                start = Instant::now();
            }
        }
        let took = start.elapsed();
        let cancelled = self.channel.basic_cancel("bare".into(), BasicCancelOptions::default());
        answered("cancel the consumer", cancelled).await?;
        Ok(f64::from(count - GROUP) / took.as_secs_f64())
    }

    pub(crate) async fn close(self) -> anyhow::Result<()> {
        close(self.connection).await
    }
}
