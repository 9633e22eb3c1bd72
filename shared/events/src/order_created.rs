use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::body::{Data, check_subject};

/// `OrderCreated`, version 1: an order was accepted. A complete snapshot, so that a reader needs no further request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderCreated {
    /// The order; the same as the envelope's `subject`.
    pub order_id: Uuid,
    /// The customer who placed the order.
    pub customer_id: Uuid,
    /// The lines of the order, as they were in the request. Never empty.
    #[schemars(length(min = 1))]
    pub lines: Vec<Line>,
    /// The sum of quantity times unit price over all lines.
    pub total: Money,
}

/// One line of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// The product's stock keeping unit.
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
    /// Three letters, such as `EUR`.
    pub currency: String,
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

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("orderId", self.order_id, subject)?;
        if self.lines.is_empty() {
            return Err("an order has at least one line".into());
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
