use lapin::{
    Channel, Connection,
    message::Delivery,
    options::{BasicAckOptions, BasicRejectOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use messaging::{BrokerUnavailable, DeadLetter, Incoming, settle::DeliveryChannel};

use crate::{
    dead_letter,
    error::{REQUEST_DEADLINE, within},
};

/// A consuming connection to RabbitMQ.
pub(crate) struct AmqpDeliveryChannel {
    pub(crate) connection: Connection,
    pub(crate) channel: Channel,
    pub(crate) queue: &'static str,
    /// Whether the broker has ended the subscription. What was received before can still be acknowledged.
    pub(crate) is_cancelled: bool,
}

impl DeliveryChannel for AmqpDeliveryChannel {
    type Delivery = Delivery;

    fn incoming<'a>(&self, delivery: &'a Delivery) -> Incoming<'a> {
        let headers = delivery.properties.headers().as_ref().map(FieldTable::inner);
        Incoming {
            message_id: delivery.properties.message_id().as_ref().map(ShortString::as_str),
            traceparent: match headers.and_then(|headers| headers.get("traceparent")) {
                Some(AMQPValue::LongString(text)) => str::from_utf8(text.as_bytes()).ok(),
                // Absent or of another type: the event starts a new trace.
                _ => None,
            },
            body: &delivery.data,
            earlier_deliveries: earlier_deliveries(delivery),
        }
    }

    fn dead_letter(&self, delivery: &Delivery, reason: &str, detail: &str) -> DeadLetter {
        dead_letter::from_consumer(self.queue, delivery, reason, detail)
    }

    async fn acknowledge(&mut self, delivery: &Delivery, multiple: bool) -> Result<(), BrokerUnavailable> {
        let ack = self.channel.basic_ack(delivery.delivery_tag, BasicAckOptions { multiple });
        Ok(within(REQUEST_DEADLINE, "basic.ack", ack).await?)
    }

    async fn reject(&mut self, delivery: &Delivery) -> Result<(), BrokerUnavailable> {
        let reject = self.channel.basic_reject(delivery.delivery_tag, BasicRejectOptions { requeue: false });
        Ok(within(REQUEST_DEADLINE, "basic.reject", reject).await?)
    }

    fn is_open(&self) -> bool {
        // RabbitMQ can close the channel alone, such as when a delivery is not answered within its consumer time-out.
        self.connection.status().connected() && self.channel.status().connected() && !self.is_cancelled
    }
}

/// How often the broker has delivered this message before without an answer. Quorum queues count it in a header, from
/// the second delivery on.
fn earlier_deliveries(delivery: &Delivery) -> u32 {
    let headers = delivery.properties.headers().as_ref().map(FieldTable::inner);
    match headers.and_then(|headers| headers.get("x-delivery-count")) {
        Some(AMQPValue::LongLongInt(count)) => u32::try_from(*count).unwrap_or(0),
        Some(AMQPValue::LongInt(count)) => u32::try_from(*count).unwrap_or(0),
        _ => u32::from(delivery.redelivered),
    }
}
