//! Variants of the order write and of the relay.

use clap::ValueEnum;

/// A way to write an order, or to publish its event, that is often seen, to replace the order service's (`lab/variants`,
/// `docs/variants.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// Commit the order, then publish its event.
    DualWrite,
    /// Publish the event, then commit the order.
    PublishThenCommit,
    /// The outbox, but with `NOTIFY` in the order's own transaction.
    NotifyInTransaction,
    /// The outbox, but with `BEGIN` on connections that are returned unchecked.
    CancellableBegin,
    /// The outbox, but the relay is woken before the commit.
    WakeBeforeCommit,
    /// A relay that polls each second, and publishes and marks one event at a time.
    PollOneByOne,
    /// A relay that locks events, where the service's locks lanes.
    RowLocks,
    /// The same, which deletes events once they are published.
    DeleteOncePublished,
    /// A relay that a trigger wakes, with NOTIFY for each row in the order's transaction.
    TriggerNotify,
    /// The same, which does nothing unless it is woken.
    ListenAlone,
}

impl Variant {
    /// The name on the command line and for `orders-variant`.
    pub fn name(self) -> &'static str {
        match self {
            Self::DualWrite => "dual-write",
            Self::PublishThenCommit => "publish-then-commit",
            Self::NotifyInTransaction => "notify-in-transaction",
            Self::CancellableBegin => "cancellable-begin",
            Self::WakeBeforeCommit => "wake-before-commit",
            Self::PollOneByOne => "poll-one-by-one",
            Self::RowLocks => "row-locks",
            Self::DeleteOncePublished => "delete-once-published",
            Self::TriggerNotify => "trigger-notify",
            Self::ListenAlone => "listen-alone",
        }
    }

    /// A description for the head of a drill, after "replaces the order service".
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::DualWrite => "the order is committed, and then its event is published",
            Self::PublishThenCommit => "the event is published, and then its order is committed",
            Self::NotifyInTransaction => "NOTIFY runs in the transaction that writes the order and its event",
            Self::CancellableBegin => {
                "the order is written with BEGIN on connections that are returned unchecked"
            }
            Self::WakeBeforeCommit => "the relay is woken before the order is committed",
            Self::PollOneByOne => "the relay polls each second, and publishes and marks one event at a time",
            Self::RowLocks => "the relay locks the events themselves, and no lanes",
            Self::DeleteOncePublished => {
                "the relay locks the events themselves, and deletes what it has published"
            }
            Self::TriggerNotify => {
                "a trigger wakes the relay, with NOTIFY for each row in the order's transaction"
            }
            Self::ListenAlone => {
                "a trigger wakes the relay, which does not poll and does not look when it listens again"
            }
        }
    }

    /// Whether its events are in an outbox before they are published.
    pub fn has_outbox(self) -> bool {
        !matches!(self, Self::DualWrite | Self::PublishThenCommit)
    }

    /// Whether its events leave the outbox when they are published.
    pub fn deletes_events(self) -> bool {
        self == Self::DeleteOncePublished
    }
}
