/// What must not happen, with the numbers of `docs/guarantees.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Invariant {
    PublishedUncommitted,
    MarkedWithoutMessage,
    AcknowledgedBeforeEffect,
    AppliedTwice,
    AppliedUncommitted,
    PublishedOutOfOrder,
    AppliedOutOfOrder,
    /// The only one that is about liveness.
    NeverQuiescent,
}

impl Invariant {
    /// `I2` to `I8`.
    pub fn number(self) -> &'static str {
        self.text().split(':').next().unwrap_or_default()
    }

    /// The number, and what must not happen.
    pub fn text(self) -> &'static str {
        match self {
            Self::PublishedUncommitted => "I2: a message is published whose event is not committed",
            Self::MarkedWithoutMessage => "I3: an event is marked as published that the queue never received",
            Self::AcknowledgedBeforeEffect => "I3: a message is acknowledged before its effect is committed",
            Self::AppliedTwice => "I4: an effect is committed twice",
            Self::AppliedUncommitted => "I5: an effect is committed without a committed event",
            Self::PublishedOutOfOrder => "I6: an event is published before an older one of its aggregate",
            Self::AppliedOutOfOrder => "I6: an effect is committed before an older one of its aggregate",
            Self::NeverQuiescent => "I8: without further faults, no quiescent state is reachable",
        }
    }
}
