use crate::invariant::Invariant;

/// A protection that is removed, to show that the check notices. The names are those of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The publisher reports messages as confirmed without sending them.
    MarkBeforeConfirm,
    /// The publisher reports every message as confirmed, also without an answer.
    ConfirmsOff,
    /// The publisher treats a message as returned only if its own confirm carries the return.
    ReturnTrustedToItsConfirm,
    /// The publisher trusts acks although some answers of the wave, and the returns on them, are missing.
    SilenceIgnored,
    /// The publisher gives an event a new id at each attempt after the first.
    NewIdPerAttempt,
    /// The consumer acknowledges a message before it applies it.
    AckBeforeCommit,
    /// The inbox commits the processed id before the effect.
    DedupeOutsideTransaction,
    /// All instances consume at the same time.
    CompetingConsumers,
    /// The instances have different prefetches.
    UnequalPrefetch,
    /// The inbox applies an event although an older one of its aggregate is a dead letter.
    LaterEventsApplied,
    /// Relays lock event rows instead of lanes.
    SkipLockedOnRows,
    /// A relay continues reading after the last `seq` it read, instead of selecting pending events.
    CursorOverSeq,
    /// A claim returns an event while an older one of its aggregate backs off.
    OlderEventIgnored,
    /// A claim reads uncommitted events.
    DirtyRead,
    /// A relay never polls.
    WokenOnly,
}

impl Mutant {
    pub const ALL: [Self; 15] = [
        Self::MarkBeforeConfirm,
        Self::ConfirmsOff,
        Self::ReturnTrustedToItsConfirm,
        Self::SilenceIgnored,
        Self::NewIdPerAttempt,
        Self::AckBeforeCommit,
        Self::DedupeOutsideTransaction,
        Self::CompetingConsumers,
        Self::UnequalPrefetch,
        Self::LaterEventsApplied,
        Self::SkipLockedOnRows,
        Self::CursorOverSeq,
        Self::OlderEventIgnored,
        Self::DirtyRead,
        Self::WokenOnly,
    ];

    /// The invariant that the removed protection guards.
    pub fn guards(self) -> Invariant {
        match self {
            Self::MarkBeforeConfirm
            | Self::ConfirmsOff
            | Self::ReturnTrustedToItsConfirm
            | Self::SilenceIgnored => Invariant::MarkedWithoutMessage,
            Self::NewIdPerAttempt | Self::DirtyRead => Invariant::PublishedUncommitted,
            Self::AckBeforeCommit | Self::DedupeOutsideTransaction => Invariant::AcknowledgedBeforeEffect,
            Self::CompetingConsumers | Self::UnequalPrefetch | Self::LaterEventsApplied => {
                Invariant::AppliedOutOfOrder
            }
            Self::SkipLockedOnRows | Self::CursorOverSeq | Self::OlderEventIgnored => {
                Invariant::PublishedOutOfOrder
            }
            Self::WokenOnly => Invariant::NeverQuiescent,
        }
    }
}
