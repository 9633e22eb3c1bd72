use std::time::Duration;

use lapin::{
    BasicProperties, Channel, Confirmation, Connection,
    message::Delivery,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use uuid::Uuid;

use crate::{
    Endpoint, Error,
    connect::{PATIENCE, close, within},
    topology::DEAD,
};

/// How long the broker may take to confirm a dead letter.
const CONFIRM_DEADLINE: Duration = Duration::from_secs(5);

/// The longest detail that is kept with a dead letter, in characters: an error text can quote the whole message.
const LONGEST_DETAIL: usize = 500;

/// What is added to the headers of a message that is set aside.
pub(crate) const REASON: &str = "reason";
pub(crate) const DETAIL: &str = "detail";
pub(crate) const ROUTING_KEY: &str = "original-routing-key";
/// Of this letter, not of the message: a message that is set aside twice is two letters with one `message_id`, and the
/// same letter handed over twice is one.
pub(crate) const LETTER_ID: &str = "dead-letter-id";

/// Sets messages aside, with the reason and the original bytes.
///
/// `basic.reject` would let the broker do it, but without a reason. So the message is published to the dead letters
/// and confirmed there, and only then acknowledged here; a crash in between leaves it in both places, which loses
/// nothing. On a connection of its own: an alarm blocks connections that publish, and must not stop acknowledgements.
pub(crate) struct DeadLetters {
    endpoint: Endpoint,
    queue: &'static str,
    open: Option<(Connection, Channel)>,
}

impl DeadLetters {
    pub(crate) fn new(endpoint: Endpoint, queue: &'static str) -> Self {
        Self { endpoint, queue, open: None }
    }

    /// Puts a copy of the delivery into the queue's dead letters. The delivery itself is not touched.
    pub(crate) async fn keep(
        &mut self,
        delivery: &Delivery,
        reason: &str,
        detail: &str,
    ) -> Result<(), Error> {
        let kept = self.publish(delivery, reason, detail).await;
        if kept.is_err()
            && let Some((connection, _)) = self.open.take()
        {
            close(connection).await;
        }
        kept
    }

    async fn publish(&mut self, delivery: &Delivery, reason: &str, detail: &str) -> Result<(), Error> {
        if self.open.is_none() {
            let (connection, channel) = self.endpoint.open("dead letters").await?;
            let select = channel.confirm_select(ConfirmSelectOptions::default());
            within(PATIENCE, "confirm.select", select).await?;
            self.open = Some((connection, channel));
        }
        let Some((_, channel)) = &self.open else {
            return Err(Error::Silent(PATIENCE, "connect"));
        };

        let mut headers = delivery.properties.headers().clone().unwrap_or_default();
        let detail: String = detail.chars().take(LONGEST_DETAIL).collect();
        set(&mut headers, REASON, reason);
        set(&mut headers, DETAIL, &detail);
        set(&mut headers, ROUTING_KEY, delivery.routing_key.as_str());
        set(&mut headers, LETTER_ID, &Uuid::now_v7().to_string());
        let properties = harmless(&delivery.properties).with_headers(headers);
        let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
        let published =
            channel.basic_publish(DEAD.into(), self.queue.into(), mandatory, &delivery.data, properties);
        let confirm = within(CONFIRM_DEADLINE, "basic.publish", published).await?;
        match within(CONFIRM_DEADLINE, "the confirm of a dead letter", confirm).await? {
            Confirmation::Ack(None) => Ok(()),
            // Not kept, then: the caller does not acknowledge, and the message comes again.
            other => Err(Error::Refused(
                format!("a dead letter was not taken: {other:?}").chars().take(200).collect(),
            )),
        }
    }
}

/// The properties that only readers care about. `expiration` would have the broker drop the letter after a while, and
/// `user_id` would have it refused, because it is not ours.
fn harmless(original: &BasicProperties) -> BasicProperties {
    let mut properties = BasicProperties::default().with_delivery_mode(2);
    macro_rules! keep {
        ($($get:ident $with:ident),*) => {
            $(if let Some(value) = original.$get() {
                properties = properties.$with(value.clone());
            })*
        };
    }
    keep!(
        content_type with_content_type, content_encoding with_content_encoding, priority with_priority,
        correlation_id with_correlation_id, reply_to with_reply_to, message_id with_message_id,
        timestamp with_timestamp, kind with_type, app_id with_app_id
    );
    properties
}

fn set(headers: &mut FieldTable, key: &str, value: &str) {
    headers.insert(ShortString::from(key), AMQPValue::LongString(value.into()));
}
