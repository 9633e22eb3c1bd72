//! Variants of the order write.

use clap::ValueEnum;

/// A way to write an order that is often seen, to replace the order service's (`lab/variants`, `docs/variants.md`).
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
        }
    }

    /// A description for the head of a drill.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::DualWrite => "the order is committed, and then its event is published",
            Self::PublishThenCommit => "the event is published, and then its order is committed",
            Self::NotifyInTransaction => "NOTIFY runs in the transaction that writes the order and its event",
            Self::CancellableBegin => {
                "the order is written with BEGIN on connections that are returned unchecked"
            }
            Self::WakeBeforeCommit => "the relay is woken before the order is committed",
        }
    }

    /// Whether its events are in an outbox before they are published.
    pub fn keeps_outbox(self) -> bool {
        !matches!(self, Self::DualWrite | Self::PublishThenCommit)
    }
}
