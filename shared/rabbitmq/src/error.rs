//! Failed requests to the broker, and whose fault a refusal is. One table decides for publishers, for consumers and for the
//! start of a process.

use std::{future::Future, time::Duration};

use lapin::ErrorKind;
use messaging::{BrokerUnavailable, settle::Interruption};
use tokio::time::timeout;

/// How long one request to the broker may take. lapin has no time-out: connecting to a server that accepts
/// and stays silent would hang forever.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(3);

/// A failed request to the broker.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not an AMQP URL: {0}")]
    Url(&'static str),
    /// The broker refuses, and waiting alone does not help.
    #[error("the broker refuses: {1}")]
    Refused(Fault, String),
    /// The queues of this virtual host have another number of partitions. A service with the wrong one does nothing.
    #[error(
        "the queues have {current} partitions, and this service is set to {wanted} (docs/operations.md#partitions)"
    )]
    OtherPartitions { current: u8, wanted: u8 },
    /// A queue of the current number of partitions must be drained before the number changes.
    #[error("the queue {0} has messages or consumers")]
    InUse(String),
    /// The broker did not answer in time.
    #[error("no answer within {REQUEST_DEADLINE:?} to {0}")]
    Silent(&'static str),
    /// The broker has ended the subscription: the queue was deleted, or a message was held for longer than its consumer
    /// time-out.
    #[error("the broker cancelled the subscription")]
    Cancelled,
    /// No leader of the queue answers at this node, which may be cut off from the others.
    #[error("the leader of the queue does not answer")]
    NoLeader,
    /// The broker delivers nothing to the active consumer of a queue with messages.
    #[error("messages wait, and none is delivered")]
    Undelivered,
    /// Messages were received and not settled.
    #[error(transparent)]
    Interrupted(#[from] Interruption),
    /// An alarm (memory, disk) keeps the broker from reading what this client sends.
    #[error("blocked by an alarm")]
    Blocked,
    /// The broker cannot be reached, or the connection broke.
    #[error(transparent)]
    Lost(lapin::Error),
}

impl From<lapin::Error> for Error {
    fn from(error: lapin::Error) -> Self {
        // Without a reply the connection has failed.
        let ErrorKind::ProtocolError(reply) = error.kind() else { return Self::Lost(error) };
        let text = reply.get_message().as_str();
        match Fault::of_reply(reply.get_id(), text) {
            Fault::Server => Self::Lost(error),
            fault => Self::Refused(fault, text.to_owned()),
        }
    }
}

impl From<Error> for BrokerUnavailable {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

/// Sends a request to the broker with a deadline. `what` names it in the error.
pub(crate) async fn request<T>(
    what: &'static str,
    sent: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, Error> {
    match timeout(REQUEST_DEADLINE, sent).await {
        Ok(answer) => answer.map_err(Error::from),
        Err(_) => Err(Error::Silent(what)),
    }
}

/// Whose fault a refusal is, and so what helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The message's: the broker would refuse it again. It counts as an attempt, and is parked after the last one.
    Message,
    /// This deployment's: its queues, exchanges or permissions. It is the same for every message until an operator repairs
    /// it, so everything waits, and health says why.
    Deployment,
    /// A setting's. A process that finds it at its start ends.
    Setting,
    /// The broker's or the network's: the same request may succeed later. Also whatever this table does not have.
    Server,
}

/// Reply codes of AMQP with a part of their texts: RabbitMQ uses one code for several causes. The first row that fits
/// decides. <https://www.rabbitmq.com/amqp-0-9-1-reference#constants>
const REPLIES: [(u16, &str, Fault); 20] = [
    (311, "", Fault::Message),                   // CONTENT_TOO_LARGE
    (320, "", Fault::Server),                    // CONNECTION_FORCED: a shutdown, or an operator
    (402, "", Fault::Setting),                   // INVALID_PATH: no such virtual host
    (403, "Login was refused", Fault::Setting),  // ACCESS_REFUSED
    (403, "access to topic", Fault::Message),    // a permission for routing keys
    (403, "", Fault::Deployment),                // a permission for an exchange or a queue
    (404, "", Fault::Deployment),                // NOT_FOUND: declared again by the next connection
    (405, "", Fault::Deployment),                // RESOURCE_LOCKED: an exclusive queue of another client
    (406, "message size", Fault::Message),       // PRECONDITION_FAILED
    (406, "invalid expiration", Fault::Message), // of a message
    (406, "invalid message", Fault::Message),    // content that the broker cannot read
    (406, "delivery", Fault::Server),            // an unknown tag, or one that was held for too long
    (406, "", Fault::Deployment),                // a queue with other arguments, or the limit of queues
    (501, "", Fault::Message),                   // FRAME_ERROR: headers that are larger than a frame
    (502, "", Fault::Message),                   // SYNTAX_ERROR: a field that the broker cannot read
    (530, "limit", Fault::Server), // NOT_ALLOWED: the old instance of a roll-out still has a connection
    (530, "is down", Fault::Server), // a virtual host that is being started
    (530, "vhost", Fault::Setting), // one that does not exist, or that this user may not use
    (540, "", Fault::Deployment),  // NOT_IMPLEMENTED, by this version of the broker
    (541, "", Fault::Server),      // INTERNAL_ERROR
];

impl Fault {
    fn of_reply(code: u16, text: &str) -> Self {
        let fits = |(row, part, _): &&(u16, &str, Fault)| *row == code && text.contains(part);
        REPLIES.iter().find(fits).map_or(Self::Server, |(.., fault)| *fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reply_of_the_table_has_its_fault_and_an_unknown_one_is_the_servers() {
        for (code, part, fault) in REPLIES {
            assert_eq!(Fault::of_reply(code, part), fault, "{code} {part}");
        }
        // As RabbitMQ writes them.
        for (code, text, fault) in [
            (
                403,
                "write access to topic 'order.cancelled' in exchange 'shop.events' refused",
                Fault::Message,
            ),
            (403, "write access to exchange 'shop.events' in vhost 'shop' refused", Fault::Deployment),
            (406, "message size 2000000 is larger than configured max size 1048576", Fault::Message),
            (406, "inequivalent arg 'x-queue-type' for queue 'orders.events'", Fault::Deployment),
            (406, "delivery acknowledgement on channel 1 timed out", Fault::Server),
            (530, "access to vhost 'shop' refused for user 'shop'", Fault::Setting),
            (530, "access to vhost 'shop' refused: connection limit (0) is reached", Fault::Server),
            (530, "access to vhost 'shop' refused: vhost 'shop' is down", Fault::Server),
            (530, "attempt to reuse consumer tag 'one'", Fault::Server),
            (505, "", Fault::Server),
        ] {
            assert_eq!(Fault::of_reply(code, text), fault, "{text}");
        }
    }
}
