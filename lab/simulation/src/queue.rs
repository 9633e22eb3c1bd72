//! The broker's state: durable queues, one for each partition of a service, and the channels that consume them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::sync::Notify;
use uuid::Uuid;

#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) id: Uuid,
    /// The id as the AMQP property has it.
    pub(crate) message_id: String,
    pub(crate) body: Arc<[u8]>,
    pub(crate) traceparent: Option<String>,
    pub(crate) lane: i16,
    /// The number of partitions of the publisher: with another one its second routing key is not bound.
    pub(crate) partitions: u8,
    pub(crate) earlier_deliveries: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) tag: u64,
    pub(crate) message: Message,
}

/// A consumer's channel. It exists until the consumer releases it: the consumer can still read deliveries that arrived
/// before the channel closed, and may not know yet that it is closed.
pub(crate) struct Channel {
    pub(crate) instance: usize,
    pub(crate) is_open: bool,
    /// Set when the consumer is gone: the broker notices it only at this time.
    pub(crate) lingers_until: Option<Duration>,
    pub(crate) prefetch: usize,
    pub(crate) next_tag: u64,
    /// Delivered and not acknowledged, as the broker sees it.
    pub(crate) unacknowledged: VecDeque<Delivery>,
    /// Delivered and not read by the consumer yet.
    pub(crate) unread: VecDeque<Delivery>,
    pub(crate) arrived: Arc<Notify>,
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) service: usize,
    pub(crate) partition: u8,
    /// How many partitions the service has with this one.
    pub(crate) partitions: u8,
    pub(crate) ready: VecDeque<Message>,
    /// Unacknowledged by consumers that are lost. They are delivered before the others, the first returned first. That
    /// is RabbitMQ's order, and not always the order in which they were enqueued: see `rabbitmq::Consumer`.
    pub(crate) returned: VecDeque<Message>,
    pub(crate) channels: BTreeMap<u64, Channel>,
    /// The instance that received the last message.
    pub(crate) last_receiver: Option<usize>,
}

#[derive(Default)]
pub(crate) struct BrokerState {
    /// Those of an old number of partitions stay, without bindings.
    pub(crate) queues: Vec<Queue>,
    /// The number of partitions that the exchange `shop.partitions` records.
    pub(crate) partitions: u8,
    /// It is being changed: no client publishes or consumes.
    pub(crate) is_changing: bool,
    /// A process is changing it.
    pub(crate) change_is_locked: bool,
    /// The number of partitions whose queues are bound. `None`: no service's queue is.
    pub(crate) bound: Option<u8>,
    /// The number of partitions with which processes start.
    pub(crate) wanted_partitions: u8,
    pub(crate) unavailable_until: Duration,
    /// Until then, bindings that a client declares are deleted again at once.
    pub(crate) unbound_until: Duration,
    /// The bindings are missing; each client that connects declares them again.
    pub(crate) unbound: bool,
    /// Only one of two event types has lost its binding, so the other half of a batch is routed.
    pub(crate) unbound_half: bool,
    /// Each connection belongs to an epoch and ends with it.
    pub(crate) epoch: u64,
    pub(crate) slow: bool,
    /// Messages that were sent over broken connections, and when they arrive.
    pub(crate) late: Vec<(Duration, Message)>,
    /// Events that are refused at every attempt.
    pub(crate) always_refused: Vec<Uuid>,
    /// Events that are larger than the publisher sends.
    pub(crate) too_large: Vec<Uuid>,
    /// All open channels of a queue get messages: only with `competing-consumers`.
    pub(crate) competing_consumers: bool,
    pub(crate) next_channel: u64,
}

impl BrokerState {
    /// Whether no queue is bound for this message. Here the id stands for the event type.
    pub(crate) fn is_unbound(&self, message: &Message) -> bool {
        let is_of_unbound_half = message.id.as_u128() & 1 == 0;
        (self.unbound && (!self.unbound_half || is_of_unbound_half)) || self.partition_of(message).is_none()
    }

    /// Whether clients with this number of partitions may publish and consume.
    pub(crate) fn accepts(&self, partitions: u8) -> bool {
        self.partitions == partitions && !self.is_changing
    }

    /// The partition whose queues a message reaches: the routing keys of `rabbitmq::queues`. `None`: no service's queue.
    pub(crate) fn partition_of(&self, message: &Message) -> Option<u8> {
        let bound = self.bound.filter(|bound| *bound == 1 || *bound == message.partitions)?;
        u8::try_from(message.lane.unsigned_abs() % u16::from(bound)).ok()
    }

    /// The place of a queue, which is declared if it does not exist.
    pub(crate) fn queue(&mut self, service: usize, partition: u8, partitions: u8) -> usize {
        let is_meant = |queue: &Queue| {
            (queue.service, queue.partition, queue.partitions) == (service, partition, partitions)
        };
        self.queues.iter().position(is_meant).unwrap_or_else(|| {
            self.queues.push(Queue { service, partition, partitions, ..Queue::default() });
            self.queues.len() - 1
        })
    }
}
