//! A store of dead letters that follows a script.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use messaging::{DeadLetter, DeadLetterStore, Failure};
use testbed::eventually;
use uuid::Uuid;

use crate::support::DEADLINE;

type Script = dyn Fn(&DeadLetter, usize) -> Result<bool, Failure> + Send + Sync;

/// Saves dead letters or fails, as its script says. The script gets the dead letter and the number of earlier calls; `false`
/// means that an event is no longer behind a dead letter.
#[derive(Clone)]
pub(crate) struct ScriptedStore {
    script: Arc<Script>,
    calls: Arc<Mutex<usize>>,
    saved: Arc<Mutex<Vec<DeadLetter>>>,
    attempts: Arc<Mutex<HashMap<Uuid, u32>>>,
}

impl ScriptedStore {
    pub(crate) fn new(
        script: impl Fn(&DeadLetter, usize) -> Result<bool, Failure> + Send + Sync + 'static,
    ) -> Self {
        Self {
            script: Arc::new(script),
            calls: Arc::default(),
            saved: Arc::default(),
            attempts: Arc::default(),
        }
    }

    pub(crate) fn that_saves() -> Self {
        Self::new(|_, _| Ok(true))
    }

    /// How many attempts at an event have begun and not ended.
    pub(crate) fn attempts(&self, event: Uuid) -> u32 {
        self.attempts.lock().unwrap().get(&event).copied().unwrap_or(0)
    }

    /// Records attempts that a consumer began and did not survive.
    pub(crate) fn set_attempts(&self, event: Uuid, begun: u32) {
        self.attempts.lock().unwrap().insert(event, begun);
    }

    /// What is saved now.
    pub(crate) fn letters(&self) -> Vec<DeadLetter> {
        self.saved.lock().unwrap().clone()
    }

    /// Waits until `count` dead letters are saved, and returns them.
    pub(crate) async fn saved(&self, count: usize) -> anyhow::Result<Vec<DeadLetter>> {
        eventually("the dead letters to be saved", DEADLINE, async || {
            let saved = self.letters();
            Ok((saved.len() >= count).then_some(saved))
        })
        .await
    }
}

impl DeadLetterStore for ScriptedStore {
    async fn save(&self, letter: &DeadLetter) -> Result<(), Failure> {
        self.save_behind(letter).await.map(drop)
    }

    async fn save_behind(&self, letter: &DeadLetter) -> Result<bool, Failure> {
        let earlier_calls = {
            let mut calls = self.calls.lock().unwrap();
            *calls += 1;
            *calls - 1
        };
        let saves = (self.script)(letter, earlier_calls)?;
        if saves {
            self.saved.lock().unwrap().push(letter.clone());
        }
        Ok(saves)
    }

    async fn begin_attempt(&self, _: &str, event: Uuid) -> Result<u32, Failure> {
        let begun = self.attempts(event) + 1;
        self.set_attempts(event, begun);
        Ok(begun)
    }

    async fn end_attempts(&self, _: &str, event: Uuid) -> Result<(), Failure> {
        self.attempts.lock().unwrap().remove(&event);
        Ok(())
    }
}
