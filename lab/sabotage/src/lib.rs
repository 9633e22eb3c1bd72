//! Services with one protection left out, to see that the checks notice.
//!
//! Each sabotage replaces one whole part of a service (a [`publisher`], a [`store`], a [`handler`], its
//! [`dead_letters`], a payment [`provider`]) by one that delegates to the product's part, except for the step
//! that it leaves out. The programs `orders-lab`, `inventory-lab` and `billing-lab` compose the services from these parts;
//! `SABOTAGE` names the one to replace. Without it they are the services as they are. The order write has variants of its
//! own in `lab/variants`.
//!
//! These programs are also the only ones that arm crash points: see [`crash`].

mod cancels;
pub mod crash;
pub mod dead_letters;
pub mod handler;
pub mod provider;
pub mod publisher;
pub mod row_locks;
mod run;
pub mod store;

pub use run::{LabParts, api};

/// A protection that one of these programs can leave out. `lab/demo/src/lab/sabotage` holds the experiments that detect
/// it; the last three need another clock, a broker that is away, a lost answer, so drills detect them (`docs/drills.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// The publisher reports a batch as confirmed and publishes it only afterwards.
    MarkBeforeConfirm,
    /// The publisher reports a batch as confirmed without waiting for the broker's confirms.
    ConfirmsIgnored,
    /// The publisher reports a returned message as confirmed.
    UnroutableIgnored,
    /// The publisher attributes a return to the message whose confirm carried it.
    ReturnTrustedToItsConfirm,
    /// The publisher gives a message a new id at each attempt.
    NewIdPerAttempt,
    /// The relay reads from where it stopped (`seq > last`), not by state.
    CursorOverSeq,
    /// The relay locks the event rows that it finds free, instead of lanes.
    SkipLockedOnRows,
    /// The consumer acknowledges a group before it is applied.
    AckBeforeCommit,
    /// The consumer commits "processed" before the effect.
    DedupeOutsideTransaction,
    /// A message that can never be applied is tried again and again, and never set aside.
    PoisonNeverSetAside,
    /// Attempts at an event that crashes its consumer are not counted.
    AttemptsNotCounted,
    /// Records of processed events are erased while their events can still be published again.
    ShortMemory,
    /// The payment provider is called without a stable idempotency key.
    ChargeWithoutKey,
    /// The consumer drops events that are too old by the clock of its own machine.
    AgeByOwnClock,
    /// Orders time out although the answers to them may be waiting in the queue.
    LimitByTimeAlone,
    /// A client that tries again counts as another client.
    NewKeyPerAttempt,
    /// The consumer is not told that the broker has ended its subscription.
    CancelIgnored,
    /// Events that no queue wants count as a broker that is too busy: the relay pauses for longer each time.
    RefusalsBackOff,
    /// The relay publishes again although its last marks failed and the next ones will.
    FailedMarksIgnored,
    /// Health calls a database available that answers reads, while all commits hang.
    HangingCommitsIgnored,
}

impl Sabotage {
    pub const ALL: [Self; 20] = [
        Self::MarkBeforeConfirm,
        Self::ConfirmsIgnored,
        Self::UnroutableIgnored,
        Self::ReturnTrustedToItsConfirm,
        Self::NewIdPerAttempt,
        Self::CursorOverSeq,
        Self::SkipLockedOnRows,
        Self::AckBeforeCommit,
        Self::DedupeOutsideTransaction,
        Self::PoisonNeverSetAside,
        Self::AttemptsNotCounted,
        Self::ShortMemory,
        Self::ChargeWithoutKey,
        Self::AgeByOwnClock,
        Self::LimitByTimeAlone,
        Self::NewKeyPerAttempt,
        Self::CancelIgnored,
        Self::RefusalsBackOff,
        Self::FailedMarksIgnored,
        Self::HangingCommitsIgnored,
    ];

    /// The value of `SABOTAGE`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MarkBeforeConfirm => "mark-before-confirm",
            Self::ConfirmsIgnored => "confirms-ignored",
            Self::UnroutableIgnored => "unroutable-ignored",
            Self::ReturnTrustedToItsConfirm => "return-trusted-to-its-confirm",
            Self::NewIdPerAttempt => "new-id-per-attempt",
            Self::CursorOverSeq => "cursor-over-seq",
            Self::SkipLockedOnRows => "skip-locked-on-rows",
            Self::AckBeforeCommit => "ack-before-commit",
            Self::DedupeOutsideTransaction => "dedupe-outside-transaction",
            Self::PoisonNeverSetAside => "poison-never-set-aside",
            Self::AttemptsNotCounted => "attempts-not-counted",
            Self::ShortMemory => "short-memory",
            Self::ChargeWithoutKey => "charge-without-key",
            Self::AgeByOwnClock => "age-by-own-clock",
            Self::LimitByTimeAlone => "limit-by-time-alone",
            Self::NewKeyPerAttempt => "new-key-per-attempt",
            Self::CancelIgnored => "cancel-ignored",
            Self::RefusalsBackOff => "refusals-back-off",
            Self::FailedMarksIgnored => "failed-marks-ignored",
            Self::HangingCommitsIgnored => "hanging-commits-ignored",
        }
    }
}
