//! What the broker does: it routes messages into queues, delivers them to channels, and closes channels.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::sync::Notify;

use crate::{
    fault::Fault,
    history::Actor,
    queue::{Channel, Delivery, Message},
    sometimes::Sometimes,
    state::State,
};

/// After so many deliveries without an acknowledgement the broker sets a message aside: sooner than in
/// the product's `topology.rs`.
const DELIVERY_LIMIT: u32 = 20;

/// Declares the bindings of the recorded number of partitions, as each client does when it connects. It has no effect while the
/// fault `Unroutable` keeps deleting them.
pub(crate) fn declare_bindings(state: &mut State) {
    if state.now >= state.broker.unbound_until {
        state.broker.unbound = false;
    }
    state.broker.bound = Some(state.broker.partitions);
}

/// Puts a message into the queues of these services.
pub(crate) fn enqueue(state: &mut State, message: &Message, services: &[usize]) {
    let (Some(partition), Some(bound)) = (state.broker.partition_of(message), state.broker.bound) else {
        return;
    };
    if services.is_empty() {
        return;
    }
    let id = message.id;
    state.note(Actor::Environment, "enqueued", || format!("{id} for services {services:?}"));
    state.judge.enqueued(id, &message.body, services);
    for service in services {
        let queue = state.broker.queue(*service, partition, bound);
        state.broker.queues[queue].ready.push_back(message.clone());
        deliver(state, queue);
    }
}

/// Delivers as many messages as the prefetch allows. Single active consumer: only the oldest open channel gets any.
pub(crate) fn deliver(state: &mut State, queue: usize) {
    let competing_consumers = state.broker.competing_consumers;
    let queue = &mut state.broker.queues[queue];
    let mut open: Vec<_> = queue.channels.values_mut().filter(|channel| channel.is_open).collect();
    if !competing_consumers {
        open.truncate(1);
    }
    // Competing consumers get one message each in turn.
    let mut progress = true;
    while progress {
        progress = false;
        for channel in &mut open {
            if channel.unacknowledged.len() < channel.prefetch
                && let Some(message) = queue.returned.pop_front().or_else(|| queue.ready.pop_front())
            {
                let delivery = Delivery { tag: channel.next_tag, message };
                channel.next_tag += 1;
                channel.unacknowledged.push_back(delivery.clone());
                channel.unread.push_back(delivery);
                channel.arrived.notify_one();
                let before = queue.last_receiver.replace(channel.instance);
                if before.is_some_and(|before| before != channel.instance) {
                    *state.reached.entry(Sometimes::StandbyTookOver).or_default() += 1;
                }
                progress = true;
            }
        }
    }
}

/// Opens a consuming channel. Returns its id, and the signal for new deliveries.
pub(crate) fn open_channel(
    state: &mut State,
    queue: usize,
    instance: usize,
    prefetch: usize,
) -> (u64, Arc<Notify>) {
    let id = state.broker.next_channel;
    state.broker.next_channel += 1;
    let arrived = Arc::new(Notify::new());
    let channel = Channel {
        instance,
        is_open: true,
        lingers_until: None,
        prefetch,
        next_tag: 1,
        unacknowledged: VecDeque::new(),
        unread: VecDeque::new(),
        arrived: Arc::clone(&arrived),
    };
    state.broker.queues[queue].channels.insert(id, channel);
    declare_bindings(state);
    deliver(state, queue);
    (id, arrived)
}

/// Closes a channel. Its unacknowledged messages are returned, in their order.
pub(crate) fn close_channel(state: &mut State, place: usize, id: u64) {
    let queue = &mut state.broker.queues[place];
    let service = queue.service;
    let Some(channel) = queue.channels.get_mut(&id).filter(|channel| channel.is_open) else {
        return;
    };
    channel.is_open = false;
    channel.arrived.notify_one();
    let mut exhausted = vec![];
    for delivery in std::mem::take(&mut channel.unacknowledged) {
        let mut message = delivery.message;
        message.earlier_deliveries += 1;
        if message.earlier_deliveries > DELIVERY_LIMIT {
            exhausted.push(message.id);
        } else {
            queue.returned.push_back(message);
        }
    }
    for id in exhausted {
        state.judge.dead_lettered_by_broker(service, id);
    }
    state.note(Actor::Environment, "channel closed", || format!("{id} of service {service}"));
    deliver(state, place);
}

/// The channels of a queue for which a condition is true.
fn channels(state: &State, queue: usize, is_meant: impl Fn(&Channel) -> bool) -> Vec<u64> {
    let channels = state.broker.queues[queue].channels.iter();
    channels.filter(|(_, channel)| is_meant(channel)).map(|(id, _)| *id).collect()
}

/// Closes the channels of one instance of a service.
pub(crate) fn close_channels_of_instance(state: &mut State, service: usize, instance: usize) {
    for queue in 0..state.broker.queues.len() {
        if state.broker.queues[queue].service == service {
            for id in channels(state, queue, |channel| channel.instance == instance) {
                close_channel(state, queue, id);
            }
        }
    }
}

/// Closes all connections.
pub(crate) fn close_all_connections(state: &mut State) {
    state.broker.epoch += 1;
    for queue in 0..state.broker.queues.len() {
        for id in channels(state, queue, |_| true) {
            close_channel(state, queue, id);
        }
    }
}

/// Ends the consumer's use of a channel. The broker may notice it only later.
pub(crate) fn release_channel(state: &mut State, queue: usize, id: u64) {
    if state.injects(Fault::SessionLingers) {
        let until = state.now + state.random.millis(100, 10_000);
        if let Some(channel) = state.broker.queues[queue].channels.get_mut(&id) {
            channel.lingers_until = Some(until);
            return;
        }
    }
    close_channel(state, queue, id);
    state.broker.queues[queue].channels.remove(&id);
}

/// Performs what the broker has to do by now: it closes abandoned channels and routes late messages.
pub(crate) fn run_due_work(state: &mut State) {
    state.make_visible();
    for queue in 0..state.broker.queues.len() {
        let now = state.now;
        let is_abandoned = |channel: &Channel| channel.lingers_until.is_some_and(|until| until <= now);
        for id in channels(state, queue, is_abandoned) {
            close_channel(state, queue, id);
            state.broker.queues[queue].channels.remove(&id);
        }
    }
    if state.broker_is_unavailable() {
        return;
    }
    let late = std::mem::take(&mut state.broker.late);
    let (due, later): (Vec<(Duration, Message)>, _) = late.into_iter().partition(|(at, _)| *at <= state.now);
    state.broker.late = later;
    for (_, message) in due {
        if !state.broker.is_unbound(&message) {
            enqueue(state, &message, &[0, 1]);
        }
    }
}
