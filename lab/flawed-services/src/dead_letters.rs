//! A store of dead letters that does not count attempts.

use flaws::Flaw;
use messaging::{DeadLetter, DeadLetterStore, Failure};
use uuid::Uuid;

/// A consumer's dead letters with one part left out, or none.
#[derive(Clone)]
pub struct FlawedDeadLetters<L> {
    inner: L,
    flaw: Option<Flaw>,
}

impl<L> FlawedDeadLetters<L> {
    pub fn new(inner: L, flaw: Option<Flaw>) -> Self {
        Self { inner, flaw }
    }
}

impl<L: DeadLetterStore> DeadLetterStore for FlawedDeadLetters<L> {
    async fn save(&self, letter: &DeadLetter) -> Result<(), Failure> {
        self.inner.save(letter).await
    }

    async fn save_behind(&self, letter: &DeadLetter) -> Result<bool, Failure> {
        self.inner.save_behind(letter).await
    }

    async fn begin_attempt(&self, queue: &str, event: Uuid) -> Result<u32, Failure> {
        if self.flaw == Some(Flaw::AttemptsNotCounted) {
            return Ok(1);
        }
        self.inner.begin_attempt(queue, event).await
    }

    async fn end_attempts(&self, queue: &str, event: Uuid) -> Result<(), Failure> {
        self.inner.end_attempts(queue, event).await
    }
}
