//! Faults, and how far one is from its end.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The longest duration of a fault. A forgotten fault would otherwise look like a bug of the system under test.
pub const MAX_FAULT_DURATION: Duration = Duration::from_secs(600);

const MAX_DELAY: Duration = Duration::from_secs(60);

/// One network fault: an effect, the direction it applies to, and its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub effect: Effect,
    pub direction: Direction,
    /// The fault ends by itself after this time, [`MAX_FAULT_DURATION`] at most.
    pub lasts: Duration,
    /// The fault also ends after this many resets. For the two effects that reset.
    pub times: Option<NonZeroU32>,
}

/// What a fault does to the connections of its route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Resets the open connections and refuses new ones, whatever the direction.
    Cut,
    /// Resets a connection as soon as it has forwarded this many bytes. Each connection and each direction counts by itself,
    /// from the moment when the fault was set.
    ResetAfter { bytes: u64 },
    /// Resets a connection as soon as it has seen `pattern`, also across separate reads.
    ///
    /// With `forward`, the receiver gets the pattern and the rest of the read that it ended in: a server acts on whole
    /// messages, and `COMMIT` is not the last byte of its message. Without it, the receiver never gets the whole pattern. In
    /// both cases no later byte reaches the sender: it gets no answer.
    ResetOnPattern { pattern: Vec<u8>, forward: bool },
    /// Forwards each byte, and the end of the stream, this much later. 512 KiB wait at most, which limits the rate.
    Delay(Duration),
    /// Forwards at most this many bytes per second on each connection.
    Trickle { bytes_per_second: NonZeroU32 },
    /// Stops reading and forwarding, and keeps the connections open. Nothing is lost when it ends.
    BlackHole,
}

/// The direction of the bytes that a fault applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    TowardUpstream,
    TowardClient,
    Both,
}

impl Fault {
    pub fn new(effect: Effect, direction: Direction, lasts: Duration) -> Self {
        Self { effect, direction, lasts, times: None }
    }

    /// Ends the fault after this many resets. Zero means no such limit.
    #[must_use]
    pub fn times(self, resets: u32) -> Self {
        Self { times: NonZeroU32::new(resets), ..self }
    }

    /// Checks what the types cannot.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let resets = matches!(self.effect, Effect::ResetAfter { .. } | Effect::ResetOnPattern { .. });
        match &self.effect {
            _ if self.lasts.is_zero() || self.lasts > MAX_FAULT_DURATION => {
                Err("a fault lasts more than zero and at most 10 minutes")
            }
            _ if self.times.is_some() && !resets => Err("only reset-after and reset-on-pattern accept times"),
            Effect::ResetAfter { bytes: 0 } => Err("reset-after needs at least 1 byte; cut resets at once"),
            Effect::ResetOnPattern { pattern, .. } if pattern.is_empty() => {
                Err("a pattern has at least 1 byte")
            }
            Effect::Delay(delay) if *delay > MAX_DELAY => Err("a delay is at most 60 seconds"),
            _ => Ok(()),
        }
    }
}

/// A fault that was set, with what is left of it.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) fault: Fault,
    pub(crate) ends_at: Instant,
    resets_left: AtomicU32,
}

impl Active {
    pub(crate) fn new(fault: Fault) -> Self {
        let resets_left = AtomicU32::new(fault.times.map_or(u32::MAX, NonZeroU32::get));
        Self { ends_at: Instant::now() + fault.lasts, resets_left, fault }
    }

    pub(crate) fn is_in_force(&self) -> bool {
        Instant::now() < self.ends_at && self.resets_left.load(Relaxed) > 0
    }

    /// The effect on one direction, while the fault is in force.
    pub(crate) fn effect(&self, toward: Direction) -> Option<&Effect> {
        let direction = self.fault.direction;
        let applies = self.fault.effect == Effect::Cut || direction == Direction::Both || direction == toward;
        (applies && self.is_in_force()).then_some(&self.fault.effect)
    }

    /// Takes one of the resets that are left. False means that other connections have used them all.
    pub(crate) fn claim_reset(&self) -> bool {
        self.resets_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}
