/// A protection taken away, to see that the judge notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The publisher reports messages as confirmed that it has not sent yet.
    MarkBeforeConfirm,
    /// The publisher takes silence for a confirm.
    ConfirmsOff,
    /// The publisher takes a message for returned only if its own confirm carries the return.
    ReturnTrustedToItsConfirm,
    /// The publisher trusts acks although some answers of the batch are missing, and returns with them.
    SilenceIgnored,
    /// Each attempt after the first gives the event a new id.
    NewIdPerAttempt,
    /// The consumer acknowledges what it has not applied.
    AckBeforeCommit,
    /// The inbox commits "processed" before the effect.
    DedupeOutsideTransaction,
    /// All instances of a service consume at the same time.
    CompetingConsumers,
    /// The store locks the event rows that it finds free, not lanes.
    SkipLockedOnRows,
    /// The store reads from where it stopped, not by what is owed.
    CursorOverSeq,
    /// The store hands out an event while an older one of its aggregate waits for another attempt.
    OlderEventIgnored,
    /// The store reads what is not committed yet.
    DirtyRead,
    /// The relay never polls.
    WokenOnly,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::MarkBeforeConfirm,
        Self::ConfirmsOff,
        Self::ReturnTrustedToItsConfirm,
        Self::SilenceIgnored,
        Self::NewIdPerAttempt,
        Self::AckBeforeCommit,
        Self::DedupeOutsideTransaction,
        Self::CompetingConsumers,
        Self::SkipLockedOnRows,
        Self::CursorOverSeq,
        Self::OlderEventIgnored,
        Self::DirtyRead,
        Self::WokenOnly,
    ];
}
