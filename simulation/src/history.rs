use std::{fmt, time::Duration};

/// Who does something in the simulated world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Writer(usize),
    Relay(usize),
    /// Of which service, and which of its instances.
    Consumer(usize, usize),
    /// The broker, the databases and the wires between them.
    World,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer(n) => write!(f, "writer {n}"),
            Self::Relay(n) => write!(f, "relay {n}"),
            Self::Consumer(service, n) => write!(f, "consumer {service}.{n}"),
            Self::World => write!(f, "world"),
        }
    }
}

/// What happened, in order. Its hash is always kept, so that two runs can be compared; its text only when asked for,
/// because writing it takes longer than everything else.
pub(crate) struct History {
    hash: u64,
    pub(crate) steps: u64,
    text: Option<Vec<String>>,
}

impl History {
    pub(crate) fn new(keep_text: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, steps: 0, text: keep_text.then(Vec::new) }
    }

    /// Adds an entry. `detail` is only called when the text is kept.
    pub(crate) fn add(
        &mut self,
        at: Duration,
        who: Who,
        what: &'static str,
        number: u128,
        detail: impl FnOnce() -> String,
    ) {
        self.steps += 1;
        let (kind, first, second) = match who {
            Who::Writer(n) => (1_u8, n, 0),
            Who::Relay(n) => (2, n, 0),
            Who::Consumer(service, n) => (3, service, n),
            Who::World => (4, 0, 0),
        };
        self.mix(&at.as_nanos().to_le_bytes());
        self.mix(&[kind]);
        self.mix(&first.to_le_bytes());
        self.mix(&second.to_le_bytes());
        self.mix(what.as_bytes());
        self.mix(&number.to_le_bytes());
        if let Some(text) = &mut self.text {
            text.push(format!("{:>10.3} s  {who:<13} {what} {}", at.as_secs_f64(), detail()));
        }
    }

    /// FNV-1a: short, and the same everywhere.
    fn mix(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) fn finish(self) -> (u64, u64, Vec<String>) {
        (self.hash, self.steps, self.text.unwrap_or_default())
    }
}
