//! A consuming instance: sessions, one after the other, as `broker::Consumer` has them. What becomes of the deliveries
//! is decided by the real `broker::group::settle`.

use std::{sync::Arc, time::Duration};

use broker::{Error, group::settle};
use events::Backoff;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{
    fault::Fault,
    inbox::MemoryHandler,
    line::{MemoryLine, lost},
    queues::Delivery,
    world::Owner,
};

const QUEUES: [&str; 2] = ["inventory", "billing"];

/// A queue that has been silent for this long is asked whether it is still there.
const ASK_AFTER: Duration = Duration::from_secs(2);

/// How often a message may have been handed over before it is met with care.
const SUSPICIOUS: u32 = 2;

/// How much one consumer takes at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Appetite {
    pub(crate) prefetch: usize,
    pub(crate) group: usize,
}

/// Consumes until the stop. Dropped when this life ends.
pub(crate) async fn consume(owner: Owner, service: usize, instance: usize, appetite: Appetite) {
    let stop = owner.world.stop.clone();
    let handler = MemoryHandler { owner: owner.clone(), service };
    let careful = Appetite { prefetch: 1, group: 1 };
    let mut appetite_now = careful;
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    while !stop.is_cancelled() {
        let ended = match open(&owner, service, instance, appetite_now).await {
            Ok(mut session) => {
                backoff.reset();
                session.consume(&handler, appetite_now.group).await
            }
            Err(error) => Err(error),
        };
        match ended {
            // The message in hand was an ordinary one: time to take many.
            Ok(()) => appetite_now = appetite,
            Err(_) => {
                appetite_now = careful;
                stop.run_until_cancelled(sleep(backoff.next_wait())).await;
            }
        }
    }
}

struct Session {
    line: MemoryLine,
    arrived: Arc<Notify>,
}

async fn open(owner: &Owner, service: usize, instance: usize, appetite: Appetite) -> Result<Session, Error> {
    owner.gate("subscribe", &[Fault::SessionLost]).await.map_err(|_| lost("basic.consume"))?;
    let mut state = owner.world.lock();
    if state.broker_is_away() {
        return Err(lost("connect"));
    }
    let (channel, arrived) = state.open_channel(service, instance, appetite.prefetch);
    state.note(owner.who, "subscribed", channel.into(), || format!("channel {channel}, {appetite:?}"));
    Ok(Session { line: MemoryLine { owner: owner.clone(), service, channel }, arrived })
}

impl Session {
    async fn consume(&mut self, handler: &MemoryHandler, largest_group: usize) -> Result<(), Error> {
        let stop = handler.owner.world.stop.clone();
        loop {
            let Some(first) = self.next() else {
                let arrived = timeout(ASK_AFTER, self.arrived.notified());
                match stop.run_until_cancelled(arrived).await {
                    None => return Ok(()),
                    Some(Ok(()) | Err(_)) if !broker::group::Line::is_open(&self.line) && self.is_empty() => {
                        return Err(lost("a subscription that was cancelled"));
                    }
                    Some(_) => continue,
                }
            };
            let suspicious = first.message.earlier_deliveries >= SUSPICIOUS;
            let mut group = vec![first];
            while group.len() < largest_group
                && let Some(delivery) = self.next()
            {
                group.push(delivery);
            }
            let queue = QUEUES[self.line.service];
            settle(&mut self.line, handler, queue, group, &stop).await?;
            if largest_group == 1 && !suspicious {
                return Ok(());
            }
            if stop.is_cancelled() {
                return Ok(());
            }
        }
    }

    fn next(&self) -> Option<Delivery> {
        let mut state = self.line.owner.world.lock();
        state.broker.queues[self.line.service].channels.get_mut(&self.line.channel)?.handed_over.pop_front()
    }

    fn is_empty(&self) -> bool {
        let state = self.line.owner.world.lock();
        let channel = state.broker.queues[self.line.service].channels.get(&self.line.channel);
        channel.is_none_or(|channel| channel.handed_over.is_empty())
    }
}
