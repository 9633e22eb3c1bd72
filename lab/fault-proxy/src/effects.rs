use std::{num::NonZeroU32, sync::Arc, time::Duration};

use crate::{
    Effect,
    active_faults::{ActiveFault, FaultList},
    fault::Toward,
    pattern::Matcher,
};

/// What the faults of a route do to one direction of one connection.
pub(crate) struct Effects {
    toward: Toward,
    pub(crate) is_black_hole: bool,
    pub(crate) delay: Duration,
    pub(crate) trickle: Option<NonZeroU32>,
    triggers: Vec<Trigger>,
}

/// A fault that resets the connection, and how far this direction is from that.
struct Trigger {
    fault: Arc<ActiveFault>,
    progress: Progress,
}

enum Progress {
    Bytes { left: u64 },
    Pattern { matcher: Matcher, forward: bool, is_found: bool },
}

/// How many bytes may be forwarded now, and the fault that resets the connection behind them.
pub(crate) struct Allowance {
    pub(crate) bytes: usize,
    pub(crate) reset: Option<Arc<ActiveFault>>,
}

impl Effects {
    pub(crate) fn new(toward: Toward, list: &FaultList) -> Self {
        let mut effects =
            Self { toward, is_black_hole: false, delay: Duration::ZERO, trickle: None, triggers: Vec::new() };
        effects.update(list);
        effects
    }

    /// Takes a newer list. Faults that were in the last one keep their progress.
    pub(crate) fn update(&mut self, list: &FaultList) {
        let mut known = std::mem::take(&mut self.triggers);
        self.is_black_hole = list.is_black_hole(self.toward);
        self.delay = Duration::ZERO;
        self.trickle = None;
        for active in list.faults.iter().filter(|active| active.fault.direction.covers(self.toward)) {
            match &active.fault.effect {
                Effect::Cut | Effect::BlackHole => {}
                Effect::Delay(delay) => self.delay += *delay,
                Effect::Trickle { bytes_per_second: rate } => {
                    self.trickle = Some(self.trickle.map_or(*rate, |slowest| slowest.min(*rate)));
                }
                Effect::ResetAfter { .. } | Effect::ResetOnPattern { .. } => {
                    let position = known.iter().position(|trigger| Arc::ptr_eq(&trigger.fault, active));
                    let trigger = position.map(|position| known.swap_remove(position));
                    self.triggers.extend(trigger.or_else(|| Trigger::new(active)));
                }
            }
        }
    }

    /// Says how much of `bytes`, the rest of the oldest chunk, may be forwarded.
    pub(crate) fn allowance(&self, bytes: &[u8]) -> Allowance {
        let mut allowance = Allowance { bytes: bytes.len(), reset: None };
        for trigger in &self.triggers {
            if let Some(limit) = trigger.limit(bytes)
                && (limit < allowance.bytes || allowance.reset.is_none())
            {
                allowance = Allowance { bytes: limit, reset: Some(Arc::clone(&trigger.fault)) };
            }
        }
        allowance
    }

    /// Notes that `bytes` were forwarded.
    pub(crate) fn forwarded(&mut self, bytes: &[u8]) {
        for trigger in &mut self.triggers {
            match &mut trigger.progress {
                Progress::Bytes { left } => *left = left.saturating_sub(bytes.len() as u64),
                Progress::Pattern { matcher, is_found, .. } => {
                    *is_found = *is_found || matcher.find_end(bytes).is_some();
                    matcher.advance(bytes);
                }
            }
        }
    }

    /// Forgets a fault whose resets are used up.
    pub(crate) fn forget(&mut self, fault: &Arc<ActiveFault>) {
        self.triggers.retain(|trigger| !Arc::ptr_eq(&trigger.fault, fault));
    }
}

impl Trigger {
    fn new(fault: &Arc<ActiveFault>) -> Option<Self> {
        let progress = match &fault.fault.effect {
            Effect::ResetAfter { bytes } => Progress::Bytes { left: *bytes },
            Effect::ResetOnPattern { pattern, forward } => {
                Progress::Pattern { matcher: Matcher::new(pattern), forward: *forward, is_found: false }
            }
            Effect::Cut | Effect::Delay(_) | Effect::Trickle { .. } | Effect::BlackHole => return None,
        };
        Some(Self { fault: Arc::clone(fault), progress })
    }

    /// How many of `bytes` are forwarded before the reset. `None`: the reset is not within them.
    fn limit(&self, bytes: &[u8]) -> Option<usize> {
        match &self.progress {
            Progress::Bytes { left } => usize::try_from(*left).ok().filter(|left| *left <= bytes.len()),
            // A trickle forwards the end of the pattern before the end of the chunk.
            Progress::Pattern { matcher, forward: true, is_found } => {
                (*is_found || matcher.find_end(bytes).is_some()).then_some(bytes.len())
            }
            // A beginning of the pattern was forwarded with its chunk. Holding it back until the next bytes come
            // would stop a protocol whose message ends with the same byte.
            Progress::Pattern { matcher, forward: false, .. } => {
                matcher.find_end(bytes).map(|end| end.saturating_sub(matcher.pattern_length()))
            }
        }
    }
}
