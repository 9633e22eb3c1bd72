use flaws::Flaw;
use messaging::{BrokerUnavailable, DeadLetter, Incoming, settle::DeliveryChannel};
use serde_json::Value;

use crate::{
    actor::QUEUES,
    broker_actions::{close_channel, deliver, release_channel},
    fault::Fault,
    process::Process,
    queue::Delivery,
    state::State,
};

/// A consumer's end of a channel of the broker in memory.
pub(crate) struct MemoryDeliveryChannel {
    pub(crate) process: Process,
    pub(crate) service: usize,
    pub(crate) id: u64,
}

/// The error of a request that the broker did not answer.
pub(crate) fn no_answer(request: &'static str) -> BrokerUnavailable {
    BrokerUnavailable(format!("no answer to {request}"))
}

impl MemoryDeliveryChannel {
    /// The broker receives an acknowledgement.
    fn acknowledged(&self, state: &mut State, tag: u64, multiple: bool) {
        let queue = &mut state.broker.queues[self.service];
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
        state.note(self.process.actor, "acknowledged", ids.len() as u128, || format!("{ids:?}"));
        deliver(state, self.service);
    }

    fn is_open_in(&self, state: &State) -> bool {
        let channel = state.broker.queues[self.service].channels.get(&self.id);
        channel.is_some_and(|channel| channel.is_open)
    }
}

impl DeliveryChannel for MemoryDeliveryChannel {
    type Delivery = Delivery;

    fn incoming<'a>(&self, delivery: &'a Delivery) -> Incoming<'a> {
        if self.process.world.has(Flaw::AckBeforeCommit) {
            self.acknowledged(&mut self.process.world.lock(), delivery.tag, true);
        }
        Incoming {
            message_id: Some(&delivery.message.message_id),
            traceparent: delivery.message.traceparent.as_deref(),
            body: &delivery.message.body,
            earlier_deliveries: delivery.message.earlier_deliveries,
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
            close_channel(&mut self.process.world.lock(), self.service, self.id);
        }
        {
            let mut state = self.process.world.lock();
            if !self.is_open_in(&state) {
                return Err(no_answer("basic.ack"));
            }
            // The client has written it to the socket and cannot know that it is lost.
            if state.injects(Fault::AckLost) {
                close_channel(&mut state, self.service, self.id);
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

impl Drop for MemoryDeliveryChannel {
    fn drop(&mut self) {
        release_channel(&mut self.process.world.lock(), self.service, self.id);
    }
}
