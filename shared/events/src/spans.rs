//! Spans: what happened to an order, when, and for how long, for distributed tracing.
//!
//! A span is recorded when it has ended, with the ids of its [`TraceContext`]. The context exists before it: it is written
//! into the outbox row with the event, so that whatever the event causes has this span as its parent. Nothing is captured
//! when the event is published: the relay runs later, in another request's time.
//!
//! Attributes are named as in OpenTelemetry's conventions for HTTP and messaging
//! (<https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/>).

use std::{fmt, sync::OnceLock, time::SystemTime};

use opentelemetry::{KeyValue, Value};

/// The role of a span's process in what the span describes.
pub use opentelemetry::trace::SpanKind as Kind;

/// Something that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Its own id, its trace's and its parent's.
    pub context: TraceContext,
    pub kind: Kind,
    /// What was done, for example `process OrderCreated`: of a small set, never with an id in it.
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

/// Records a span. `span` is called only if spans are exported, so a process that exports none pays for one load of a
/// pointer.
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

/// W3C Trace Context (`traceparent`): ties the HTTP request, the outbox row, the message and the effects together.
///
/// It names one span, for example answering a request or applying a message. An event carries the context of the span
/// that wrote it.
///
/// <https://www.w3.org/TR/trace-context/#traceparent-header>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    /// What the header calls `parent-id`: its receiver's parent.
    span_id: u64,
    /// The span that caused this one. `None`: this is the first of its trace, or another process has it.
    parent: Option<u64>,
    flags: u8,
}

/// The flag of traces that are to be recorded.
const SAMPLED: u8 = 1;

impl TraceContext {
    /// A new trace, for a request that brought none.
    pub fn root() -> Self {
        Self { trace_id: fastrand::u128(1..), span_id: fastrand::u64(1..), parent: None, flags: SAMPLED }
    }

    /// The same trace with a new span, whose parent is this one.
    pub fn child(&self) -> Self {
        Self { span_id: fastrand::u64(1..), parent: Some(self.span_id), ..*self }
    }

    /// A new span in the trace that `header` names, or in a new one if there is no header, or none that is valid.
    pub fn child_of(header: Option<&str>) -> Self {
        header.and_then(Self::parse).map_or_else(Self::root, |caller| caller.child())
    }

    /// Parses a `traceparent`. `None` for everything that the standard calls invalid: a bad header must not fail the
    /// request that carries it, so the caller starts a new trace.
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.split('-');
        let (version, trace_id, parent_id, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = hex(version, 2)?;
        // A later version may have more than these four parts; version 00 may not, and ff is forbidden.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let trace_id = hex(trace_id, 32).filter(|id| *id != 0)?;
        let parent_id = hex(parent_id, 16).filter(|id| *id != 0)?;
        let flags = hex(flags, 2)?;
        let (span_id, flags) = (u64::try_from(parent_id).ok()?, u8::try_from(flags).ok()?);
        Some(Self { trace_id, span_id, parent: None, flags })
    }

    /// The trace's id as 32 hexadecimal digits, as in the logs.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// The trace's id, the span's id, and its parent's, if that is known.
    pub fn ids(&self) -> (u128, u64, Option<u64>) {
        (self.trace_id, self.span_id, self.parent)
    }

    /// Whether the process that began this trace wants it to be recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// Parses exactly `digits` lower-case hexadecimal digits: the standard allows no others.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let valid = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    valid.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_header_survives_a_round_trip() {
        let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(TraceContext::parse(header).unwrap().to_string(), header);
    }

    #[test]
    fn child_keeps_the_trace_and_gets_a_new_span() {
        let parent = TraceContext::root();
        let child = parent.child();
        assert_eq!(parent.trace_id(), child.trace_id());
        assert_ne!(parent.span_id, child.span_id);
        assert_eq!((parent.parent, child.parent), (None, Some(parent.span_id)));
    }

    #[test]
    fn invalid_headers_are_not_parsed() {
        for header in [
            "",
            "00",
            "hello",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceContext::parse(header), None, "{header:?}");
        }
    }
}
