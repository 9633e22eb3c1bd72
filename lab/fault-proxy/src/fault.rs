use std::{num::NonZeroU32, time::Duration};

use serde::{Deserialize, Serialize};

use crate::Error;

/// The longest duration of a fault. A forgotten fault would otherwise look like a bug of the system under test.
pub const MAX_FAULT_DURATION: Duration = Duration::from_secs(600);

/// The longest latency that [`Effect::Delay`] adds.
pub const MAX_DELAY: Duration = Duration::from_secs(60);

/// The longest pattern of [`Effect::ResetOnPattern`]. Each direction of each connection keeps a table of this length.
pub const MAX_PATTERN_BYTES: usize = 1024;

/// One network fault on a route: an effect, the direction it applies to, and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub effect: Effect,
    pub direction: Direction,
    /// The fault ends by itself after this time, [`MAX_FAULT_DURATION`] at most.
    pub lasts: Duration,
    /// The fault also ends after this many resets. Only the two resetting effects accept a number.
    pub times: Option<NonZeroU32>,
}

/// What a fault does to the connections of its route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Resets the open connections and refuses new ones.
    ///
    /// The direction selects the side that sees the reset. With one side only, the connection to the other side
    /// stays open and silent until the cut ends, as after the crash of a peer.
    Cut,
    /// Resets a connection as soon as it has forwarded this many bytes.
    ///
    /// Each connection and each direction counts on its own, from the injection on.
    ResetAfter { bytes: u64 },
    /// Resets a connection as soon as it has seen `pattern`, also across separate reads.
    ///
    /// With `forward`, the receiver gets the pattern and the rest of the read that it ended in: a server acts on
    /// whole messages, and `COMMIT` is not the last byte of its message. A sender may write the end of the message
    /// separately. A pattern with that end, such as `COMMIT\0`, does not depend on it.
    ///
    /// Without `forward`, the receiver never gets the whole pattern. A beginning of it that came in an earlier read
    /// has been forwarded by then. In both cases no later byte reaches the sender, so it gets no answer.
    ResetOnPattern { pattern: Vec<u8>, forward: bool },
    /// Forwards each byte this much later, in order. Several delays add up.
    Delay(Duration),
    /// Forwards at most this many bytes per second on each connection. The smallest of several rates applies.
    Trickle { bytes_per_second: NonZeroU32 },
    /// Stops reading and forwarding, and keeps the connections open. Nothing is lost when it ends.
    BlackHole,
}

/// The direction of the bytes that a fault applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    TowardUpstream,
    TowardClient,
    #[default]
    Both,
}

/// One of the two ways of a connection. Each has its own pump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Toward {
    Upstream,
    Client,
}

impl Direction {
    pub(crate) fn covers(self, toward: Toward) -> bool {
        match self {
            Self::TowardUpstream => toward == Toward::Upstream,
            Self::TowardClient => toward == Toward::Client,
            Self::Both => true,
        }
    }
}

impl Toward {
    pub(crate) fn opposite(self) -> Self {
        match self {
            Self::Upstream => Self::Client,
            Self::Client => Self::Upstream,
        }
    }
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
    pub(crate) fn check(&self) -> Result<(), Error> {
        let resets = matches!(self.effect, Effect::ResetAfter { .. } | Effect::ResetOnPattern { .. });
        let cause = match &self.effect {
            _ if self.lasts.is_zero() || self.lasts > MAX_FAULT_DURATION => {
                "a fault lasts more than zero and at most 10 minutes"
            }
            _ if self.times.is_some() && !resets => "only reset-after and reset-on-pattern accept times",
            Effect::ResetAfter { bytes: 0 } => "reset-after needs at least 1 byte; cut resets at once",
            Effect::ResetOnPattern { pattern, .. } if !(1..=MAX_PATTERN_BYTES).contains(&pattern.len()) => {
                "a pattern has 1 to 1024 bytes"
            }
            Effect::Delay(delay) if delay.is_zero() || *delay > MAX_DELAY => {
                "a delay is more than zero and at most 60 seconds"
            }
            _ => return Ok(()),
        };
        Err(Error::InvalidFault(cause.to_owned()))
    }
}
