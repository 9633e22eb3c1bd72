//! Receives spans as a trace store does (OTLP over HTTP with protocol buffers, in the official crate's types), and draws a
//! trace, so that the lab can show one, and a test can look at one, without another product.

mod waterfall;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{Span, status::StatusCode as SpanStatus},
};
use prost::Message as _;
use tokio::{net::TcpListener, task::AbortHandle};

pub use waterfall::waterfall;

/// The most spans that are kept: later ones are dropped.
const CAPACITY: usize = 100_000;

/// A trace store on the loopback interface. It listens until it is dropped.
#[derive(Debug)]
pub struct TraceStore {
    address: SocketAddr,
    spans: Spans,
    server: AbortHandle,
}

type Spans = Arc<Mutex<Vec<ReceivedSpan>>>;

/// A span, and the service that recorded it.
#[derive(Debug, Clone)]
pub struct ReceivedSpan {
    pub service: String,
    pub span: Span,
}

impl TraceStore {
    /// Listens on this port of the loopback interface, or on a free one for 0.
    ///
    /// # Errors
    /// When it is in use.
    pub async fn start(port: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.context("failed to listen for spans")?;
        let address = listener.local_addr()?;
        let spans = Spans::default();
        let routes = Router::new().route("/v1/traces", post(receive)).with_state(spans.clone());
        let server = tokio::spawn(async move { axum::serve(listener, routes).await }).abort_handle();
        Ok(Self { address, spans, server })
    }

    /// The address for a service's `OTLP_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans of a trace that have arrived, by their start. `trace_id` has 32 hexadecimal digits.
    pub fn trace(&self, trace_id: &str) -> Vec<ReceivedSpan> {
        let received = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let mut trace: Vec<_> =
            received.iter().filter(|received| hex(&received.span.trace_id) == trace_id).cloned().collect();
        trace.sort_by_key(|received| (received.span.start_time_unix_nano, received.span.end_time_unix_nano));
        trace
    }
}

impl Drop for TraceStore {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl ReceivedSpan {
    /// The value of an attribute, or an empty text.
    pub fn attribute(&self, name: &str) -> String {
        text_of(&self.span.attributes, name)
    }

    /// Why it failed, if it did.
    pub fn error(&self) -> Option<&str> {
        let status = self.span.status.as_ref().filter(|status| status.code() == SpanStatus::Error)?;
        Some(&status.message)
    }
}

/// Hexadecimal digits, as ids are written.
pub fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An attribute's value as text.
pub fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(integer)) => integer.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        other => format!("{other:?}"),
    }
}

fn text_of(attributes: &[KeyValue], name: &str) -> String {
    let attribute = attributes.iter().find(|attribute| attribute.key == name);
    attribute.map(|attribute| text(attribute.value.as_ref())).unwrap_or_default()
}

async fn receive(State(spans): State<Spans>, body: Bytes) -> Response {
    let request = match ExportTraceServiceRequest::decode(body) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("not OTLP: {error}")).into_response(),
    };
    let mut kept = spans.lock().unwrap_or_else(PoisonError::into_inner);
    for of_resource in request.resource_spans {
        let attributes = of_resource.resource.map(|resource| resource.attributes).unwrap_or_default();
        let service = text_of(&attributes, "service.name");
        let spans = of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        let room = CAPACITY.saturating_sub(kept.len());
        kept.extend(spans.take(room).map(|span| ReceivedSpan { service: service.clone(), span }));
    }
    let answer = ExportTraceServiceResponse::default().encode_to_vec();
    ([(header::CONTENT_TYPE, "application/x-protobuf")], answer).into_response()
}
