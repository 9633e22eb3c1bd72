//! Spans: what happened to an order, when, and for how long, for distributed tracing.
//!
//! A span is recorded when it has ended, with the ids of its [`TraceContext`]. The context exists before it: it is written
//! into the outbox row with the event, so that whatever the event causes has this span as its parent. Nothing is captured
//! when the event is published: the relay runs later, in another request's time.
//!
//! [`record`] does nothing until [`export_to`] was called, which a process does once, if it has somewhere to send them.
//!
//! Attributes are named as in OpenTelemetry's conventions for HTTP and messaging
//! (<https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/>).

use std::{sync::OnceLock, time::SystemTime};

use crate::TraceContext;
use opentelemetry::{KeyValue, Value};

/// The role of a span's process in what the span describes.
pub use opentelemetry::trace::SpanKind as Kind;

/// Something that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Its own id, its trace's and its parent's.
    pub context: TraceContext,
    pub kind: Kind,
    /// What was done, such as `process OrderCreated`: of a small set, never with an id in it.
    pub name: String,
    pub start: SystemTime,
    pub end: SystemTime,
    pub attributes: Vec<KeyValue>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

type Export = Box<dyn Fn(Span) + Send + Sync>;

static EXPORT: OnceLock<Export> = OnceLock::new();

/// Hands spans that are recorded from now on to `export`, which must not wait. Only the first call has an effect.
pub fn export_to(export: impl Fn(Span) + Send + Sync + 'static) {
    let _ = EXPORT.set(Box::new(export));
}

/// Records a span. `span` is called only if spans are exported, so a process that exports none pays for one load of a pointer.
pub fn record(span: impl FnOnce() -> Span) {
    if let Some(export) = EXPORT.get() {
        export(span());
    }
}

impl Span {
    /// A span that ends now, without attributes.
    pub fn ended(context: TraceContext, kind: Kind, name: impl Into<String>, start: SystemTime) -> Self {
        Self {
            context,
            kind,
            name: name.into(),
            start,
            end: SystemTime::now(),
            attributes: vec![],
            error: None,
        }
    }

    #[must_use]
    pub fn until(self, end: SystemTime) -> Self {
        Self { end, ..self }
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push(KeyValue::new(name, value));
        self
    }

    #[must_use]
    pub fn failed(self, error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..self }
    }
}
