//! The broker's state: one durable queue for each service, and the channels that consume it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::history::SERVICES;

#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) id: Uuid,
    /// The id as the AMQP property has it.
    pub(crate) message_id: String,
    pub(crate) body: Arc<[u8]>,
    pub(crate) traceparent: Option<String>,
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
    pub(crate) queues: [Queue; SERVICES],
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
    /// Whether no queue is bound for this event. Here the id stands for the event type.
    pub(crate) fn is_unbound(&self, id: Uuid) -> bool {
        self.unbound && (!self.unbound_half || id.as_u128() & 1 == 0)
    }
}
