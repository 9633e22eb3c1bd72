//! A consuming instance: one session after the other, as in `rabbitmq::Consumer`. The real `messaging::settle::Settling`
//! decides what happens to the deliveries.

use std::{sync::Arc, time::Duration};

use flaws::Flaw;
use futures_util::future::join_all;
use messaging::{
    Backoff, BrokerUnavailable, DeadLetter, Incoming,
    settle::{Availability, DeliveryChannel, Interruption, Pace, Settling},
};
use serde_json::Value;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{
    broker_actions::{close_channel, deliver, open_channel, release_channel},
    fault::Fault,
    handler::MemoryHandler,
    history::QUEUES,
    partitions::{agree_on_partitions, restart_with_other_partitions},
    process::Process,
    queue::Delivery,
    sometimes::Sometimes,
    state::State,
};

/// After this much silence the consumer checks that its subscription still exists.
const MAX_SILENCE: Duration = Duration::from_secs(2);

/// How many messages a consumer holds at a time, and applies in one transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConsumerLimits {
    pub(crate) prefetch: usize,
    pub(crate) group: usize,
}

/// Consumes all partitions until the stop. A crash drops this future.
pub(crate) async fn consume(process: Process, service: usize, instance: usize, limits: ConsumerLimits) {
    let partitions = agree_on_partitions(&process).await;
    let process = &process;
    let all = (0..partitions).map(|partition| {
        let queue = process.world.lock().broker.queue(service, partition, partitions);
        consume_partition(process.clone(), service, queue, instance, limits)
    });
    join_all(all).await;
}

async fn consume_partition(
    process: Process,
    service: usize,
    queue: usize,
    instance: usize,
    limits: ConsumerLimits,
) {
    let stop = process.world.stop.clone();
    let handler = MemoryHandler { process: process.clone(), service };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    while !stop.is_cancelled() {
        let ended = match open(&process, service, queue, instance, limits).await {
            Ok(mut session) => {
                backoff.reset();
                session.consume(&handler, limits.group).await
            }
            Err(error) => Err(error.into()),
        };
        if ended.is_err() {
            stop.run_until_cancelled(sleep(backoff.next_wait())).await;
        }
    }
}

/// A consumer's end of a channel of the broker in memory.
struct Session {
    process: Process,
    service: usize,
    queue: usize,
    id: u64,
    arrived: Arc<Notify>,
}

async fn open(
    process: &Process,
    service: usize,
    queue: usize,
    instance: usize,
    limits: ConsumerLimits,
) -> Result<Session, BrokerUnavailable> {
    let possible = [Fault::ConsumerDisconnected];
    process.fault_point("subscribe", &possible).await.map_err(|_| no_answer("basic.consume"))?;
    let partitions = process.world.lock().broker.queues[queue].partitions;
    restart_with_other_partitions(process, partitions).await;
    let mut state = process.world.lock();
    if state.broker_is_unavailable() || !state.broker.accepts(partitions) {
        return Err(no_answer("connect"));
    }
    let is_unequal = process.world.has(Flaw::UnequalPrefetch);
    let prefetch = if is_unequal { state.random.between(1, limits.prefetch) } else { limits.prefetch };
    let (id, arrived) = open_channel(&mut state, queue, instance, prefetch);
    state.note(process.actor, "subscribed", || format!("channel {id}, {limits:?}"));
    Ok(Session { process: process.clone(), service, queue, id, arrived })
}

impl Session {
    /// Consumes until the stop, or until the channel fails.
    async fn consume(&mut self, handler: &MemoryHandler, largest_group: usize) -> Result<(), Interruption> {
        let stop = handler.process.world.stop.clone();
        let mut limit = largest_group;
        loop {
            let Some(first) = self.next() else {
                let arrived = timeout(MAX_SILENCE, self.arrived.notified());
                match stop.run_until_cancelled(arrived).await {
                    None => return Ok(()),
                    Some(_) if !self.is_open() && self.is_empty() => return Err(Interruption::ChannelClosed),
                    Some(_) => continue,
                }
            };
            let mut group = vec![first];
            while group.len() < limit
                && let Some(delivery) = self.next()
            {
                group.push(delivery);
            }
            let available: Availability = Arc::new(|| Ok(()));
            let queue = QUEUES[self.service];
            let mut settling = Settling {
                channel: &mut *self,
                handler,
                letters: handler,
                available: &available,
                queue,
                last_unexpected: &mut None,
                stop: &stop,
            };
            limit = match settling.settle(&group).await? {
                Pace::TooSlow => {
                    handler.process.world.lock().reach(Sometimes::GroupHalved);
                    (group.len() / 2).max(1)
                }
                Pace::Normal => (limit * 2).min(largest_group),
            };
            if stop.is_cancelled() {
                return Ok(());
            }
        }
    }

    fn next(&self) -> Option<Delivery> {
        let mut state = self.process.world.lock();
        state.broker.queues[self.queue].channels.get_mut(&self.id)?.unread.pop_front()
    }

    fn is_empty(&self) -> bool {
        let state = self.process.world.lock();
        let channel = state.broker.queues[self.queue].channels.get(&self.id);
        channel.is_none_or(|channel| channel.unread.is_empty())
    }

    /// The broker receives an acknowledgement.
    fn acknowledged(&self, state: &mut State, tag: u64, multiple: bool) {
        let queue = &mut state.broker.queues[self.queue];
        let Some(channel) = queue.channels.get_mut(&self.id) else {
            return;
        };
        let is_acknowledged = |delivery: &Delivery| delivery.tag == tag || (multiple && delivery.tag < tag);
        let ids: Vec<_> = channel
            .unacknowledged
            .iter()
            .filter(|delivery| is_acknowledged(delivery))
            .map(|delivery| delivery.message.id)
            .collect();
        channel.unacknowledged.retain(|delivery| !is_acknowledged(delivery));
        for id in &ids {
            state.judge.acknowledged(self.service, *id);
        }
        state.note(self.process.actor, "acknowledged", || format!("{ids:?}"));
        deliver(state, self.queue);
    }

    fn is_open_in(&self, state: &State) -> bool {
        let channel = state.broker.queues[self.queue].channels.get(&self.id);
        channel.is_some_and(|channel| channel.is_open)
    }
}

/// The error of a request that the broker did not answer.
fn no_answer(request: &'static str) -> BrokerUnavailable {
    BrokerUnavailable(format!("no answer to {request}"))
}

impl DeliveryChannel for Session {
    type Delivery = Delivery;

    fn incoming<'a>(&'a self, delivery: &'a Delivery) -> Incoming<'a> {
        if self.process.world.has(Flaw::AckBeforeCommit) {
            self.acknowledged(&mut self.process.world.lock(), delivery.tag, true);
        }
        Incoming {
            message_id: Some(&delivery.message.message_id),
            traceparent: delivery.message.traceparent.as_deref(),
            body: &delivery.message.body,
            earlier_deliveries: delivery.message.earlier_deliveries,
            origin: None,
        }
    }

    fn dead_letter(&self, delivery: &Delivery, reason: &str, detail: &str) -> DeadLetter {
        DeadLetter {
            queue: QUEUES[self.service],
            arrival: None,
            message_id: Some(delivery.message.id.to_string()),
            reason: reason.to_owned(),
            detail: detail.to_owned(),
            headers: Value::Null,
            routing_key: String::new(),
            body: delivery.message.body.to_vec(),
        }
    }

    async fn acknowledge(&mut self, delivery: &Delivery, multiple: bool) -> Result<(), BrokerUnavailable> {
        if self.process.fault_point("acknowledge", &[Fault::ConsumerDisconnected]).await.is_err() {
            close_channel(&mut self.process.world.lock(), self.queue, self.id);
        }
        {
            let mut state = self.process.world.lock();
            if !self.is_open_in(&state) {
                return Err(no_answer("basic.ack"));
            }
            // The client has written it to the socket and cannot know that it is lost.
            if state.injects(Fault::AckLost) {
                close_channel(&mut state, self.queue, self.id);
                return Ok(());
            }
            self.acknowledged(&mut state, delivery.tag, multiple);
        }
        self.process.scheduling_point("after acknowledging").await;
        Ok(())
    }

    async fn reject(&mut self, delivery: &Delivery) -> Result<(), BrokerUnavailable> {
        let mut state = self.process.world.lock();
        state.judge.dead_lettered_by_broker(self.service, delivery.message.id);
        self.acknowledged(&mut state, delivery.tag, false);
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.is_open_in(&self.process.world.lock())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        release_channel(&mut self.process.world.lock(), self.queue, self.id);
    }
}
