//! The exchanges and queues of the system.
//!
//! Every client declares all of them. Declaring is idempotent, and it solves the problem of the first start: an exchange
//! drops messages that no queue is bound for, so an event published before its consumer's first start would be lost.
//!
//! An external consumer, for example the mailer in `examples`, brings its own queue (`Endpoint::with_queue`). No other
//! client declares that one: a queue that all clients declare and none reads would grow forever. The price: events that
//! were published before an external consumer's first start are not in its queue.
//!
//! There is deliberately no alternate exchange. It would turn "no queue is bound for this" into an ordinary confirm,
//! and the relay would mark an event as published that no service received. Without it a `mandatory` message is returned,
//! stays in the outbox, and is delivered as soon as the binding exists again.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use lapin::{
    Channel, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};

use crate::error::{Error, request};

/// Where events are published: a topic exchange, with routing keys like `order.created`.
pub const EVENTS: &str = "shop.events";

/// Where the broker puts messages that no consumer could settle; the routing key is the queue that they came from.
pub const DEAD: &str = "shop.dead";

/// The order service's queue: the answers of inventory and billing.
pub const ORDERS: &str = "orders.events";

/// The inventory service's queue.
pub const INVENTORY: &str = "inventory.events";

/// The billing service's queue.
pub const BILLING: &str = "billing.events";

/// A queue and its bindings.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    pub name: &'static str,
    /// The routing keys that are bound to it, for example `order.created`.
    pub keys: &'static [&'static str],
}

/// The queues of the three services, which every client declares.
pub const SHOP_QUEUES: [Queue; 3] = [
    Queue {
        name: ORDERS,
        keys: &[
            "stock.reserved",
            "stock.rejected",
            "stock.released",
            "payment.captured",
            "payment.declined",
            "payment.refunded",
        ],
    },
    Queue { name: INVENTORY, keys: &["order.created", "order.cancelled"] },
    Queue { name: BILLING, keys: &["order.created", "order.cancelled"] },
];

/// The routing keys of events that no service consumes. They are published without `mandatory`: external consumers may want
/// them, but none need run, and an event that is returned would be parked. A list, and not what no queue of the shop is
/// bound for: an event with a mistyped name would be confirmed, dropped, and marked as published.
pub const FOR_EXTERNAL_CONSUMERS: [&str; 1] = ["order.confirmed"];

/// How often a message may be redelivered before the broker dead-letters it. The broker counts a delivery for every message
/// that a lost consumer held, and for each of its standbys after its own crash: the number says little about the
/// message. So this is far away, some eight minutes of connections that all break, and the consumer counts its own
/// attempts. Without any limit, a message that crashes its consumer before it can count would stop the queue for good.
/// Explicit, because the default differs: none before RabbitMQ 4, 20 since.
const DELIVERY_LIMIT: i32 = 500;

/// The dead-letter queue of a queue.
pub fn dead_letter_queue(queue: &str) -> String {
    format!("{queue}.dead")
}

/// The queues that this process has declared. Later it only checks that they exist: one that is made again is empty, as
/// after a policy of an operator has deleted it.
pub(crate) type KnownQueues = Arc<Mutex<HashSet<String>>>;

/// Declares the exchanges, the services' queues and the client's own queue, if it has one.
pub(crate) async fn declare(
    channel: &Channel,
    own_queue: Option<Queue>,
    known: &KnownQueues,
) -> Result<(), Error> {
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    for (exchange, kind) in [(EVENTS, ExchangeKind::Topic), (DEAD, ExchangeKind::Direct)] {
        let declared = channel.exchange_declare(exchange.into(), kind, durable, FieldTable::default());
        request("exchange.declare", declared).await?;
    }
    let queues: Vec<_> = SHOP_QUEUES.into_iter().chain(own_queue).collect();
    for Queue { name, .. } in &queues {
        let dead = dead_letter_queue(name);
        declare_queue(channel, &dead, dead_letter_arguments(), known).await?;
        bind(channel, &dead, DEAD, name).await?;
        declare_queue(channel, name, arguments(name), known).await?;
    }
    // Key by key and not queue by queue. If all bindings were lost, an event that is published while they are restored
    // reaches only the queues that are bound already: the shorter that moment, the better.
    let keys: BTreeSet<_> = queues.iter().flat_map(|queue| queue.keys).collect();
    for key in keys {
        for queue in queues.iter().filter(|queue| queue.keys.contains(key)) {
            bind(channel, queue.name, EVENTS, key).await?;
        }
    }
    Ok(())
}

/// Binds an external consumer's queue again. Every relay restores the bindings of the services' queues every few seconds,
/// but only the external consumer knows these.
pub(crate) async fn bind_queue(channel: &Channel, own: Queue) -> Result<(), Error> {
    for key in own.keys {
        bind(channel, own.name, EVENTS, key).await?;
    }
    Ok(())
}

/// A dead letter is never dropped, however often its collector crashes. RabbitMQ 4 would drop it after 20 deliveries,
/// because this queue has no dead-letter queue itself. The largest number rather than -1, which RabbitMQ 3 refuses.
fn dead_letter_arguments() -> FieldTable {
    BTreeMap::from([("x-delivery-limit".into(), AMQPValue::LongInt(i32::MAX))]).into()
}

fn arguments(queue: &str) -> FieldTable {
    let mut arguments = FieldTable::default();
    let mut set = |key: &str, value: AMQPValue| _ = arguments.insert(ShortString::from(key), value);
    set("x-delivery-limit", AMQPValue::LongInt(DELIVERY_LIMIT));
    set("x-dead-letter-exchange", AMQPValue::LongString(DEAD.into()));
    set("x-dead-letter-routing-key", AMQPValue::LongString(queue.into()));
    // The default is at-most-once: a message could be lost by a crash while it is dead-lettered. This strategy requires
    // that a full queue refuses messages instead of dropping them.
    set("x-dead-letter-strategy", AMQPValue::LongString("at-least-once".into()));
    set("x-overflow", AMQPValue::LongString("reject-publish".into()));
    // One instance consumes, the others wait: competing consumers would apply an order's events out of order.
    set("x-single-active-consumer", AMQPValue::Boolean(true));
    arguments
}

async fn declare_queue(
    channel: &Channel,
    queue: &str,
    mut arguments: FieldTable,
    known: &KnownQueues,
) -> Result<(), Error> {
    // Quorum queues write to disk before they confirm; classic queues do not, whatever their messages' delivery mode. A cluster
    // gives each three members without `x-quorum-initial-group-size`, which a queue that was declared without it refuses.
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let passive = known.lock().unwrap_or_else(PoisonError::into_inner).contains(queue);
    let options = QueueDeclareOptions { durable: true, passive, ..Default::default() };
    let declared = channel.queue_declare(queue.into(), options, arguments);
    let declared = request("queue.declare", declared).await.map(drop);
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    match &declared {
        Ok(()) => _ = known.insert(queue.to_owned()),
        // The error has closed the channel. The next attempt makes all queues that are missing.
        Err(Error::Refused(_, text)) if passive && text.starts_with("NOT_FOUND") => {
            known.clear();
            tracing::error!(queue, "a queue is missing and is made again; what it held is lost");
            metrics::counter!("broker_queues_recreated_total", "queue" => queue.to_owned()).increment(1);
        }
        Err(_) => {}
    }
    declared
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> Result<(), Error> {
    let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
    let bound = channel.queue_bind(queue.into(), exchange.into(), key.into(), options, arguments);
    request("queue.bind", bound).await
}
