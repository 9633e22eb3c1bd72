//! The result of a soak, with safety and liveness judged apart.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::sometimes::Reached;
use crate::Verdict;
use crate::cancelling_load::Sent;
use crate::lab::Published;
use crate::reconciliation::{Ending, Kind, Reconciliation};

pub(crate) struct SoakResult {
    pub(crate) sent: Sent,
    /// Cancellations that were answered with 200, and did not happen.
    pub(crate) lost_cancellations: u64,
    /// How often each fault was injected.
    pub(crate) faults: Vec<(&'static str, u32)>,
    /// Copies that the soak itself has published.
    pub(crate) republished: u64,
    /// How many dead letters there were at the end, with those behind others.
    pub(crate) dead_letters: usize,
    /// How many of them were set aside only because they were tried until a limit.
    pub(crate) given_up: u64,
    /// Cancellations that a consumer applied before the creation of their order.
    pub(crate) overtaken: u64,
    /// How many dead letters a replay applied after the repair, and how many were discarded.
    pub(crate) replayed: usize,
    pub(crate) discarded: usize,
    /// Those of the discarded that are not the bad messages that the soak has sent.
    pub(crate) foreign: usize,
    /// What the broker received.
    pub(crate) published: Published,
    /// How the wait for the end ended.
    pub(crate) ending: Ending,
    pub(crate) reconciliation: Reconciliation,
    pub(crate) reached: Vec<Reached>,
}

/// A figure of the block, and what it counts.
type Figure = (&'static str, u64, &'static str);

impl SoakResult {
    /// The block that RabbitMQ's Jepsen suite prints, for orders.
    pub(crate) fn figures(&self) -> [Figure; 7] {
        let found = &self.reconciliation;
        let unexpected = [Kind::Phantom, Kind::WrongSum].map(|kind| found.count_everywhere(kind));
        [
            ("attempts", self.sent.orders.sent, "orders that were sent"),
            ("acknowledged", self.sent.orders.accepted, "of them answered with 201"),
            (
                "lost",
                found.count(Kind::Missing, "orders") + self.lost_cancellations,
                "acknowledged, and not there",
            ),
            ("duplicated", found.count_everywhere(Kind::Doubled), "effects that happened more than once"),
            (
                "unexpected",
                unexpected.iter().sum::<u64>()
                    + self.published.out_of_order.len() as u64
                    + self.overtaken
                    + self.given_up
                    + self.foreign as u64,
                "without a cause, with a wrong sum, out of order, or set aside without a defect",
            ),
            (
                "recovered",
                found.orders.saturating_sub(found.acknowledged),
                "orders that exist although their answer was lost",
            ),
            (
                "unfinished",
                found.in_progress()
                    + found.parked
                    + (found.count_everywhere(Kind::Missing) - found.count(Kind::Missing, "orders")),
                "still in progress, long after everything was repaired",
            ),
        ]
    }

    /// Copies that a crash or a lost connection has caused.
    pub(crate) fn copies(&self) -> u64 {
        self.published.copies.saturating_sub(self.republished)
    }

    pub(crate) fn fault_count(&self) -> u32 {
        self.faults.iter().map(|(_, count)| count).sum()
    }

    /// Safety, liveness, and whether anything was proven.
    pub(crate) fn judge(&self) -> (Verdict, String) {
        let figure = |name: &str| {
            let found = self.figures().into_iter().find(|(known, ..)| *known == name);
            found.map_or(0, |(_, value, _)| value)
        };
        let safe = figure("lost") + figure("duplicated") + figure("unexpected") == 0;
        let live = figure("unfinished") == 0;
        if let (true, Ending::InProgress(why)) = (safe, &self.ending) {
            return (Verdict::Inconclusive, format!("safety held; still in progress: {why}"));
        }
        let word = |held: bool| if held { "held" } else { "BROKEN" };
        let both = format!("safety {}, liveness {}", word(safe), word(live));
        if !safe || !live {
            return (Verdict::Broken, both);
        }
        let proven = self.copies() > 0
            && self.fault_count() > 0
            && !self.sent.cancelled.is_empty()
            && self.replayed > 0;
        if !proven {
            return (
                Verdict::Inconclusive,
                format!("{both}; but no event was published twice, or none was set aside"),
            );
        }
        let never: Vec<_> = self
            .reached
            .iter()
            .filter(|state| state.expected && state.times == 0)
            .map(|never| never.state)
            .collect();
        if !never.is_empty() {
            let reason =
                format!("{both}; but it proves nothing about what was never reached: {}", never.join(", "));
            return (Verdict::Inconclusive, reason);
        }
        (Verdict::Held, both)
    }

    pub(crate) fn document(&self) -> Value {
        let faults: BTreeMap<_, _> = self.faults.iter().copied().collect();
        let figures: BTreeMap<_, _> =
            self.figures().into_iter().map(|(name, value, _)| (name, value)).collect();
        json!({
            "figures": figures, "faults": faults, "cancelled": self.sent.cancelled.len(), "deadLetters": self.dead_letters, "givenUp": self.given_up,
            "overtaken": self.overtaken, "replayed": self.replayed, "discarded": self.discarded,
            "messages": self.published.messages, "copies": self.copies(),
            "outOfOrder": self.published.out_of_order, "reached": self.reached, "reconciliation": self.reconciliation,
        })
    }
}
