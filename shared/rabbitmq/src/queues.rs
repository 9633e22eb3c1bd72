//! The names of the exchanges and queues, and what is bound to each.

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

/// The queues among which the events of a service's queue are divided: `inventory.events.0of4` and so on, or `inventory.events`
/// alone. The number is in the names: while an aggregate's earlier events wait in a queue, no later one may go to a queue of the
/// same name.
pub fn partitions(queue: &str, number: u8) -> impl Iterator<Item = String> {
    (0..number).map(move |partition| of_partition(queue, partition, number))
}

/// The second routing key of an event with this key whose aggregate has this lane. `None`: without partitions there is none.
pub(crate) fn partition_key(key: &str, lane: i16, partitions: u8) -> Option<String> {
    let partition = lane.unsigned_abs() % u16::from(partitions.max(1));
    (partitions > 1).then(|| of_partition(key, partition.try_into().unwrap_or(0), partitions))
}

pub(crate) fn of_partition(name: &str, partition: u8, number: u8) -> String {
    if number == 1 { name.to_owned() } else { format!("{name}.{partition}of{number}") }
}

/// The queues of the three services, which each of them declares.
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

/// The dead-letter queue of a queue.
pub fn dead_letter_queue(queue: &str) -> String {
    format!("{queue}.dead")
}
