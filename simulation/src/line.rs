use std::time::Duration;

use broker::{Error, group::Line};
use events::transport::Incoming;

use crate::{
    fault::Fault,
    mutant::Mutant,
    queues::Delivery,
    world::{Owner, State},
};

/// A consumer's end of a channel of the broker in memory.
pub(crate) struct MemoryLine {
    pub(crate) owner: Owner,
    pub(crate) service: usize,
    pub(crate) channel: u64,
}

pub(crate) fn lost(what: &'static str) -> Error {
    Error::Silent(Duration::from_secs(3), what)
}

impl MemoryLine {
    fn answered(&self, state: &mut State, tag: u64, and_before: bool) {
        let queue = &mut state.broker.queues[self.service];
        let Some(channel) = queue.channels.get_mut(&self.channel) else {
            return;
        };
        let is_meant = |delivery: &Delivery| delivery.tag == tag || (and_before && delivery.tag < tag);
        let answered: Vec<_> = channel
            .unanswered
            .iter()
            .filter(|delivery| is_meant(delivery))
            .map(|delivery| delivery.message.id)
            .collect();
        channel.unanswered.retain(|delivery| !is_meant(delivery));
        for id in &answered {
            state.judge.acknowledged(self.service, *id);
        }
        state.note(self.owner.who, "acknowledged", answered.len() as u128, || format!("{answered:?}"));
        state.dispatch(self.service);
    }
}

impl Line for MemoryLine {
    type Delivery = Delivery;

    fn incoming(&self, delivery: &Delivery) -> Incoming {
        if self.owner.world.is(Mutant::AckBeforeCommit) {
            self.answered(&mut self.owner.world.lock(), delivery.tag, true);
        }
        Incoming {
            message_id: Some(delivery.message.id.to_string()),
            traceparent: delivery.message.traceparent.clone(),
            body: delivery.message.body.to_vec(),
        }
    }

    async fn acknowledge(&mut self, delivery: &Delivery, and_before: bool) -> Result<(), Error> {
        if self.owner.gate("acknowledge", &[Fault::SessionLost]).await.is_err() {
            self.owner.world.lock().cut(self.service, self.channel);
        }
        {
            let mut state = self.owner.world.lock();
            if !self.is_open_in(&state) {
                return Err(lost("basic.ack"));
            }
            // Written to the socket, as far as anybody here can tell.
            if state.strikes(Fault::AckLost) {
                state.cut(self.service, self.channel);
                return Ok(());
            }
            self.answered(&mut state, delivery.tag, and_before);
        }
        self.owner.pause("acknowledged").await;
        Ok(())
    }

    async fn keep_as_dead_letter(&mut self, delivery: &Delivery, reason: &str, _: &str) -> Result<(), Error> {
        self.owner.pause("keep a dead letter").await;
        let unknown = {
            let mut state = self.owner.world.lock();
            if state.broker_is_away() {
                return Err(lost("the confirm of a dead letter"));
            }
            let unknown = state.strikes(Fault::DeadLetterUnknown);
            if !unknown || state.dice.one_in(2) {
                let id = delivery.message.id;
                state.judge.set_aside(self.service, id);
                state.note(self.owner.who, "dead letter", id.as_u128(), || format!("{id}: {reason}"));
            }
            unknown
        };
        self.owner.pause("the dead letter is kept").await;
        if unknown { Err(lost("the confirm of a dead letter")) } else { Ok(()) }
    }

    fn is_open(&self) -> bool {
        self.is_open_in(&self.owner.world.lock())
    }
}

impl MemoryLine {
    fn is_open_in(&self, state: &State) -> bool {
        state.broker.queues[self.service].channels.get(&self.channel).is_some_and(|channel| channel.open)
    }
}

impl Drop for MemoryLine {
    fn drop(&mut self) {
        self.owner.world.lock().let_go(self.service, self.channel);
    }
}
