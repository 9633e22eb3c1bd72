//! The events with which inventory and billing answer. A reservation and a payment are their own aggregates: its id is the
//! `subject`, its versions are the `sequence`, and the body names the order.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Money,
    envelope::{Data, MAX_TEXT, check_length, check_subject},
    order::MAX_SKU,
};

/// `StockReserved`, version 1: the stock for all lines of an order was reserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StockReserved {
    /// The reservation; the same as the envelope's `subject`.
    pub reservation_id: Uuid,
    /// The order that the reservation is for.
    pub order_id: Uuid,
}

/// `StockRejected`, version 1: inventory has too little of a product. Nothing was reserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StockRejected {
    /// The rejected reservation; the same as the envelope's `subject`.
    pub reservation_id: Uuid,
    /// The order that the reservation would have been for.
    pub order_id: Uuid,
    /// The first product with too little stock.
    #[schemars(length(max = MAX_SKU))]
    pub sku: String,
    /// How many pieces were ordered.
    #[schemars(range(min = 1))]
    pub wanted: i64,
    /// How many pieces were available at that moment.
    #[schemars(range(min = 0))]
    pub available: i64,
}

/// `StockReleased`, version 1: the reserved stock was released, because the order was cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StockReleased {
    /// The reservation; the same as the envelope's `subject`.
    pub reservation_id: Uuid,
    /// The order that the reservation was for.
    pub order_id: Uuid,
}

impl Data for StockReserved {
    const TYPE: &'static str = "StockReserved";
    const SOURCE: &'static str = "/inventory";
    const AGGREGATE: &'static str = "reservation";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("reservationId", self.reservation_id, subject)
    }
}

impl Data for StockRejected {
    const TYPE: &'static str = "StockRejected";
    const SOURCE: &'static str = "/inventory";
    const AGGREGATE: &'static str = "reservation";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("reservationId", self.reservation_id, subject)?;
        check_length("sku", self.sku.chars().count(), MAX_SKU)?;
        if self.wanted > self.available {
            Ok(())
        } else {
            Err(format!("{} of {} were ordered, and {} are available", self.wanted, self.sku, self.available))
        }
    }
}

impl Data for StockReleased {
    const TYPE: &'static str = "StockReleased";
    const SOURCE: &'static str = "/inventory";
    const AGGREGATE: &'static str = "reservation";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("reservationId", self.reservation_id, subject)
    }
}

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
    #[schemars(length(max = MAX_TEXT))]
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
        check_subject("paymentId", self.payment_id, subject)?;
        check_length("reason", self.reason.chars().count(), MAX_TEXT)
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
    amount.check()?;
    if amount.amount > 0 { Ok(()) } else { Err(format!("the amount {} is not positive", amount.amount)) }
}
