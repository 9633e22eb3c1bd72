//! The exchanges and queues of the system.
//!
//! Everyone who connects declares all of it. Declaring is idempotent, and it removes the first-start trap: an exchange
//! drops what no queue is bound for, so an event published before its consumer's first start would be gone.
//!
//! A guest, that is, a consumer outside of the house, brings its queue along (`Endpoint::with_queue`). Nobody else declares
//! that one: a queue that everyone makes and no one reads would grow for ever. The price is the trap: what was published
//! before a guest's first start is not in its queue.
//!
//! There is deliberately no alternate exchange. It would turn "no queue is bound for this" into an ordinary confirm,
//! and the relay would mark an event as published that no service got. Without it a `mandatory` message comes back,
//! stays in the outbox, and is delivered as soon as the binding is there again.

use std::collections::BTreeSet;

use faults::Sabotage;
use lapin::{
    Channel, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};

use crate::connect::{Error, PATIENCE, within};

/// Where events are published: a topic exchange, with routing keys such as `order.created`.
pub const EVENTS: &str = "shop.events";

/// Where messages go that no consumer could apply; the routing key is the queue that they came from.
pub const DEAD: &str = "shop.dead";

/// The order service's queue: what the others answer.
pub const ORDERS: &str = "orders.events";

/// The inventory service's queue.
pub const INVENTORY: &str = "inventory.events";

/// The billing service's queue.
pub const BILLING: &str = "billing.events";

/// A queue, and what goes into it.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    /// Its name, such as `inventory.events`.
    pub name: &'static str,
    /// The routing keys that are bound to it, such as `order.created`.
    pub keys: &'static [&'static str],
}

/// The queues of the house: what everyone declares, the publishers first of all.
pub const HOUSE: [Queue; 3] = [
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
    // Confirmations are for guests, such as the mailer in `examples`. But guests come and go, and an event that no queue
    // wants comes back, and would be parked: billing takes them too, and lets them pass.
    Queue { name: BILLING, keys: &["order.created", "order.cancelled", "order.confirmed"] },
];

/// How often a message may come back undelivered before the broker sets it aside. Only a message that kills its
/// consumer gets that far, since handlers that fail do not give messages back. The number is explicit because the
/// default differs: none before RabbitMQ 4, 20 since.
const DELIVERY_LIMIT: i32 = 20;

/// The dead-letter queue of a queue.
pub fn dead_letter_queue(queue: &str) -> String {
    format!("{queue}.dead")
}

/// Declares everything: what the house has, and a guest's own queue. Does nothing where it exists already.
pub(crate) async fn declare(channel: &Channel, own: Option<Queue>) -> Result<(), Error> {
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    for (exchange, kind) in [(EVENTS, ExchangeKind::Topic), (DEAD, ExchangeKind::Direct)] {
        let declared = channel.exchange_declare(exchange.into(), kind, durable, FieldTable::default());
        within(PATIENCE, "exchange.declare", declared).await?;
    }
    let queues: Vec<_> = HOUSE.into_iter().chain(own).collect();
    for Queue { name, .. } in &queues {
        let dead = dead_letter_queue(name);
        declare_queue(channel, &dead, kept_for_good()).await?;
        bind(channel, &dead, DEAD, name).await?;
        declare_queue(channel, name, arguments(name)).await?;
    }
    // Key by key and not queue by queue. Where all bindings are lost and somebody publishes while they are made again, an
    // event reaches the queues that are bound already, and only those: the shorter that moment, the better.
    let keys: BTreeSet<_> = queues.iter().flat_map(|queue| queue.keys).collect();
    for key in keys {
        for queue in queues.iter().filter(|queue| queue.keys.contains(key)) {
            bind(channel, queue.name, EVENTS, key).await?;
        }
    }
    Ok(())
}

/// Binds a guest's queue again. The bindings of the house are declared again by every relay, every few seconds; these are
/// known to nobody but the guest.
pub(crate) async fn bind_again(channel: &Channel, own: Queue) -> Result<(), Error> {
    for key in own.keys {
        bind(channel, own.name, EVENTS, key).await?;
    }
    Ok(())
}

/// A dead letter is never given up, however often its collector dies. RabbitMQ 4 would do that after 20 deliveries, and
/// behind this queue there is no other to catch it. The largest number rather than -1, which RabbitMQ 3 refuses.
fn kept_for_good() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(i32::MAX));
    arguments
}

fn arguments(queue: &str) -> FieldTable {
    let mut arguments = FieldTable::default();
    let mut set = |key: &str, value: AMQPValue| _ = arguments.insert(ShortString::from(key), value);
    set("x-delivery-limit", AMQPValue::LongInt(DELIVERY_LIMIT));
    if faults::sabotaged(Sabotage::CrashLoopWithoutDeadLetters) {
        return arguments;
    }
    set("x-dead-letter-exchange", AMQPValue::LongString(DEAD.into()));
    set("x-dead-letter-routing-key", AMQPValue::LongString(queue.into()));
    // The default is at-most-once: a message on its way to the dead letters could be lost in a crash. This strategy
    // demands that the queue refuses, rather than drops, what does not fit.
    set("x-dead-letter-strategy", AMQPValue::LongString("at-least-once".into()));
    set("x-overflow", AMQPValue::LongString("reject-publish".into()));
    // One instance consumes, the others stand by: competing consumers would apply an order's events out of order.
    set("x-single-active-consumer", AMQPValue::Boolean(true));
    arguments
}

async fn declare_queue(channel: &Channel, queue: &str, mut arguments: FieldTable) -> Result<(), Error> {
    // Quorum queues write to disk before they confirm; classic queues do not, whatever their messages' delivery mode.
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    let declared = channel.queue_declare(queue.into(), durable, arguments);
    within(PATIENCE, "queue.declare", declared).await?;
    Ok(())
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> Result<(), Error> {
    let bound = channel.queue_bind(
        queue.into(),
        exchange.into(),
        key.into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    within(PATIENCE, "queue.bind", bound).await
}
