use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

/// One version of one event's body: what a type has to say about itself to be written, read and promised to others.
pub trait Data: Serialize + DeserializeOwned + JsonSchema {
    /// The name under which it travels.
    const TYPE: &'static str;
    /// The version of this body's schema.
    const VERSION: i16 = 1;

    /// What a reader must check before it acts: a body can be well-formed JSON and still be nonsense.
    ///
    /// # Errors
    /// What contradicts what, in words.
    fn check(&self, subject: Uuid) -> Result<(), String>;
}

/// The bodies that are known here, each in its newest version: what arrives in an older one is brought up to it while it
/// is read, so that no handler ever sees two.
#[derive(Debug, Clone)]
pub enum Body {
    /// An order was accepted.
    OrderCreated(crate::OrderCreated),
    /// An order has its stock and its money.
    OrderConfirmed(crate::OrderConfirmed),
    /// An order is off.
    OrderCancelled(crate::OrderCancelled),
    /// Inventory has put an order's goods aside.
    StockReserved(crate::StockReserved),
    /// Inventory has too little of something.
    StockRejected(crate::StockRejected),
    /// Inventory has put an order's goods back.
    StockReleased(crate::StockReleased),
    /// Billing has an order's money.
    PaymentCaptured(crate::PaymentCaptured),
    /// Billing did not get it.
    PaymentDeclined(crate::PaymentDeclined),
    /// Billing has given it back.
    PaymentRefunded(crate::PaymentRefunded),
}

/// That the id in the body and the envelope's `subject` are the same.
pub(crate) fn same(name: &str, id: Uuid, subject: Uuid) -> Result<(), String> {
    if id == subject { Ok(()) } else { Err(format!("{name} {id} is not the subject {subject}")) }
}
