//! [`Line`] over a channel to RabbitMQ.

use events::transport::Incoming;
#[cfg(feature = "drill")]
use faults::Sabotage;
#[cfg(feature = "drill")]
use lapin::options::BasicNackOptions;
use lapin::{
    Channel, Connection,
    message::Delivery,
    options::{BasicAckOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};

use crate::{
    Error,
    connect::{PATIENCE, close, within},
    dead_letters::DeadLetters,
    group::Line,
};

/// A consuming connection, and the way to the dead letters.
pub(crate) struct ChannelLine {
    pub(crate) connection: Connection,
    pub(crate) channel: Channel,
    pub(crate) dead_letters: DeadLetters,
}

impl ChannelLine {
    /// Silence can mean an empty queue or a dead broker: ask. The answer also tells how much is waiting.
    pub(crate) async fn still_there(&self, queue: &'static str) -> Result<(), Error> {
        let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
        let asked = self.channel.queue_declare(queue.into(), passive, FieldTable::default());
        let answer = within(PATIENCE, "queue.declare", asked).await?;
        metrics::gauge!("broker_queue_ready", "queue" => queue).set(answer.message_count());
        Ok(())
    }

    pub(crate) async fn close(self) {
        close(self.connection).await;
    }
}

impl Line for ChannelLine {
    type Delivery = Delivery;

    fn incoming(&self, delivery: &Delivery) -> Incoming {
        let headers = delivery.properties.headers().as_ref().map(FieldTable::inner);
        let header = |key: &str| headers.and_then(|headers| headers.get(key));
        Incoming {
            message_id: delivery.properties.message_id().as_ref().map(ToString::to_string),
            traceparent: match header("traceparent") {
                Some(AMQPValue::LongString(text)) => Some(text.to_string()),
                // Absent, or of a type that no trace context has: a new trace then.
                _ => None,
            },
            body: delivery.data.clone(),
        }
    }

    async fn acknowledge(&mut self, delivery: &Delivery, and_before: bool) -> Result<(), Error> {
        let options = BasicAckOptions { multiple: and_before };
        within(PATIENCE, "basic.ack", self.channel.basic_ack(delivery.delivery_tag, options)).await
    }

    async fn keep_as_dead_letter(
        &mut self,
        delivery: &Delivery,
        reason: &str,
        detail: &str,
    ) -> Result<(), Error> {
        #[cfg(feature = "drill")]
        if faults::sabotaged(Sabotage::NackForPoison) {
            let give_back = BasicNackOptions { requeue: true, ..Default::default() };
            let given = self.channel.basic_nack(delivery.delivery_tag, give_back);
            within(PATIENCE, "basic.nack", given).await?;
            return Err(Error::Refused("given back, to come again at once".into()));
        }
        self.dead_letters.keep(delivery, reason, detail).await
    }

    fn is_open(&self) -> bool {
        self.connection.status().connected()
    }
}

/// How often the broker has handed this message over before without an answer. Quorum queues count it in a header,
/// from the second delivery on.
pub(crate) fn earlier_deliveries(delivery: &Delivery) -> i64 {
    let headers = delivery.properties.headers().as_ref().map(FieldTable::inner);
    match headers.and_then(|headers| headers.get("x-delivery-count")) {
        Some(AMQPValue::LongLongInt(count)) => *count,
        Some(AMQPValue::LongInt(count)) => i64::from(*count),
        _ => i64::from(delivery.redelivered),
    }
}
