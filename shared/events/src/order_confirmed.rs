use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::body::{Data, check_subject};

/// `OrderConfirmed`, version 1: the stock is reserved and the customer is charged. The order will be shipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderConfirmed {
    /// The order; the same as the envelope's `subject`.
    pub order_id: Uuid,
}

impl Data for OrderConfirmed {
    const TYPE: &'static str = "OrderConfirmed";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        check_subject("orderId", self.order_id, subject)
    }
}
