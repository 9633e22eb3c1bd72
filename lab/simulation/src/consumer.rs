//! A consuming instance: one session after the other, as in `rabbitmq::Consumer`. The real `messaging::settle::Settling`
//! decides what happens to the deliveries.

use std::{sync::Arc, time::Duration};

use flaws::Flaw;
use messaging::{
    Backoff, BrokerUnavailable,
    settle::{Availability, DeliveryChannel, Interruption, Pace, Settling},
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{
    actor::QUEUES,
    broker_actions::open_channel,
    dead_letters::MemoryDeadLetters,
    delivery_channel::{MemoryDeliveryChannel, no_answer},
    fault::Fault,
    handler::MemoryHandler,
    process::Process,
    queue::Delivery,
    sometimes::Sometimes,
};

/// After this much silence the consumer checks that its subscription still exists.
const MAX_SILENCE: Duration = Duration::from_secs(2);

/// How many messages a consumer holds at a time, and applies in one transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConsumerLimits {
    pub(crate) prefetch: usize,
    pub(crate) group: usize,
}

/// Consumes until the stop. A crash drops this future.
pub(crate) async fn consume(process: Process, service: usize, instance: usize, limits: ConsumerLimits) {
    let stop = process.world.stop.clone();
    let handler = MemoryHandler { process: process.clone(), service };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    while !stop.is_cancelled() {
        let ended = match open(&process, service, instance, limits).await {
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

struct Session {
    channel: MemoryDeliveryChannel,
    arrived: Arc<Notify>,
}

async fn open(
    process: &Process,
    service: usize,
    instance: usize,
    limits: ConsumerLimits,
) -> Result<Session, BrokerUnavailable> {
    let possible = [Fault::ConsumerDisconnected];
    process.fault_point("subscribe", &possible).await.map_err(|_| no_answer("basic.consume"))?;
    let mut state = process.world.lock();
    if state.broker_is_unavailable() {
        return Err(no_answer("connect"));
    }
    let is_unequal = process.world.has(Flaw::UnequalPrefetch);
    let prefetch = if is_unequal { state.random.between(1, limits.prefetch) } else { limits.prefetch };
    let (id, arrived) = open_channel(&mut state, service, instance, prefetch);
    state.note(process.actor, "subscribed", id.into(), || format!("channel {id}, {limits:?}"));
    Ok(Session { channel: MemoryDeliveryChannel { process: process.clone(), service, id }, arrived })
}

impl Session {
    /// Consumes until the stop, or until the channel fails.
    async fn consume(&mut self, handler: &MemoryHandler, largest_group: usize) -> Result<(), Interruption> {
        let stop = handler.process.world.stop.clone();
        loop {
            let Some(first) = self.next() else {
                let arrived = timeout(MAX_SILENCE, self.arrived.notified());
                match stop.run_until_cancelled(arrived).await {
                    None => return Ok(()),
                    Some(_) if !self.channel.is_open() && self.is_empty() => {
                        return Err(Interruption::ChannelClosed);
                    }
                    Some(_) => continue,
                }
            };
            let mut group = vec![first];
            while group.len() < largest_group
                && let Some(delivery) = self.next()
            {
                group.push(delivery);
            }
            let (process, service) = (handler.process.clone(), handler.service);
            let available: Availability = Arc::new(|| Ok(()));
            let mut settling = Settling {
                channel: &mut self.channel,
                handler,
                letters: &MemoryDeadLetters { process, service },
                available: &available,
                queue: QUEUES[service],
                stop: &stop,
            };
            if settling.settle(&group).await? == Pace::TooSlow {
                handler.process.world.lock().reach(Sometimes::GroupHalved);
            }
            if stop.is_cancelled() {
                return Ok(());
            }
        }
    }

    fn next(&self) -> Option<Delivery> {
        let MemoryDeliveryChannel { process, service, id } = &self.channel;
        let mut state = process.world.lock();
        state.broker.queues[*service].channels.get_mut(id)?.unread.pop_front()
    }

    fn is_empty(&self) -> bool {
        let MemoryDeliveryChannel { process, service, id } = &self.channel;
        let state = process.world.lock();
        let channel = state.broker.queues[*service].channels.get(id);
        channel.is_none_or(|channel| channel.unread.is_empty())
    }
}
