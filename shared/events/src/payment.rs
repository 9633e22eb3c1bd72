//! The events of billing. A payment is its own aggregate: its id is the `subject`, its versions are the
//! `sequence`, and the body names the order.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Money,
    envelope::{Data, check_subject},
};

/// `PaymentCaptured`, version 1: the customer was charged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PaymentCaptured {
    /// The payment; the same as the envelope's `subject`.
    pub payment_id: Uuid,
    /// The order that the payment is for.
    pub order_id: Uuid,
    /// The charged amount.
    pub amount: Money,
    /// The payment provider's id of the charge.
    pub charge_id: Uuid,
}

/// `PaymentDeclined`, version 1: the customer could not be charged, and was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PaymentDeclined {
    /// The declined payment; the same as the envelope's `subject`.
    pub payment_id: Uuid,
    /// The order that the payment would have been for.
    pub order_id: Uuid,
    /// Why, for people.
    pub reason: String,
}

/// `PaymentRefunded`, version 1: the customer was refunded, because the order was cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PaymentRefunded {
    /// The payment; the same as the envelope's `subject`.
    pub payment_id: Uuid,
    /// The order that the payment was for.
    pub order_id: Uuid,
    /// The refunded amount: always the whole payment.
    pub amount: Money,
    /// The payment provider's id of the refund.
    pub refund_id: Uuid,
}

impl Data for PaymentCaptured {
    const TYPE: &'static str = "PaymentCaptured";
    const SOURCE: &'static str = "/billing";
    const AGGREGATE: &'static str = "payment";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("paymentId", self.payment_id, subject)?;
        check_positive(&self.amount)
    }
}

impl Data for PaymentDeclined {
    const TYPE: &'static str = "PaymentDeclined";
    const SOURCE: &'static str = "/billing";
    const AGGREGATE: &'static str = "payment";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("paymentId", self.payment_id, subject)
    }
}

impl Data for PaymentRefunded {
    const TYPE: &'static str = "PaymentRefunded";
    const SOURCE: &'static str = "/billing";
    const AGGREGATE: &'static str = "payment";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("paymentId", self.payment_id, subject)?;
        check_positive(&self.amount)
    }
}

fn check_positive(amount: &Money) -> Result<(), String> {
    if amount.amount > 0 { Ok(()) } else { Err(format!("the amount {} is not positive", amount.amount)) }
}
