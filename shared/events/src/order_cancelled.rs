use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::body::{Data, check_subject};

/// `OrderCancelled`, version 2: an accepted order was cancelled. Each service undoes what it did for the order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderCancelled {
    /// The order; the same as the envelope's `subject`.
    pub order_id: Uuid,
    /// Why, for programs: `customer`, `outOfStock`, `paymentDeclined` or `timedOut`. More may be added: a reader treats
    /// an unknown cause as some other cause, and the order as cancelled.
    #[schemars(with = "String", extend("examples" = ["customer", "outOfStock", "paymentDeclined", "timedOut"]))]
    pub cause: Cause,
    /// Why, for people.
    pub detail: String,
}

/// Why an order was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// The customer cancelled the order.
    Customer,
    /// Inventory had too little of a product.
    OutOfStock,
    /// The customer could not be charged.
    PaymentDeclined,
    /// Inventory or billing did not answer in time.
    TimedOut,
    /// A cause that only newer writers know.
    #[serde(other)]
    Other,
}

impl Cause {
    /// The cause's name in events, tables and HTTP answers.
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
        check_subject("orderId", self.order_id, subject)
    }
}

/// `OrderCancelled`, version 1: no longer written. Still read, because old events may be replayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderCancelledV1 {
    /// The order; the same as the envelope's `subject`.
    pub order_id: Uuid,
    /// Why, for people. Readers do not decide by it.
    pub reason: String,
}

impl Data for OrderCancelledV1 {
    const TYPE: &'static str = OrderCancelled::TYPE;

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("orderId", self.order_id, subject)
    }
}

impl From<OrderCancelledV1> for OrderCancelled {
    /// While version 1 was written, only customers could cancel an order.
    fn from(old: OrderCancelledV1) -> Self {
        Self { order_id: old.order_id, cause: Cause::Customer, detail: old.reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_has_the_same_name_in_events_and_in_tables() {
        for cause in
            [Cause::Customer, Cause::OutOfStock, Cause::PaymentDeclined, Cause::TimedOut, Cause::Other]
        {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
        }
    }
}
