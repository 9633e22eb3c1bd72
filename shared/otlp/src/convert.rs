use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use spans::{Kind, Span, Value};

/// Turns a span into what the exporter takes.
pub(crate) fn span(span: Span) -> SpanData {
    let Span { context, kind, name, start, end, attributes, error } = span;
    let (trace_id, span_id, parent) = context.ids();
    SpanData {
        span_context: SpanContext::new(
            TraceId::from(trace_id),
            SpanId::from(span_id),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: parent.map_or(SpanId::INVALID, SpanId::from),
        parent_span_is_remote: matches!(kind, Kind::Server | Kind::Consumer),
        span_kind: match kind {
            Kind::Server => SpanKind::Server,
            Kind::Client => SpanKind::Client,
            Kind::Producer => SpanKind::Producer,
            Kind::Consumer => SpanKind::Consumer,
            Kind::Internal => SpanKind::Internal,
        },
        name: name.into(),
        start_time: start,
        // Two machines' clocks differ, and a database's from both: a span may not end before it begins.
        end_time: end.max(start),
        attributes: attributes
            .into_iter()
            .map(|(name, value)| KeyValue::new(name, attribute(value)))
            .collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: error.map_or(Status::Unset, Status::error),
        instrumentation_scope: InstrumentationScope::builder("shop").build(),
    }
}

fn attribute(value: Value) -> opentelemetry::Value {
    match value {
        Value::Text(text) => text.into(),
        Value::Integer(integer) => integer.into(),
        Value::Flag(flag) => flag.into(),
    }
}
