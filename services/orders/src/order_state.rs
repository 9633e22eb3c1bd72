//! The life of an order, as one table of the moves that there are.

use std::{fmt, str::FromStr};

/// Where an order is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Accepted. Nobody has answered yet.
    Pending,
    /// The goods are put aside; the money is still to come.
    Reserved,
    /// The money is there; the goods are still to be put aside.
    Paid,
    /// Both have said yes.
    Confirmed,
    /// It is off, for good.
    Cancelled,
}

/// What can happen to an order. Six of these are answers of other services, and come as events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// Inventory has put everything aside.
    StockReserved,
    /// Inventory has too little.
    StockRejected,
    /// Inventory has put it back.
    StockReleased,
    /// Billing has the money.
    PaymentCaptured,
    /// Billing did not get it.
    PaymentDeclined,
    /// Billing has given it back.
    PaymentRefunded,
    /// Whoever ordered has changed their mind.
    CustomerCancels,
    /// The answers did not come in time.
    WaitedTooLong,
}

use Happening::{
    CustomerCancels, PaymentCaptured, PaymentDeclined, PaymentRefunded, StockRejected, StockReleased,
    StockReserved, WaitedTooLong,
};
use State::{Cancelled, Confirmed, Paid, Pending, Reserved};

/// Every move that there is. What does not stand here cannot happen: an answer that would need another move contradicts
/// an earlier one, and is set aside for somebody to look at.
pub const MOVES: [(State, Happening, State); 21] = [
    // Inventory and billing answer in any order. The second yes confirms.
    (Pending, StockReserved, Reserved),
    (Pending, PaymentCaptured, Paid),
    (Reserved, PaymentCaptured, Confirmed),
    (Paid, StockReserved, Confirmed),
    // The first no cancels; whoever has said yes hears of it, and takes back what it did.
    (Pending, StockRejected, Cancelled),
    (Paid, StockRejected, Cancelled),
    (Pending, PaymentDeclined, Cancelled),
    (Reserved, PaymentDeclined, Cancelled),
    // An order may be taken back at any time, also when it is confirmed: nothing is ever sent here.
    (Pending, CustomerCancels, Cancelled),
    (Reserved, CustomerCancels, Cancelled),
    (Paid, CustomerCancels, Cancelled),
    (Confirmed, CustomerCancels, Cancelled),
    (Pending, WaitedTooLong, Cancelled),
    (Reserved, WaitedTooLong, Cancelled),
    (Paid, WaitedTooLong, Cancelled),
    // Answers that were on their way when the order was cancelled. They are written down and change nothing: their
    // services undo them when they hear of the cancellation.
    (Cancelled, StockReserved, Cancelled),
    (Cancelled, StockRejected, Cancelled),
    (Cancelled, PaymentCaptured, Cancelled),
    (Cancelled, PaymentDeclined, Cancelled),
    // What was done for it is undone.
    (Cancelled, StockReleased, Cancelled),
    (Cancelled, PaymentRefunded, Cancelled),
];

impl State {
    /// All of them.
    pub const ALL: [Self; 5] = [Pending, Reserved, Paid, Confirmed, Cancelled];

    /// Where an order is after something has happened to it; `None` if that cannot happen to it.
    pub fn after(self, happening: Happening) -> Option<Self> {
        MOVES.into_iter().find(|(from, what, _)| (*from, *what) == (self, happening)).map(|(_, _, to)| to)
    }

    /// Where an order has to be for something to happen to it: for the `where` of a statement that makes the move.
    pub fn before(happening: Happening) -> Vec<String> {
        MOVES
            .into_iter()
            .filter(|(_, what, _)| *what == happening)
            .map(|(from, ..)| from.to_string())
            .collect()
    }

    /// What the column `orders.status` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Pending => "pending",
            Reserved => "reserved",
            Paid => "paid",
            Confirmed => "confirmed",
            Cancelled => "cancelled",
        }
    }

    /// What clients are told: whether it is open, confirmed or cancelled. Who has answered what stands in the history.
    pub const fn public_name(self) -> &'static str {
        match self {
            Pending | Reserved | Paid => "pending",
            Confirmed => "confirmed",
            Cancelled => "cancelled",
        }
    }

    /// Who is still to answer.
    pub fn waiting_for(self) -> &'static [&'static str] {
        match self {
            Pending => &["inventory", "billing"],
            Reserved => &["billing"],
            Paid => &["inventory"],
            Confirmed | Cancelled => &[],
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for State {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|state| state.name() == name);
        known.ok_or_else(|| format!("no order can be {name:?}"))
    }
}

impl Happening {
    /// All of them.
    pub const ALL: [Self; 8] = [
        StockReserved,
        StockRejected,
        StockReleased,
        PaymentCaptured,
        PaymentDeclined,
        PaymentRefunded,
        CustomerCancels,
        WaitedTooLong,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_two_answers_to_one_question() {
        for (number, (from, what, _)) in MOVES.iter().enumerate() {
            let again = MOVES[number + 1..].iter().any(|(f, w, _)| (f, w) == (from, what));
            assert!(!again, "{from} and {what:?} stand there twice");
        }
    }

    #[test]
    fn nothing_brings_a_cancelled_order_back() {
        for happening in Happening::ALL {
            assert!(matches!(Cancelled.after(happening), None | Some(Cancelled)), "{happening:?}");
        }
    }

    /// Whatever comes, in whatever order: two yeses confirm, a no cancels, and the answers of one side never depend on
    /// whether the other side was quicker.
    #[test]
    fn the_end_does_not_depend_on_who_answers_first() {
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
    fn a_state_is_called_the_same_by_the_table_and_by_the_code() {
        for state in State::ALL {
            assert_eq!(state.name().parse(), Ok(state));
        }
        assert!("shipped".parse::<State>().is_err());
    }
}
