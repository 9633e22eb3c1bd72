//! What the page is told, twice a second.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::reconciliation::{Kind, Reconciliation};

/// Everything that the page shows. What could not be read is `null`, never zero.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Snapshot {
    /// Milliseconds since 1970.
    pub(crate) at: u64,
    /// `orders`, `inventory`, `billing`, `provider`, `broker` and `database`.
    pub(crate) parts: BTreeMap<&'static str, PartState>,
    /// Each service's metrics, summed over labels that the page does not show.
    pub(crate) metrics: BTreeMap<&'static str, Option<BTreeMap<String, f64>>>,
    pub(crate) reconciliation: Option<Summary>,
    /// Since when the reconciliation could not be read, in milliseconds since 1970, and why.
    pub(crate) unreadable_since: Option<u64>,
    pub(crate) unreadable_because: Option<String>,
    /// Orders per second that the board places.
    pub(crate) load: u32,
    /// Whether the board can kill and freeze. Otherwise it shows the line to copy.
    pub(crate) can_act: bool,
    /// Whether it can start other systems, for the twin and for step mode.
    pub(crate) has_processes: bool,
    pub(crate) fault: Option<super::faults::FaultState>,
    pub(crate) twin: Option<super::twin::TwinState>,
    pub(crate) steps: super::steps::StepsState,
}

/// Whether a part works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PartState {
    Up,
    /// It has no process.
    Down,
    /// It has a process and does not answer.
    Frozen,
    Unknown,
}

/// The reconciliation in the numbers of one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    /// When it was read, in milliseconds since 1970, and how long that took.
    pub(crate) at: u64,
    pub(crate) milliseconds: u64,
    pub(crate) acknowledged: u64,
    pub(crate) orders: u64,
    pub(crate) confirmed: u64,
    pub(crate) cancelled: u64,
    pub(crate) open: u64,
    pub(crate) in_progress: u64,
    pub(crate) set_aside: u64,
    /// Findings that no wait can repair, by kind.
    pub(crate) missing: u64,
    pub(crate) doubled: u64,
    pub(crate) phantom: u64,
    pub(crate) wrong_sums: u64,
    pub(crate) out_of_order: u64,
    /// The first finding in words.
    pub(crate) first_finding: Option<String>,
    pub(crate) charged: i64,
    pub(crate) refunded: i64,
    pub(crate) confirmed_total: i64,
    pub(crate) reserved: i64,
    pub(crate) confirmed_pieces: i64,
}

impl Summary {
    /// `idle`: no message is on its way to a consumer, and none is being applied. Until then, or while the system is not
    /// quiescent, an effect that is missing may still arrive.
    pub(crate) fn new(read: &Reconciliation, idle: bool, at: u64, milliseconds: u64) -> Self {
        let done = idle && read.in_progress() == 0;
        let certain = |kind| {
            let found =
                read.findings.iter().filter(|found| found.kind == kind && (done || !found.may_arrive()));
            found.map(|found| found.count).sum()
        };
        let first = read.findings.iter().find(|found| done || !found.may_arrive());
        Self {
            at,
            milliseconds,
            acknowledged: read.acknowledged,
            orders: read.orders,
            confirmed: read.confirmed,
            cancelled: read.cancelled,
            open: read.open,
            in_progress: read.in_progress(),
            set_aside: read.waiting_for_operator(),
            missing: certain(Kind::Missing),
            doubled: certain(Kind::Doubled),
            phantom: certain(Kind::Phantom),
            wrong_sums: certain(Kind::WrongSum),
            out_of_order: certain(Kind::OutOfOrder),
            first_finding: first.map(|found| {
                format!(
                    "{}: {} ({})",
                    found.place,
                    found.what,
                    found.first.first().map_or("", String::as_str)
                )
            }),
            charged: read.charged,
            refunded: read.refunded,
            confirmed_total: read.confirmed_total,
            reserved: read.reserved,
            confirmed_pieces: read.confirmed_pieces,
        }
    }
}
