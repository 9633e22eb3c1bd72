use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// `OrderCancelled`, version 1: an order that had been accepted is off. What was done for it is undone by whoever did
/// it: the event says that, not how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderCancelled {
    /// The order; the same as the envelope's `subject`.
    pub order_id: Uuid,
    /// Why, for people: readers do the same whatever it says.
    pub reason: String,
}

impl OrderCancelled {
    /// The name under which it travels.
    pub const TYPE: &'static str = "OrderCancelled";
    /// The version of this body's schema.
    pub const VERSION: i16 = 1;

    /// What a reader must check before it acts.
    pub(crate) fn check(&self, subject: Uuid) -> Result<(), String> {
        if self.order_id == subject {
            Ok(())
        } else {
            Err(format!("orderId {} is not the subject {subject}", self.order_id))
        }
    }
}
