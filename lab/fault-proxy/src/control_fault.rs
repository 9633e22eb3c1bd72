//! Faults in the JSON of the control API.

use std::{num::NonZeroU32, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Direction, Effect, Fault, active_faults::ActiveFault};

/// One fault of a list that a client sends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "kebab-case", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(crate) enum FaultBody {
    Cut {
        #[serde(default)]
        direction: Direction,
        lasts_ms: u64,
    },
    ResetAfter {
        #[serde(default)]
        direction: Direction,
        lasts_ms: u64,
        bytes: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        times: Option<NonZeroU32>,
    },
    ResetOnPattern {
        #[serde(default)]
        direction: Direction,
        lasts_ms: u64,
        /// Text only. A pattern that is not UTF-8 needs the library, and is shown with replacement characters.
        pattern: String,
        forward: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        times: Option<NonZeroU32>,
    },
    Delay {
        #[serde(default)]
        direction: Direction,
        lasts_ms: u64,
        delay_ms: u64,
    },
    Trickle {
        #[serde(default)]
        direction: Direction,
        lasts_ms: u64,
        bytes_per_second: NonZeroU32,
    },
    BlackHole {
        #[serde(default)]
        direction: Direction,
        lasts_ms: u64,
    },
}

/// One fault of a list that the proxy shows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShownFault {
    #[serde(flatten)]
    fault: FaultBody,
    remaining_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    resets_left: Option<u32>,
}

impl From<FaultBody> for Fault {
    fn from(body: FaultBody) -> Self {
        let (effect, direction, lasts_ms, times) = match body {
            FaultBody::Cut { direction, lasts_ms } => (Effect::Cut, direction, lasts_ms, None),
            FaultBody::ResetAfter { direction, lasts_ms, bytes, times } => {
                (Effect::ResetAfter { bytes }, direction, lasts_ms, times)
            }
            FaultBody::ResetOnPattern { direction, lasts_ms, pattern, forward, times } => {
                let pattern = pattern.into_bytes();
                (Effect::ResetOnPattern { pattern, forward }, direction, lasts_ms, times)
            }
            FaultBody::Delay { direction, lasts_ms, delay_ms } => {
                (Effect::Delay(Duration::from_millis(delay_ms)), direction, lasts_ms, None)
            }
            FaultBody::Trickle { direction, lasts_ms, bytes_per_second } => {
                (Effect::Trickle { bytes_per_second }, direction, lasts_ms, None)
            }
            FaultBody::BlackHole { direction, lasts_ms } => (Effect::BlackHole, direction, lasts_ms, None),
        };
        Self { effect, direction, lasts: Duration::from_millis(lasts_ms), times }
    }
}

impl From<&ActiveFault> for ShownFault {
    fn from(active: &ActiveFault) -> Self {
        let Fault { effect, direction, lasts, times } = active.fault.clone();
        let lasts_ms = milliseconds(lasts);
        let fault = match effect {
            Effect::Cut => FaultBody::Cut { direction, lasts_ms },
            Effect::ResetAfter { bytes } => FaultBody::ResetAfter { direction, lasts_ms, bytes, times },
            Effect::ResetOnPattern { pattern, forward } => {
                let pattern = String::from_utf8_lossy(&pattern).into_owned();
                FaultBody::ResetOnPattern { direction, lasts_ms, pattern, forward, times }
            }
            Effect::Delay(delay) => FaultBody::Delay { direction, lasts_ms, delay_ms: milliseconds(delay) },
            Effect::Trickle { bytes_per_second } => {
                FaultBody::Trickle { direction, lasts_ms, bytes_per_second }
            }
            Effect::BlackHole => FaultBody::BlackHole { direction, lasts_ms },
        };
        let (remaining_ms, resets_left) = (milliseconds(active.remaining()), active.resets_left());
        Self { fault, remaining_ms, resets_left }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
