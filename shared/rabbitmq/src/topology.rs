//! The exchanges and queues of the system.
//!
//! Every service declares all of them. Declaring is idempotent, and it solves the problem of the first start: an exchange
//! drops messages that no queue is bound for, so an event published before its consumer's first start would be lost.
//!
//! An external consumer, for example the mailer in `examples`, brings its own queue (`Endpoint::with_queue`), and declares
//! only that one. No other client declares it: a queue that all clients declare and none reads would grow forever. The price:
//! events that were published before an external consumer's first start are not in its queue.
//!
//! With *partitions*, instances of a service share its work: it has several queues instead of one, each with a single active
//! consumer, and an aggregate's events always go to the same one, by its lane. Such an event has a second routing key for that
//! (`order.created.1of4`, in the header `CC`). The first one stays `order.created`, so external consumers notice nothing.
//! All services must have the same number of partitions: the exchange `shop.partitions` records it.
//!
//! There is deliberately no alternate exchange. It would turn "no queue is bound for this" into an ordinary confirm,
//! and the relay would mark an event as published that no service received. Without it a `mandatory` message is returned,
//! stays in the outbox, and is delivered as soon as the binding exists again.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use lapin::{
    Channel, Connection, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};

use crate::{
    error::{Error, Fault, request},
    queues::{DEAD, EVENTS, Queue, SHOP_QUEUES, dead_letter_queue, of_partition, partitions},
};

/// Records the number of partitions. It carries nothing: the broker refuses to declare it with another argument, so a service
/// with another number can neither publish nor consume.
pub(crate) const PARTITIONS: &str = "shop.partitions";

/// How often a message may be redelivered before the broker dead-letters it. The broker counts a delivery for every message
/// that a lost consumer held, and for each of its standbys after its own crash: the number says little about the
/// message. So this is far away, some eight minutes of connections that all break, and the consumer counts its own
/// attempts. Without any limit, a message that crashes its consumer before it can count would stop the queue for good.
/// Explicit, because the default differs: none before RabbitMQ 4, 20 since.
const DELIVERY_LIMIT: i32 = 500;

/// The queues that this process has declared. Later it only checks that they exist: one that is made again is empty, as
/// after a policy of an operator has deleted it.
pub(crate) type KnownQueues = Arc<Mutex<HashSet<String>>>;

/// Declares the exchanges, and the services' queues or an external consumer's own one.
pub(crate) async fn declare(
    connection: &Connection,
    channel: &Channel,
    own_queue: Option<Queue>,
    number: u8,
    known: &KnownQueues,
) -> Result<(), Error> {
    for (exchange, kind) in [(EVENTS, ExchangeKind::Topic), (DEAD, ExchangeKind::Direct)] {
        declare_exchange(channel, exchange, kind, FieldTable::default()).await?;
    }
    let Some(own) = own_queue else {
        declare_number(channel, number).await?;
        declare_queues(connection, channel, &SHOP_QUEUES, number, known).await?;
        // Another process may have changed it in between. These bindings would then fill queues that nothing reads.
        let declared = declare_number(channel, number).await;
        if matches!(declared, Err(Error::OtherPartitions { .. })) {
            // The refusal has closed the channel.
            let channel = request("channel.open", connection.create_channel()).await?;
            unbind_queues(&channel, number).await?;
        }
        return declared;
    };
    declare_queues(connection, channel, &[own], 1, known).await
}

/// With the name of an external consumer's queue, or a number of partitions: an exchange that is declared after the queues. It
/// carries nothing. While it exists, a queue that is missing was lost.
const DECLARED: &str = "shop.declared";

pub(crate) async fn declare_queues(
    connection: &Connection,
    channel: &Channel,
    queues: &[Queue],
    number: u8,
    known: &KnownQueues,
) -> Result<(), Error> {
    let declared = match queues {
        [own] => format!("{DECLARED}.{}", own.name),
        _ => format!("{DECLARED}.{number}"),
    };
    let is_first = known.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
    if is_first {
        count_lost(connection, queues, number, &declared).await?;
    }
    for queue in queues {
        let dead = dead_letter_queue(queue.name);
        declare_queue(channel, &dead, dead_letter_arguments(), known).await?;
        bind(channel, &dead, DEAD, queue.name).await?;
        for partition in partitions(queue.name, number) {
            declare_queue(channel, &partition, arguments(queue.name), known).await?;
        }
    }
    // Key by key and not queue by queue. If all bindings were lost, an event that is published while they are restored
    // reaches only the queues that are bound already: the shorter that moment, the better.
    let keys: BTreeSet<_> = queues.iter().flat_map(|queue| queue.keys).collect();
    for (key, partition) in keys.into_iter().flat_map(|key| (0..number).map(move |one| (key, one))) {
        for queue in queues.iter().filter(|queue| queue.keys.contains(key)) {
            let name = of_partition(queue.name, partition, number);
            bind(channel, &name, EVENTS, &of_partition(key, partition, number)).await?;
        }
    }
    if is_first {
        declare_exchange(channel, &declared, ExchangeKind::Fanout, FieldTable::default()).await?;
    }
    Ok(())
}

/// Counts the queues that are missing although they were declared once: another process may have declared them.
async fn count_lost(
    connection: &Connection,
    queues: &[Queue],
    number: u8,
    declared: &str,
) -> Result<(), Error> {
    let open = async || request("channel.open", connection.create_channel()).await;
    let mut channel = open().await?;
    let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
    let asked =
        channel.exchange_declare(declared.into(), ExchangeKind::Fanout, passive, FieldTable::default());
    let asked = request("exchange.declare", asked).await;
    let is_new = is_missing(&asked);
    if !is_new {
        asked?;
    }
    let dead = queues.iter().map(|queue| dead_letter_queue(queue.name));
    for queue in dead.chain(queues.iter().flat_map(|queue| partitions(queue.name, number))) {
        let recreated = metrics::counter!("broker_queues_recreated_total", "queue" => queue.clone());
        // From the start: an alert that compares two values would not see the first.
        recreated.absolute(0);
        if is_new {
            continue;
        }
        let passive = QueueDeclareOptions { durable: true, passive: true, ..Default::default() };
        let asked = channel.queue_declare(queue.as_str().into(), passive, FieldTable::default());
        let asked = request("queue.declare", asked).await.map(drop);
        if is_missing(&asked) {
            tracing::error!(queue, "a queue is missing and is made again; what it held is lost");
            recreated.increment(1);
            // The error has closed the channel.
            channel = open().await?;
        } else {
            asked?;
        }
    }
    let _ = request("channel.close", channel.close(200, "looked".into())).await;
    Ok(())
}

/// Whether the broker has closed the channel because what was asked for does not exist.
fn is_missing(answer: &Result<(), Error>) -> bool {
    matches!(answer, Err(Error::Refused(_, text)) if text.starts_with("NOT_FOUND"))
}

/// Removes the bindings of the services' queues with this number of partitions.
pub(crate) async fn unbind_queues(channel: &Channel, number: u8) -> Result<(), Error> {
    for Queue { name, keys } in SHOP_QUEUES {
        for (queue, key) in keys.iter().flat_map(|key| partitions(name, number).zip(partitions(key, number)))
        {
            let arguments = FieldTable::default();
            let unbound = channel.queue_unbind(queue.into(), EVENTS.into(), key.into(), arguments);
            request("queue.unbind", unbound).await?;
        }
    }
    Ok(())
}

/// Records the number of partitions, unless another one is recorded. The argument has no effect: this exchange carries nothing.
/// It is the only one that the broker compares.
pub(crate) async fn declare_number(channel: &Channel, number: u8) -> Result<(), Error> {
    let declared = record_number(channel, &number.to_string()).await;
    match &declared {
        Err(Error::Refused(Fault::Deployment, text)) => {
            // "… received 'shop.partitions.4' but current is 'shop.partitions.1'"
            let current = text.rsplit_once("current").map_or("", |(_, current)| current);
            let is_recorded = |number: &str| current.contains(&format!("'{}'", recorded(number)));
            let is_current = |other: &u8| is_recorded(&other.to_string()) || is_recorded(&changing(*other));
            match (1..=MAX_PARTITIONS).find(is_current) {
                Some(current) => Err(Error::OtherPartitions { current, wanted: number }),
                None => declared,
            }
        }
        _ => declared,
    }
}

/// Declares the exchange that records the number.
pub(crate) async fn record_number(channel: &Channel, number: &str) -> Result<(), Error> {
    let argument = AMQPValue::LongString(recorded(number).into());
    let arguments = BTreeMap::from([("alternate-exchange".into(), argument)]).into();
    declare_exchange(channel, PARTITIONS, ExchangeKind::Fanout, arguments).await
}

/// What is recorded while this number is being changed.
pub(crate) fn changing(number: u8) -> String {
    format!("{number}.changing")
}

/// The most partitions: each has at least one lane.
const MAX_PARTITIONS: u8 = 16;

fn recorded(number: &str) -> String {
    format!("{PARTITIONS}.{number}")
}

/// Binds an external consumer's queue again. Every relay restores the bindings of the services' queues every few seconds,
/// but only the external consumer knows these.
pub(crate) async fn bind_queue(channel: &Channel, own: Queue) -> Result<(), Error> {
    for key in own.keys {
        bind(channel, own.name, EVENTS, key).await?;
    }
    Ok(())
}

async fn declare_exchange(
    channel: &Channel,
    exchange: &str,
    kind: ExchangeKind,
    arguments: FieldTable,
) -> Result<(), Error> {
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let declared = channel.exchange_declare(exchange.into(), kind, durable, arguments);
    request("exchange.declare", declared).await
}

/// A dead letter is never dropped, however often its collector crashes. RabbitMQ 4 would drop it after 20 deliveries,
/// because this queue has no dead-letter queue itself. The largest number rather than -1, which RabbitMQ 3 refuses.
fn dead_letter_arguments() -> FieldTable {
    BTreeMap::from([("x-delivery-limit".into(), AMQPValue::LongInt(i32::MAX))]).into()
}

pub(crate) fn arguments(queue: &str) -> FieldTable {
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

pub(crate) async fn declare_queue(
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
    if declared.is_ok() {
        known.insert(queue.to_owned());
    } else if passive && is_missing(&declared) {
        // The next attempt counts the queues that are missing, and makes them.
        known.clear();
    }
    declared
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> Result<(), Error> {
    let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
    let bound = channel.queue_bind(queue.into(), exchange.into(), key.into(), options, arguments);
    request("queue.bind", bound).await
}
