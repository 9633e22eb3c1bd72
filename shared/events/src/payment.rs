//! What billing answers. A payment is an aggregate of its own: its id is the `subject`, its versions are the `sequence`,
//! and the order that it is for stands in the body.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Money,
    body::{Data, same},
};

/// `PaymentCaptured`, version 1: the customer has been charged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PaymentCaptured {
    /// The payment; the same as the envelope's `subject`.
    pub payment_id: Uuid,
    /// The order that it is for.
    pub order_id: Uuid,
    /// How much.
    pub amount: Money,
    /// What the payment provider calls it.
    pub charge_id: Uuid,
}

/// `PaymentDeclined`, version 1: the customer could not be charged, and was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PaymentDeclined {
    /// The payment that did not come about; the same as the envelope's `subject`.
    pub payment_id: Uuid,
    /// The order that it would have been for.
    pub order_id: Uuid,
    /// Why, for people.
    pub reason: String,
}

/// `PaymentRefunded`, version 1: the customer has got the money back, because the order is off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PaymentRefunded {
    /// The payment; the same as the envelope's `subject`.
    pub payment_id: Uuid,
    /// The order that it was for.
    pub order_id: Uuid,
    /// How much: all of it.
    pub amount: Money,
    /// What the payment provider calls it.
    pub refund_id: Uuid,
}

impl Data for PaymentCaptured {
    const TYPE: &'static str = "PaymentCaptured";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        same("paymentId", self.payment_id, subject)?;
        positive(&self.amount)
    }
}

impl Data for PaymentDeclined {
    const TYPE: &'static str = "PaymentDeclined";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        same("paymentId", self.payment_id, subject)
    }
}

impl Data for PaymentRefunded {
    const TYPE: &'static str = "PaymentRefunded";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        same("paymentId", self.payment_id, subject)?;
        positive(&self.amount)
    }
}

fn positive(amount: &Money) -> Result<(), String> {
    if amount.amount > 0 { Ok(()) } else { Err(format!("an amount of {}", amount.amount)) }
}
