//! Who takes which step in the simulated world.

use std::{fmt, time::Duration};

/// The number of services that consume events, such as inventory and billing. Each has a queue and an inbox.
pub(crate) const SERVICES: usize = 2;

/// The queues of the services.
pub(crate) const QUEUES: [&str; SERVICES] = ["inventory", "billing"];

/// Who takes a step in the simulated world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Actor {
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
