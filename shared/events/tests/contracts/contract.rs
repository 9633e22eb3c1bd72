use events::{
    Data, Envelope, OrderCancelled, OrderCancelledV1, OrderConfirmed, OrderCreated, PaymentCaptured,
    PaymentDeclined, PaymentRefunded, StockRejected, StockReleased, StockReserved,
};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// One version of one event, with the JSON Schema (draft 2020-12) of its whole message, generated from the Rust types.
pub(crate) struct Contract {
    pub(crate) event_type: &'static str,
    /// The version of the body's schema.
    pub(crate) version: i16,
    /// The schema of the envelope with this body.
    pub(crate) schema: Value,
}

impl Contract {
    /// All events and all their versions.
    pub(crate) fn all() -> [Self; 10] {
        [
            Self::of::<OrderCreated>(),
            Self::of::<OrderConfirmed>(),
            Self::of::<OrderCancelledV1>(),
            Self::of::<OrderCancelled>(),
            Self::of::<StockReserved>(),
            Self::of::<StockRejected>(),
            Self::of::<StockReleased>(),
            Self::of::<PaymentCaptured>(),
            Self::of::<PaymentDeclined>(),
            Self::of::<PaymentRefunded>(),
        ]
    }

    fn of<D: Data>() -> Self {
        // Inline, without `$ref`: people and the compatibility test read it from top to bottom.
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let mut schema = settings.into_generator().into_root_schema_for::<Envelope<D>>().to_value();
        schema["title"] = json!(format!("{}, version {}", D::TYPE, D::VERSION));
        schema["properties"]["type"]["const"] = json!(D::TYPE);
        schema["properties"]["dataschema"]["const"] = json!(format!("urn:shop:{}:{}", D::TYPE, D::VERSION));
        Self { event_type: D::TYPE, version: D::VERSION, schema }
    }
}
