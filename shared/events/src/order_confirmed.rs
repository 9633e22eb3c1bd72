use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::body::{Data, same};

/// `OrderConfirmed`, version 1: the goods are put aside and the money is there. The order is going to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderConfirmed {
    /// The order; the same as the envelope's `subject`.
    pub order_id: Uuid,
}

impl Data for OrderConfirmed {
    const TYPE: &'static str = "OrderConfirmed";

    fn check(&self, subject: Uuid) -> Result<(), String> {
        same("orderId", self.order_id, subject)
    }
}
