use std::time::Duration;

use lapin::{
    BasicProperties, Channel, Confirmation, Connection,
    message::Delivery,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    Endpoint, Error,
    connect::close,
    error::{REQUEST_DEADLINE, within},
    topology::DEAD,
};

/// How long the broker may take to confirm a dead letter.
const CONFIRM_DEADLINE: Duration = Duration::from_secs(5);

/// How often the wait for a confirm checks for an alarm.
const ALARM_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The longest detail of a dead letter, in characters: an error text can quote the whole message.
const MAX_DETAIL: usize = 500;

/// Headers that are added to a dead letter.
pub(crate) const REASON: &str = "reason";
pub(crate) const DETAIL: &str = "detail";
pub(crate) const ROUTING_KEY: &str = "original-routing-key";
/// Identifies the dead letter, not the message: a message that is set aside twice is two dead letters with one
/// `message_id`; a dead letter that is delivered twice is one.
pub(crate) const LETTER_ID: &str = "dead-letter-id";

/// Publishes messages that cannot be applied to the dead-letter queue, with the reason and the original bytes.
///
/// `basic.reject` would have the broker do it, but without a reason. So the message is published and confirmed, and only
/// then acknowledged in its own queue; a crash in between leaves it in both, which loses nothing. On a connection of its
/// own: an alarm blocks connections that publish, and must not stop acknowledgements.
pub(crate) struct DeadLetterPublisher {
    endpoint: Endpoint,
    queue: &'static str,
    open: Option<(Connection, Channel)>,
}

impl DeadLetterPublisher {
    pub(crate) fn new(endpoint: Endpoint, queue: &'static str) -> Self {
        Self { endpoint, queue, open: None }
    }

    /// Publishes a copy of the delivery. The delivery itself is not acknowledged.
    ///
    /// # Errors
    /// [`Error::Blocked`] during an alarm: the connection stays open, and no answer comes before the alarm is over.
    pub(crate) async fn publish(
        &mut self,
        delivery: &Delivery,
        reason: &str,
        detail: &str,
    ) -> Result<(), Error> {
        let published = self.publish_once(delivery, reason, detail).await;
        // A blocked connection cannot be closed in order, and the next one would be blocked too.
        if published.as_ref().is_err_and(|error| !matches!(error, Error::Blocked))
            && let Some((connection, _)) = self.open.take()
        {
            close(connection).await;
        }
        published
    }

    async fn publish_once(&mut self, delivery: &Delivery, reason: &str, detail: &str) -> Result<(), Error> {
        if self.open.is_none() {
            let (connection, channel) = self.endpoint.open("dead letters").await?;
            let select = channel.confirm_select(ConfirmSelectOptions::default());
            within(REQUEST_DEADLINE, "confirm.select", select).await?;
            self.open = Some((connection, channel));
        }
        let Some((connection, channel)) = &self.open else {
            return Err(Error::Silent(REQUEST_DEADLINE, "connect"));
        };
        let is_blocked = || connection.status().connected() && connection.status().blocked();
        if is_blocked() {
            return Err(Error::Blocked);
        }

        let mut headers = delivery.properties.headers().clone().unwrap_or_default();
        let detail: String = detail.chars().take(MAX_DETAIL).collect();
        set(&mut headers, REASON, reason);
        set(&mut headers, DETAIL, &detail);
        set(&mut headers, ROUTING_KEY, delivery.routing_key.as_str());
        set(&mut headers, LETTER_ID, &Uuid::now_v7().to_string());
        let properties = copied(&delivery.properties).with_headers(headers);
        let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
        let published =
            channel.basic_publish(DEAD.into(), self.queue.into(), mandatory, &delivery.data, properties);
        let confirm = within(CONFIRM_DEADLINE, "basic.publish", published).await?;
        // The broker announces an alarm in answer to the publish, and confirms nothing before it is over.
        let blocked = async {
            while !is_blocked() {
                sleep(ALARM_CHECK_INTERVAL).await;
            }
        };
        let confirmed = tokio::select! {
            confirmed = within(CONFIRM_DEADLINE, "the confirm of a dead letter", confirm) => confirmed?,
            () = blocked => return Err(Error::Blocked),
        };
        match confirmed {
            Confirmation::Ack(None) => Ok(()),
            // The caller does not acknowledge, and the message is delivered again.
            other => Err(Error::Refused(
                format!("the dead letter was not confirmed: {other:?}").chars().take(200).collect(),
            )),
        }
    }
}

/// Copies the properties that only readers use. `expiration` would make the broker drop the dead letter after a while, and
/// `user_id` would make it refuse it, because the login is ours.
fn copied(original: &BasicProperties) -> BasicProperties {
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
