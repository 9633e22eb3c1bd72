//! A service's table of dead letters, in memory.

use messaging::{DeadLetter, DeadLetterStore, Failure};
use uuid::Uuid;

use crate::{fault::Fault, process::Process, sometimes::Sometimes};

/// Saves the dead letters of one service in memory.
pub(crate) struct MemoryDeadLetters {
    pub(crate) process: Process,
    pub(crate) service: usize,
}

impl DeadLetterStore for MemoryDeadLetters {
    async fn save(&self, letter: &DeadLetter) -> Result<(), Failure> {
        self.insert(letter, false).await.map(drop)
    }

    async fn save_behind(&self, letter: &DeadLetter) -> Result<bool, Failure> {
        self.insert(letter, true).await
    }

    async fn begin_attempt(&self, _: &str, event: Uuid) -> Result<u32, Failure> {
        let failed = self.process.fault_point("begin an attempt", &[Fault::DatabaseError]).await;
        failed.map_err(|injected| Failure::Temporary(injected.into()))?;
        let mut state = self.process.world.lock();
        let begun = state.inboxes[self.service].attempts.entry(event).or_default();
        *begun += 1;
        Ok(*begun)
    }

    async fn end_attempts(&self, _: &str, event: Uuid) -> Result<(), Failure> {
        let failed = self.process.fault_point("end the attempts", &[Fault::DatabaseError]).await;
        failed.map_err(|injected| Failure::Temporary(injected.into()))?;
        self.process.world.lock().inboxes[self.service].attempts.remove(&event);
        Ok(())
    }
}

impl MemoryDeadLetters {
    /// Inserts a dead letter; with `only_behind` only if another one of its aggregate is there.
    async fn insert(&self, letter: &DeadLetter, only_behind: bool) -> Result<bool, Failure> {
        let possible = [Fault::DatabaseError];
        let failed = self.process.fault_point("save a dead letter", &possible).await;
        failed.map_err(|injected| Failure::Temporary(injected.into()))?;
        let event = events::decode(&letter.body, letter.message_id.as_deref(), None)
            .map_err(|rejection| Failure::Permanent(rejection.into()))?;
        let mut state = self.process.world.lock();
        let unknown = state.injects(Fault::DeadLetterUnknown);
        let is_saved = !unknown || state.random.one_in(2);
        let letters = &mut state.inboxes[self.service].dead_letters;
        if only_behind && !letters.iter().any(|(_, aggregate)| *aggregate == event.aggregate_id) {
            return Ok(false);
        }
        if is_saved {
            if !letters.iter().any(|(id, _)| *id == event.id) {
                letters.push((event.id, event.aggregate_id));
            }
            state.judge.set_aside(self.service, event.id);
            if only_behind {
                state.reach(Sometimes::SetAsideBehind);
            }
        }
        if unknown {
            return Err(Failure::Temporary("no answer to the commit of a dead letter".into()));
        }
        state.note(self.process.actor, "dead letter", event.id.as_u128(), || {
            format!("{}: {}", event.id, letter.reason)
        });
        Ok(true)
    }
}
