use lapin::{
    Channel, Connection,
    message::Delivery,
    options::BasicAckOptions,
    types::{AMQPValue, FieldTable},
};
use messaging::Incoming;

use crate::{
    Error,
    dead_letter_publisher::DeadLetterPublisher,
    error::{REQUEST_DEADLINE, within},
    group::DeliveryChannel,
};

/// A consuming connection to RabbitMQ, with the publisher of its dead letters.
pub(crate) struct AmqpDeliveryChannel {
    pub(crate) connection: Connection,
    pub(crate) channel: Channel,
    pub(crate) dead_letters: DeadLetterPublisher,
}

impl DeliveryChannel for AmqpDeliveryChannel {
    type Delivery = Delivery;

    fn incoming(&self, delivery: &Delivery) -> Incoming {
        let headers = delivery.properties.headers().as_ref().map(FieldTable::inner);
        let header = |key: &str| headers.and_then(|headers| headers.get(key));
        Incoming {
            message_id: delivery.properties.message_id().as_ref().map(ToString::to_string),
            traceparent: match header("traceparent") {
                Some(AMQPValue::LongString(text)) => Some(text.to_string()),
                // Absent or of another type: the event starts a new trace.
                _ => None,
            },
            body: delivery.data.clone(),
        }
    }

    async fn acknowledge(&mut self, delivery: &Delivery, multiple: bool) -> Result<(), Error> {
        let options = BasicAckOptions { multiple };
        within(REQUEST_DEADLINE, "basic.ack", self.channel.basic_ack(delivery.delivery_tag, options)).await
    }

    async fn publish_dead_letter(
        &mut self,
        delivery: &Delivery,
        reason: &str,
        detail: &str,
    ) -> Result<(), Error> {
        self.dead_letters.publish(delivery, reason, detail).await
    }

    fn is_open(&self) -> bool {
        self.connection.status().connected()
    }
}

/// How often the broker has delivered this message before without an answer. Quorum queues count it in a header, from
/// the second delivery on.
pub(crate) fn earlier_deliveries(delivery: &Delivery) -> i64 {
    let headers = delivery.properties.headers().as_ref().map(FieldTable::inner);
    match headers.and_then(|headers| headers.get("x-delivery-count")) {
        Some(AMQPValue::LongLongInt(count)) => *count,
        Some(AMQPValue::LongInt(count)) => i64::from(*count),
        _ => i64::from(delivery.redelivered),
    }
}
