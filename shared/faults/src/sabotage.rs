/// A protection that can be switched off, to see that its absence is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// The relay marks events as published, commits, and publishes afterwards.
    MarkBeforeConfirm,
    /// The consumer acknowledges a group before it is applied.
    AckBeforeCommit,
    /// The publisher does not ask for confirms, and takes a message that it has written to the socket for published.
    ConfirmsOff,
    /// The publisher does not ask for messages back that no queue is bound for.
    UnroutableIgnored,
    /// The publisher takes a message for returned only if its own confirm carries the return.
    ReturnTrustedToItsConfirm,
    /// The relay reads from where it stopped (`seq > last`), not by what is owed.
    CursorOverSeq,
    /// The relay locks the event rows that it finds free, instead of lanes.
    SkipLockedOnRows,
    /// The relay waits for a wake-up and never polls.
    WokenOnly,
    /// The relay is woken before the order is committed.
    WakeBeforeCommit,
    /// Each attempt to publish gives the event a new id.
    NewIdPerAttempt,
    /// The inbox commits "processed" before the effect is written.
    DedupeOutsideTransaction,
    /// Processed events are forgotten while their event can still be published again.
    ShortMemory,
    /// A message that can never be applied is given back to its queue.
    NackForPoison,
    /// No dead letters, and hundreds of messages in hand when the process crashes again and again.
    CrashLoopWithoutDeadLetters,
    /// The order is written as `begin; insert; insert; commit`, and connections come back unasked.
    CancellableBegin,
    /// The order and its event are two commits.
    DualWrite,
    /// `NOTIFY` runs in the order's own transaction.
    NotifyInTransaction,
    /// The payment provider is asked without an idempotency key.
    ChargeWithoutKey,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::MarkBeforeConfirm,
        Self::AckBeforeCommit,
        Self::ConfirmsOff,
        Self::UnroutableIgnored,
        Self::ReturnTrustedToItsConfirm,
        Self::CursorOverSeq,
        Self::SkipLockedOnRows,
        Self::WokenOnly,
        Self::WakeBeforeCommit,
        Self::NewIdPerAttempt,
        Self::DedupeOutsideTransaction,
        Self::ShortMemory,
        Self::NackForPoison,
        Self::CrashLoopWithoutDeadLetters,
        Self::CancellableBegin,
        Self::DualWrite,
        Self::NotifyInTransaction,
        Self::ChargeWithoutKey,
    ];

    /// What `DRILL_SABOTAGE` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MarkBeforeConfirm => "mark-before-confirm",
            Self::AckBeforeCommit => "ack-before-commit",
            Self::ConfirmsOff => "confirms-off",
            Self::UnroutableIgnored => "unroutable-ignored",
            Self::ReturnTrustedToItsConfirm => "return-trusted-to-its-confirm",
            Self::CursorOverSeq => "cursor-over-seq",
            Self::SkipLockedOnRows => "skip-locked-on-rows",
            Self::WokenOnly => "woken-only",
            Self::WakeBeforeCommit => "wake-before-commit",
            Self::NewIdPerAttempt => "new-id-per-attempt",
            Self::DedupeOutsideTransaction => "dedupe-outside-transaction",
            Self::ShortMemory => "short-memory",
            Self::NackForPoison => "nack-for-poison",
            Self::CrashLoopWithoutDeadLetters => "crash-loop-without-dead-letters",
            Self::CancellableBegin => "cancellable-begin",
            Self::DualWrite => "dual-write",
            Self::NotifyInTransaction => "notify-in-transaction",
            Self::ChargeWithoutKey => "charge-without-key",
        }
    }
}
