//! Whose fault a refusal of the broker is. One table decides for publishers, for consumers and for the start of a process.
//!
//! The codes are AMQP's: <https://www.rabbitmq.com/amqp-0-9-1-reference#constants>. RabbitMQ uses one code for several
//! causes, so its text decides between them.

use lapin::{Error, ErrorKind};

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

/// Reply codes with a part of their texts. The first row that fits decides.
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

/// The broker's reply in an error, and whose fault it is. `None`: the connection failed without a reply.
pub(crate) fn reply(error: &Error) -> Option<(Fault, &str)> {
    let ErrorKind::ProtocolError(reply) = error.kind() else { return None };
    let text = reply.get_message().as_str();
    Some((Fault::of_reply(reply.get_id(), text), text))
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
