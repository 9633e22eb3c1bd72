//! What readers may rely upon, for those who read no Rust.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::{
    Data, Envelope, OrderCancelled, OrderCancelledV1, OrderConfirmed, OrderCreated, PaymentCaptured,
    PaymentDeclined, PaymentRefunded, StockRejected, StockReleased, StockReserved, envelope::schema_name,
};

/// One version of one event: the JSON Schema (draft 2020-12) of its whole message, generated from the types above.
///
/// `contracts/` holds each as a file. A test keeps them equal, and refuses every change that would break a reader of what
/// has been published: such a change is a new version.
#[derive(Debug, Clone)]
pub struct Contract {
    /// The event's name.
    pub event_type: &'static str,
    /// The version of its body.
    pub version: i16,
    /// Of the envelope with the body in it.
    pub schema: Value,
    /// A whole message, as it was first published: JSON text.
    pub example: &'static str,
}

impl Contract {
    /// All events and all their versions.
    pub fn all() -> Vec<Self> {
        vec![
            Self::of::<OrderCreated>(include_str!("../contracts/OrderCreated.1.example.json")),
            Self::of::<OrderConfirmed>(include_str!("../contracts/OrderConfirmed.1.example.json")),
            Self::of::<OrderCancelledV1>(include_str!("../contracts/OrderCancelled.1.example.json")),
            Self::of::<OrderCancelled>(include_str!("../contracts/OrderCancelled.2.example.json")),
            Self::of::<StockReserved>(include_str!("../contracts/StockReserved.1.example.json")),
            Self::of::<StockRejected>(include_str!("../contracts/StockRejected.1.example.json")),
            Self::of::<StockReleased>(include_str!("../contracts/StockReleased.1.example.json")),
            Self::of::<PaymentCaptured>(include_str!("../contracts/PaymentCaptured.1.example.json")),
            Self::of::<PaymentDeclined>(include_str!("../contracts/PaymentDeclined.1.example.json")),
            Self::of::<PaymentRefunded>(include_str!("../contracts/PaymentRefunded.1.example.json")),
        ]
    }

    fn of<D: Data>(example: &'static str) -> Self {
        // Without references: a reader sees all of it at one glance, and so does a comparison.
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let mut schema = settings.into_generator().into_root_schema_for::<Envelope<D>>().to_value();
        schema["title"] = json!(format!("{}, version {}", D::TYPE, D::VERSION));
        schema["properties"]["type"]["const"] = json!(D::TYPE);
        schema["properties"]["dataschema"]["const"] = json!(schema_name(D::TYPE, D::VERSION));
        Self { event_type: D::TYPE, version: D::VERSION, schema, example }
    }
}
