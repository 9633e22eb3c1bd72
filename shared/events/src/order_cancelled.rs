use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::body::{Data, same};

/// `OrderCancelled`, version 2: an order that had been accepted is off. What was done for it is undone by whoever did
/// it: the event says that, not how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderCancelled {
    /// The order; the same as the envelope's `subject`.
    pub order_id: Uuid,
    /// Why, for programs: `customer`, `outOfStock`, `paymentDeclined` or `timedOut`. More may follow, and a reader takes
    /// what it does not know for some other cause: a cancellation is a cancellation.
    #[schemars(with = "String", extend("examples" = ["customer", "outOfStock", "paymentDeclined", "timedOut"]))]
    pub cause: Cause,
    /// Why, for people.
    pub detail: String,
}

/// Why an order is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// Whoever ordered has changed their mind.
    Customer,
    /// There was too little of something.
    OutOfStock,
    /// There was no money.
    PaymentDeclined,
    /// Inventory or billing did not answer in time.
    TimedOut,
    /// One that a newer writer knows.
    #[serde(other)]
    Other,
}

impl Cause {
    /// What it is called in the event, for tables and for answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Customer => "customer",
            Self::OutOfStock => "outOfStock",
            Self::PaymentDeclined => "paymentDeclined",
            Self::TimedOut => "timedOut",
            Self::Other => "other",
        }
    }
}

impl Data for OrderCancelled {
    const TYPE: &'static str = "OrderCancelled";
    const VERSION: i16 = 2;

    fn check(&self, subject: Uuid) -> Result<(), String> {
        same("orderId", self.order_id, subject)
    }
}

/// `OrderCancelled`, version 1: nobody writes it any more, and whoever replays history still reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderCancelledV1 {
    /// The order; the same as the envelope's `subject`.
    pub order_id: Uuid,
    /// Why, for people: readers do the same whatever it says.
    pub reason: String,
}

impl Data for OrderCancelledV1 {
    const TYPE: &'static str = OrderCancelled::TYPE;

    fn check(&self, subject: Uuid) -> Result<(), String> {
        same("orderId", self.order_id, subject)
    }
}

impl From<OrderCancelledV1> for OrderCancelled {
    /// In the days of version 1 only customers could take an order back.
    fn from(old: OrderCancelledV1) -> Self {
        Self { order_id: old.order_id, cause: Cause::Customer, detail: old.reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_called_the_same_in_an_event_and_in_a_table() {
        for cause in
            [Cause::Customer, Cause::OutOfStock, Cause::PaymentDeclined, Cause::TimedOut, Cause::Other]
        {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
        }
    }
}
