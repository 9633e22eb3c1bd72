use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

/// The body of one event in one version: its name, its version and its consistency rules.
pub trait Data: Serialize + DeserializeOwned + JsonSchema {
    /// The event's name: the envelope's `type`.
    const TYPE: &'static str;
    /// The version of this body's schema.
    const VERSION: i16 = 1;
    /// The service that publishes it: the envelope's `source`.
    const SOURCE: &'static str;
    /// What its `subject` identifies.
    const AGGREGATE: &'static str;

    /// Checks what a JSON Schema cannot express: a body can be well-formed and still contradict itself.
    ///
    /// # Errors
    /// A sentence that names the contradiction.
    fn check(&self, subject: Uuid) -> Result<(), String>;
}

/// A decoded body. A body in an older version is converted to the newest while it is read, so that handlers see only one.
#[derive(Debug, Clone)]
pub enum Body {
    OrderCreated(crate::OrderCreated),
    OrderConfirmed(crate::OrderConfirmed),
    OrderCancelled(crate::OrderCancelled),
    StockReserved(crate::StockReserved),
    StockRejected(crate::StockRejected),
    StockReleased(crate::StockReleased),
    PaymentCaptured(crate::PaymentCaptured),
    PaymentDeclined(crate::PaymentDeclined),
    PaymentRefunded(crate::PaymentRefunded),
}

/// Checks that the id in the body is the envelope's `subject`.
pub(crate) fn check_subject(name: &str, id: Uuid, subject: Uuid) -> Result<(), String> {
    if id == subject { Ok(()) } else { Err(format!("{name} {id} is not the subject {subject}")) }
}
