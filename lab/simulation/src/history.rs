use std::time::Duration;

use crate::actor::Actor;

/// All steps of a run, in order. The hash is always computed, so that two runs can be compared. The text is kept only
/// on request, because formatting it takes longer than everything else.
pub(crate) struct History {
    hash: u64,
    steps: u64,
    text: Option<Vec<String>>,
}

impl History {
    pub(crate) fn new(keep_text: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, steps: 0, text: keep_text.then(Vec::new) }
    }

    /// Adds a step. `detail` is called only when the text is kept.
    pub(crate) fn add(
        &mut self,
        at: Duration,
        actor: Actor,
        step: &'static str,
        number: u128,
        detail: impl FnOnce() -> String,
    ) {
        self.steps += 1;
        let (kind, first, second) = match actor {
            Actor::Writer(n) => (1_u8, n, 0),
            Actor::Relay(n) => (2, n, 0),
            Actor::Consumer(service, n) => (3, service, n),
            Actor::Environment => (4, 0, 0),
        };
        self.mix(&at.as_nanos().to_le_bytes());
        self.mix(&[kind]);
        self.mix(&first.to_le_bytes());
        self.mix(&second.to_le_bytes());
        self.mix(step.as_bytes());
        self.mix(&number.to_le_bytes());
        if let Some(text) = &mut self.text {
            // `to_string`: the width applies to the whole name.
            let actor = actor.to_string();
            text.push(format!("{:>10.3} s  {actor:<13} {step} {}", at.as_secs_f64(), detail()));
        }
    }

    /// FNV-1a: short, and the same on every platform.
    fn mix(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Returns the hash, the number of steps, and the text.
    pub(crate) fn finish(self) -> (u64, u64, Vec<String>) {
        (self.hash, self.steps, self.text.unwrap_or_default())
    }
}
