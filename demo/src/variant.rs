//! Ways to place an order that are often seen, to be put in the real one's place (`variants/`, `docs/variants.md`).

use clap::ValueEnum;

/// Which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// Commit the order, then publish its event.
    DualWrite,
    /// Publish the event, then commit the order.
    PublishThenCommit,
    /// The outbox as it should be, but with `NOTIFY` in the order's own transaction.
    NotifyInTransaction,
}

impl Variant {
    /// What the command line and `orders-variant` call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::DualWrite => "dual-write",
            Self::PublishThenCommit => "publish-then-commit",
            Self::NotifyInTransaction => "notify-in-transaction",
        }
    }

    /// In words, for the head of a drill.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::DualWrite => "the order is committed, and then its event is published",
            Self::PublishThenCommit => "the event is published, and then its order is committed",
            Self::NotifyInTransaction => "NOTIFY runs in the transaction that writes the order and its event",
        }
    }

    /// Whether what it publishes lies in an outbox before.
    pub fn keeps_outbox(self) -> bool {
        self == Self::NotifyInTransaction
    }
}
