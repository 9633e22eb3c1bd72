use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{span::SpanKind, status::StatusCode},
};

/// A span as it was received.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedSpan {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 hexadecimal digits.
    pub span_id: String,
    /// The span that caused it: empty for the first of a trace.
    pub parent_id: String,
    /// The process that recorded it.
    pub service: String,
    pub name: String,
    /// Such as `SPAN_KIND_PRODUCER`.
    pub kind: &'static str,
    /// Nanoseconds since 1970.
    pub start_nanos: u64,
    pub end_nanos: u64,
    pub attributes: Vec<(String, String)>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

impl ReceivedSpan {
    /// The value of an attribute.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// All spans of a request.
pub(crate) fn spans(request: ExportTraceServiceRequest) -> Vec<ReceivedSpan> {
    let mut received = vec![];
    for of_resource in request.resource_spans {
        let resource = of_resource.resource.map(|resource| resource.attributes).unwrap_or_default();
        let service = attributes(resource).into_iter().find(|(name, _)| name == "service.name");
        let service = service.map(|(_, value)| value).unwrap_or_default();
        for span in of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let status = span.status.unwrap_or_default();
            received.push(ReceivedSpan {
                trace_id: hex(&span.trace_id),
                span_id: hex(&span.span_id),
                parent_id: hex(&span.parent_span_id),
                service: service.clone(),
                kind: SpanKind::try_from(span.kind).unwrap_or_default().as_str_name(),
                name: span.name,
                start_nanos: span.start_time_unix_nano,
                end_nanos: span.end_time_unix_nano,
                attributes: attributes(span.attributes),
                error: (status.code == StatusCode::Error as i32).then_some(status.message),
            });
        }
    }
    received
}

fn attributes(attributes: Vec<KeyValue>) -> Vec<(String, String)> {
    attributes.into_iter().map(|KeyValue { key, value, .. }| (key, text(value))).collect()
}

fn text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(integer)) => integer.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
