use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::envelope::{Data, MAX_TEXT, check_length, check_subject};

/// The most lines of an order.
const MAX_LINES: usize = 100;

/// The most characters of a stock keeping unit.
pub(crate) const MAX_SKU: usize = 32;

/// How many letters a currency has.
const CURRENCY: usize = 3;

/// `OrderCreated`, version 1: an order was accepted. A complete snapshot, so that a reader needs no further request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderCreated {
    /// The order; the same as the envelope's `subject`.
    pub order_id: Uuid,
    /// The customer who placed the order.
    pub customer_id: Uuid,
    /// The lines of the order, as they were in the request. Never empty.
    #[schemars(length(min = 1, max = MAX_LINES))]
    pub lines: Vec<Line>,
    /// The sum of quantity times unit price over all lines.
    pub total: Money,
}

/// One line of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// The product's stock keeping unit.
    #[schemars(length(max = MAX_SKU))]
    pub sku: String,
    /// How many pieces; at least one.
    #[schemars(range(min = 1))]
    pub quantity: i32,
    /// The price of one piece when the order was placed, in minor units (cents) of the total's currency.
    #[schemars(range(min = 1))]
    pub unit_price: i64,
}

/// An amount of money: an integer in minor units, and its ISO 4217 currency. Never a float.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Money {
    /// In minor units: 1250 is 12.50.
    pub amount: i64,
    /// Three letters, for example `EUR`.
    #[schemars(length(max = CURRENCY))]
    pub currency: String,
}

impl Money {
    pub(crate) fn check(&self) -> Result<(), String> {
        check_length("currency", self.currency.chars().count(), CURRENCY)
    }
}

impl OrderCreated {
    /// The sum of the lines in minor units; `None` when it does not fit.
    pub fn sum(lines: &[Line]) -> Option<i64> {
        lines.iter().try_fold(0_i64, |sum, line| {
            sum.checked_add(line.unit_price.checked_mul(i64::from(line.quantity))?)
        })
    }
}

impl Data for OrderCreated {
    const TYPE: &'static str = "OrderCreated";
    const SOURCE: &'static str = "/orders";
    const AGGREGATE: &'static str = "order";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("orderId", self.order_id, subject)?;
        if self.lines.is_empty() {
            return Err("an order has at least one line".into());
        }
        check_length("lines", self.lines.len(), MAX_LINES)?;
        self.total.check()?;
        for line in &self.lines {
            check_length("sku", line.sku.chars().count(), MAX_SKU)?;
        }
        if let Some(line) = self.lines.iter().find(|line| line.quantity < 1 || line.unit_price < 1) {
            return Err(format!("line {}: quantity and unitPrice are at least 1", line.sku));
        }
        if Self::sum(&self.lines) != Some(self.total.amount) {
            return Err(format!("the lines do not add up to the total {}", self.total.amount));
        }
        Ok(())
    }
}

/// `OrderConfirmed`, version 1: the stock is reserved and the customer is charged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderConfirmed {
    /// The order; the same as the envelope's `subject`.
    pub order_id: Uuid,
}

impl Data for OrderConfirmed {
    const TYPE: &'static str = "OrderConfirmed";
    const SOURCE: &'static str = "/orders";
    const AGGREGATE: &'static str = "order";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("orderId", self.order_id, subject)
    }
}

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
    #[schemars(length(max = MAX_TEXT))]
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
    const SOURCE: &'static str = "/orders";
    const AGGREGATE: &'static str = "order";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("orderId", self.order_id, subject)?;
        check_length("detail", self.detail.chars().count(), MAX_TEXT)
    }
}

/// `OrderCancelled`, version 1: no longer written. Still read, because old events may be replayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderCancelledV1 {
    /// The order; the same as the envelope's `subject`.
    pub order_id: Uuid,
    /// Why, for people. Readers do not decide by it.
    #[schemars(length(max = MAX_TEXT))]
    pub reason: String,
}

impl Data for OrderCancelledV1 {
    const TYPE: &'static str = OrderCancelled::TYPE;
    const SOURCE: &'static str = OrderCancelled::SOURCE;
    const AGGREGATE: &'static str = OrderCancelled::AGGREGATE;

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("orderId", self.order_id, subject)?;
        check_length("reason", self.reason.chars().count(), MAX_TEXT)
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
