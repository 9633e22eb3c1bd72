//! Who takes which step in the simulated world.

use std::{fmt, time::Duration};

/// The number of services that consume events, such as inventory and billing. Each has a queue and an inbox.
pub(crate) const SERVICES: usize = 2;

/// The queues of the services.
pub(crate) const QUEUES: [&str; SERVICES] = ["inventory", "billing"];

/// Who takes a step in the simulated world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Actor {
    Writer(usize),
    Relay(usize),
    /// The service, and which of its instances.
    Consumer(usize, usize),
    /// The broker, the databases and the network.
    Environment,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer(n) => write!(f, "writer {n}"),
            Self::Relay(n) => write!(f, "relay {n}"),
            Self::Consumer(service, n) => write!(f, "consumer {service}.{n}"),
            Self::Environment => write!(f, "environment"),
        }
    }
}

/// A step of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub at: Duration,
    pub actor: Actor,
    pub step: &'static str,
    pub detail: String,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `to_string`: the width applies to the whole name.
        let (at, actor) = (self.at.as_secs_f64(), self.actor.to_string());
        write!(f, "{at:>10.3} s  {actor:<13} {} {}", self.step, self.detail)
    }
}

/// All steps of a run, in order. They are always counted, and kept only on request, because their details take longer to
/// format than everything else.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) steps: u64,
    pub(crate) entries: Option<Vec<Entry>>,
}

impl History {
    /// Adds a step. `detail` is called only when the steps are kept.
    pub(crate) fn add(
        &mut self,
        at: Duration,
        actor: Actor,
        step: &'static str,
        detail: impl FnOnce() -> String,
    ) {
        self.steps += 1;
        if let Some(entries) = &mut self.entries {
            entries.push(Entry { at, actor, step, detail: detail() });
        }
    }
}
