//! The broker: one durable queue for each service, and the sessions that consume them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::{
    fault::Fault,
    history::Who,
    world::{SERVICES, State},
};

/// After so many deliveries without an answer the broker sets a message aside: what `broker::topology` declares.
const DELIVERY_LIMIT: u32 = 20;

#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) id: Uuid,
    pub(crate) body: Arc<[u8]>,
    pub(crate) traceparent: Option<String>,
    pub(crate) earlier_deliveries: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) tag: u64,
    pub(crate) message: Message,
}

/// A consumer's channel. It stays here until the consumer lets go of it: what was handed over before the channel broke
/// is still in the consumer's hands, and the consumer need not know yet.
pub(crate) struct Channel {
    pub(crate) instance: usize,
    pub(crate) open: bool,
    /// Its owner is gone, and the broker will notice then.
    pub(crate) orphan_until: Option<Duration>,
    prefetch: usize,
    next_tag: u64,
    pub(crate) unanswered: VecDeque<Delivery>,
    pub(crate) handed_over: VecDeque<Delivery>,
    pub(crate) arrived: Arc<Notify>,
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) ready: VecDeque<Message>,
    pub(crate) channels: BTreeMap<u64, Channel>,
}

#[derive(Default)]
pub(crate) struct Broker {
    pub(crate) queues: [Queue; SERVICES],
    pub(crate) away_until: Duration,
    pub(crate) unbound_until: Duration,
    /// The bindings are gone; whoever connects declares them again.
    pub(crate) unbound: bool,
    /// Only one of two kinds of events lost its binding: the other half of a batch goes through.
    pub(crate) unbound_half: bool,
    /// Every connection belongs to an epoch, and ends with it.
    pub(crate) epoch: u64,
    pub(crate) slow: bool,
    /// Sent over connections that are broken by now.
    pub(crate) late: Vec<(Duration, Message)>,
    /// Refused, or too large, whenever they are tried.
    pub(crate) always_refused: Vec<Uuid>,
    pub(crate) too_large: Vec<Uuid>,
    pub(crate) competing: bool,
    next_channel: u64,
}

impl Broker {
    /// Whether no queue is bound for this event. Its id stands for its type here.
    pub(crate) fn is_unbound(&self, id: Uuid) -> bool {
        self.unbound && (!self.unbound_half || id.as_u128() & 1 == 0)
    }
}

impl State {
    pub(crate) fn broker_is_away(&self) -> bool {
        self.now < self.broker.away_until
    }

    /// Declares the bindings, as everybody does who connects. While somebody keeps deleting them it does not help.
    pub(crate) fn declare(&mut self) {
        if self.now >= self.broker.unbound_until {
            self.broker.unbound = false;
        }
    }

    /// Puts a message into these queues.
    pub(crate) fn enqueue(&mut self, message: &Message, into: &[usize]) {
        if into.is_empty() {
            return;
        }
        self.note(Who::World, "enqueued", message.id.as_u128(), || self_describe(message.id, into));
        self.judge.enqueued(message.id, &message.body, into);
        for service in into {
            self.broker.queues[*service].ready.push_back(message.clone());
            self.dispatch(*service);
        }
    }

    /// Hands over what may be handed over. Single active consumer: only the oldest open channel gets anything.
    pub(crate) fn dispatch(&mut self, service: usize) {
        let competing = self.broker.competing;
        let queue = &mut self.broker.queues[service];
        let mut open: Vec<_> = queue.channels.values_mut().filter(|channel| channel.open).collect();
        if !competing {
            open.truncate(1);
        }
        // In turns, when they compete.
        let mut progress = true;
        while progress {
            progress = false;
            for channel in &mut open {
                if channel.unanswered.len() < channel.prefetch
                    && let Some(message) = queue.ready.pop_front()
                {
                    let delivery = Delivery { tag: channel.next_tag, message };
                    channel.next_tag += 1;
                    channel.unanswered.push_back(delivery.clone());
                    channel.handed_over.push_back(delivery);
                    channel.arrived.notify_one();
                    progress = true;
                }
            }
        }
    }

    pub(crate) fn open_channel(
        &mut self,
        service: usize,
        instance: usize,
        prefetch: usize,
    ) -> (u64, Arc<Notify>) {
        let id = self.broker.next_channel;
        self.broker.next_channel += 1;
        let arrived = Arc::new(Notify::new());
        let channel = Channel {
            instance,
            open: true,
            orphan_until: None,
            prefetch,
            next_tag: 1,
            unanswered: VecDeque::new(),
            handed_over: VecDeque::new(),
            arrived: Arc::clone(&arrived),
        };
        self.broker.queues[service].channels.insert(id, channel);
        self.declare();
        self.dispatch(service);
        (id, arrived)
    }

    /// Ends a channel. What it has not answered goes back to the head of its queue, in its order.
    pub(crate) fn cut(&mut self, service: usize, id: u64) {
        let queue = &mut self.broker.queues[service];
        let Some(channel) = queue.channels.get_mut(&id).filter(|channel| channel.open) else {
            return;
        };
        channel.open = false;
        channel.arrived.notify_one();
        let mut exhausted = vec![];
        for delivery in std::mem::take(&mut channel.unanswered).into_iter().rev() {
            let mut message = delivery.message;
            message.earlier_deliveries += 1;
            if message.earlier_deliveries > DELIVERY_LIMIT {
                exhausted.push(message.id);
            } else {
                queue.ready.push_front(message);
            }
        }
        for id in exhausted {
            self.judge.set_aside(service, id);
        }
        self.note(Who::World, "channel cut", id.into(), || format!("of service {service}"));
        self.dispatch(service);
    }

    /// Ends the channels of one instance.
    pub(crate) fn cut_instance(&mut self, service: usize, instance: usize) {
        let channels = &self.broker.queues[service].channels;
        let ids: Vec<_> =
            channels.iter().filter(|(_, channel)| channel.instance == instance).map(|(id, _)| *id).collect();
        for id in ids {
            self.cut(service, id);
        }
    }

    /// Ends every connection.
    pub(crate) fn cut_all(&mut self) {
        self.broker.epoch += 1;
        for service in 0..SERVICES {
            let ids: Vec<_> = self.broker.queues[service].channels.keys().copied().collect();
            for id in ids {
                self.cut(service, id);
            }
        }
    }

    /// The consumer lets go of a channel. If it died, the broker may be slow to notice.
    pub(crate) fn let_go(&mut self, service: usize, id: u64) {
        let linger = self.strikes(Fault::SessionLingers).then(|| self.now + self.dice.millis(100, 10_000));
        if let Some(until) = linger
            && let Some(channel) = self.broker.queues[service].channels.get_mut(&id)
        {
            channel.orphan_until = Some(until);
            return;
        }
        self.cut(service, id);
        self.broker.queues[service].channels.remove(&id);
    }

    /// What the broker does by itself as time goes by.
    pub(crate) fn broker_housekeeping(&mut self) {
        for service in 0..SERVICES {
            let now = self.now;
            let channels = &self.broker.queues[service].channels;
            let gone: Vec<_> = channels
                .iter()
                .filter(|(_, channel)| channel.orphan_until.is_some_and(|until| until <= now))
                .map(|(id, _)| *id)
                .collect();
            for id in gone {
                self.cut(service, id);
                self.broker.queues[service].channels.remove(&id);
            }
        }
        if self.broker_is_away() {
            return;
        }
        let (due, later) =
            std::mem::take(&mut self.broker.late).into_iter().partition(|(at, _)| *at <= self.now);
        self.broker.late = later;
        let due: Vec<(Duration, Message)> = due;
        for (_, message) in due {
            if !self.broker.is_unbound(message.id) {
                self.enqueue(&message, &[0, 1]);
            }
        }
    }
}

fn self_describe(id: Uuid, into: &[usize]) -> String {
    format!("{id} into {into:?}")
}
