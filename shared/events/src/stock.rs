//! What inventory answers. A reservation is an aggregate of its own: its id is the `subject`, its versions are the
//! `sequence`, and the order that it is for stands in the body.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::body::{Data, same};

/// `StockReserved`, version 1: all that was ordered is put aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StockReserved {
    /// The reservation; the same as the envelope's `subject`.
    pub reservation_id: Uuid,
    /// The order that it is for.
    pub order_id: Uuid,
}

/// `StockRejected`, version 1: there is too little of something, and nothing is put aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StockRejected {
    /// The reservation that did not come about; the same as the envelope's `subject`.
    pub reservation_id: Uuid,
    /// The order that it would have been for.
    pub order_id: Uuid,
    /// The first product of which there is too little.
    pub sku: String,
    /// How many pieces were asked for.
    #[schemars(range(min = 1))]
    pub wanted: i64,
    /// How many there were, at that moment.
    #[schemars(range(min = 0))]
    pub available: i64,
}

/// `StockReleased`, version 1: what was put aside is back, because the order is off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StockReleased {
    /// The reservation; the same as the envelope's `subject`.
    pub reservation_id: Uuid,
    /// The order that it was for.
    pub order_id: Uuid,
}

impl Data for StockReserved {
    const TYPE: &'static str = "StockReserved";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        same("reservationId", self.reservation_id, subject)
    }
}

impl Data for StockRejected {
    const TYPE: &'static str = "StockRejected";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        same("reservationId", self.reservation_id, subject)?;
        if self.wanted > self.available {
            Ok(())
        } else {
            Err(format!("{} of {} were wanted, and {} are there", self.wanted, self.sku, self.available))
        }
    }
}

impl Data for StockReleased {
    const TYPE: &'static str = "StockReleased";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        same("reservationId", self.reservation_id, subject)
    }
}
