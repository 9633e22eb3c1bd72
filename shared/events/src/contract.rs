//! What readers may rely upon, for those who read no Rust.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Value, json};

use crate::{Envelope, OrderCancelled, OrderCreated, envelope::SCHEMA_PREFIX};

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
}

impl Contract {
    /// All events and all their versions.
    pub fn all() -> Vec<Self> {
        vec![
            Self::of::<OrderCreated>(OrderCreated::TYPE, OrderCreated::VERSION),
            Self::of::<OrderCancelled>(OrderCancelled::TYPE, OrderCancelled::VERSION),
        ]
    }

    fn of<Data: JsonSchema>(event_type: &'static str, version: i16) -> Self {
        // Without references: a reader sees all of it at one glance, and so does a comparison.
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let mut schema = settings.into_generator().into_root_schema_for::<Envelope<Data>>().to_value();
        schema["title"] = json!(format!("{event_type}, version {version}"));
        schema["properties"]["type"]["const"] = json!(event_type);
        schema["properties"]["dataschema"]["const"] = json!(format!("{SCHEMA_PREFIX}{event_type}:{version}"));
        Self { event_type, version, schema }
    }
}
