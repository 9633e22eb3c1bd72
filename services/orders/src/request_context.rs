use std::time::Instant;

use axum::{extract::Request, middleware::Next, response::Response};
use events::TraceContext;
use tower_http::request_id::RequestId;
use tracing::{Instrument, info_span};

/// Adds a trace context to a request, the caller's or a new one, and logs how the request ended.
///
/// The handlers receive the trace context as an extension and write it into the outbox row; from there it reaches the
/// message's headers and the consumers' spans. One `trace_id` in the logs of three services is one order.
pub(crate) async fn trace(mut request: Request, next: Next) -> Response {
    let caller = request.headers().get("traceparent").and_then(|header| header.to_str().ok());
    let trace = caller.and_then(TraceContext::parse).map_or_else(TraceContext::root, |caller| caller.child());
    request.extensions_mut().insert(trace);
    let id = request.extensions().get::<RequestId>().and_then(|id| id.header_value().to_str().ok());
    let span = info_span!(
        "request",
        method = %request.method(),
        path = request.uri().path(),
        request_id = id,
        trace_id = trace.trace_id(),
    );
    let began = Instant::now();
    let response = next.run(request).instrument(span.clone()).await;
    let status = response.status();
    let seconds = began.elapsed().as_secs_f64();
    metrics::histogram!("http_request_seconds", "status" => status.as_u16().to_string()).record(seconds);
    if status.is_server_error() {
        span.in_scope(|| tracing::warn!(status = status.as_u16(), seconds, "request failed"));
    } else {
        span.in_scope(|| tracing::debug!(status = status.as_u16(), seconds, "request done"));
    }
    response
}
