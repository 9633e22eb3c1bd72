//! The life of an order, as one table of its transitions.

use std::{fmt, str::FromStr};

/// The state of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderState {
    /// Accepted. No service has answered yet.
    Pending,
    /// The stock is reserved; the payment is pending.
    Reserved,
    /// The payment is captured; the reservation is pending.
    Paid,
    /// Both services have answered positively.
    Confirmed,
    /// Final.
    Cancelled,
}

/// What moves an order on. Six of these are answers of other services, and arrive as events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    StockReserved,
    StockRejected,
    StockReleased,
    PaymentCaptured,
    PaymentDeclined,
    PaymentRefunded,
    CustomerCancels,
    /// The answers did not arrive in time.
    WaitedTooLong,
}

use OrderState::{Cancelled, Confirmed, Paid, Pending, Reserved};
use Trigger::{
    CustomerCancels, PaymentCaptured, PaymentDeclined, PaymentRefunded, StockRejected, StockReleased,
    StockReserved, WaitedTooLong,
};

/// Every transition. No other is possible: an answer that would need one contradicts an earlier answer, and becomes a dead
/// letter for an operator.
pub const TRANSITIONS: [(OrderState, Trigger, OrderState); 21] = [
    // Inventory and billing answer in any order. The second positive answer confirms.
    (Pending, StockReserved, Reserved),
    (Pending, PaymentCaptured, Paid),
    (Reserved, PaymentCaptured, Confirmed),
    (Paid, StockReserved, Confirmed),
    // The first negative answer cancels; the other service receives the cancellation and undoes what it did.
    (Pending, StockRejected, Cancelled),
    (Paid, StockRejected, Cancelled),
    (Pending, PaymentDeclined, Cancelled),
    (Reserved, PaymentDeclined, Cancelled),
    // An order can be cancelled at any time, even when it is confirmed: this shop ships nothing.
    (Pending, CustomerCancels, Cancelled),
    (Reserved, CustomerCancels, Cancelled),
    (Paid, CustomerCancels, Cancelled),
    (Confirmed, CustomerCancels, Cancelled),
    (Pending, WaitedTooLong, Cancelled),
    (Reserved, WaitedTooLong, Cancelled),
    (Paid, WaitedTooLong, Cancelled),
    // Answers that were in flight when the order was cancelled. They are recorded and change nothing: their services undo
    // them when they receive the cancellation.
    (Cancelled, StockReserved, Cancelled),
    (Cancelled, StockRejected, Cancelled),
    (Cancelled, PaymentCaptured, Cancelled),
    (Cancelled, PaymentDeclined, Cancelled),
    // The compensations.
    (Cancelled, StockReleased, Cancelled),
    (Cancelled, PaymentRefunded, Cancelled),
];

impl OrderState {
    pub const ALL: [Self; 5] = [Pending, Reserved, Paid, Confirmed, Cancelled];

    /// The state after a trigger; `None` if the transition does not exist.
    pub fn after(self, trigger: Trigger) -> Option<Self> {
        TRANSITIONS.into_iter().find(|(from, what, _)| (*from, *what) == (self, trigger)).map(|(_, _, to)| to)
    }

    /// The states in which a trigger is possible: for the `where` of a statement that makes the transition.
    pub fn before(trigger: Trigger) -> Vec<String> {
        TRANSITIONS
            .into_iter()
            .filter(|(_, what, _)| *what == trigger)
            .map(|(from, ..)| from.to_string())
            .collect()
    }

    /// The value of the column `orders.status`.
    pub const fn name(self) -> &'static str {
        match self {
            Pending => "pending",
            Reserved => "reserved",
            Paid => "paid",
            Confirmed => "confirmed",
            Cancelled => "cancelled",
        }
    }

    /// The status that clients see. The history says which service has answered what.
    pub const fn public_name(self) -> &'static str {
        match self {
            Pending | Reserved | Paid => "pending",
            Confirmed => "confirmed",
            Cancelled => "cancelled",
        }
    }

    /// The services that have not answered yet.
    pub fn waiting_for(self) -> &'static [&'static str] {
        match self {
            Pending => &["inventory", "billing"],
            Reserved => &["billing"],
            Paid => &["inventory"],
            Confirmed | Cancelled => &[],
        }
    }
}

impl fmt::Display for OrderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for OrderState {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|state| state.name() == name);
        known.ok_or_else(|| format!("{name:?} is not a state of an order"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_and_trigger_has_at_most_one_transition() {
        for (number, (from, what, _)) in TRANSITIONS.iter().enumerate() {
            let again = TRANSITIONS[number + 1..].iter().any(|(f, w, _)| (f, w) == (from, what));
            assert!(!again, "{from} and {what:?} are listed twice");
        }
    }

    #[test]
    fn no_transition_leaves_cancelled() {
        for (_, trigger, to) in TRANSITIONS.into_iter().filter(|(from, ..)| *from == Cancelled) {
            assert_eq!(to, Cancelled, "{trigger:?}");
        }
    }

    /// In any order, two positive answers confirm and a negative one cancels.
    #[test]
    fn the_end_does_not_depend_on_which_service_answers_first() {
        for stock in [StockReserved, StockRejected] {
            for payment in [PaymentCaptured, PaymentDeclined] {
                let one = Pending.after(stock).and_then(|state| state.after(payment));
                let other = Pending.after(payment).and_then(|state| state.after(stock));
                assert_eq!(one, other, "{stock:?} and {payment:?}");
                let good = (stock, payment) == (StockReserved, PaymentCaptured);
                assert_eq!(one, Some(if good { Confirmed } else { Cancelled }));
            }
        }
    }

    #[test]
    fn a_state_has_the_same_name_in_the_table_and_in_the_code() {
        for state in OrderState::ALL {
            assert_eq!(state.name().parse(), Ok(state));
        }
        assert!("shipped".parse::<OrderState>().is_err());
    }
}
