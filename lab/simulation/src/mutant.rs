/// A protection that is removed, to show that the judge notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The publisher reports messages as confirmed before it sends them.
    MarkBeforeConfirm,
    /// The publisher reports every message as confirmed, also without an answer.
    ConfirmsOff,
    /// The publisher treats a message as returned only if its own confirm carries the return.
    ReturnTrustedToItsConfirm,
    /// The publisher trusts acks although some answers of the batch, and the returns on them, are missing.
    SilenceIgnored,
    /// The publisher gives an event a new id at each attempt after the first.
    NewIdPerAttempt,
    /// The consumer acknowledges a message before it applies it.
    AckBeforeCommit,
    /// The inbox commits the processed ids before the effect.
    DedupeOutsideTransaction,
    /// All instances of a service consume at the same time.
    CompetingConsumers,
    /// The instances of a service have different prefetches.
    UnequalPrefetch,
    /// The inbox applies an event although an older one of its aggregate is a dead letter.
    LaterEventsApplied,
    /// The store locks free event rows instead of lanes.
    SkipLockedOnRows,
    /// The store continues reading after the last `seq` it read, instead of selecting pending events.
    CursorOverSeq,
    /// The store returns an event while an older one of its aggregate backs off.
    OlderEventIgnored,
    /// The store reads uncommitted events.
    DirtyRead,
    /// The relay never polls.
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
}
