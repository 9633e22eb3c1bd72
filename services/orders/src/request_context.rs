use std::time::{Instant, SystemTime};

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::Response,
};
use events::{
    TraceContext,
    spans::{Kind, Span},
};
use tower_http::request_id::RequestId;
use tracing::{Instrument, info_span};

/// Adds a trace context to a request, the caller's or a new one, and logs how the request ended.
///
/// The handlers receive the trace context as an extension and write it into the outbox row; from there it reaches the
/// message's headers and the consumers' spans. One `trace_id` in the logs of three services is one order.
pub(crate) async fn trace(mut request: Request, next: Next) -> Response {
    let caller = request.headers().get("traceparent").and_then(|header| header.to_str().ok());
    let trace = TraceContext::child_of(caller);
    request.extensions_mut().insert(trace);
    let id = request.extensions().get::<RequestId>().and_then(|id| id.header_value().to_str().ok());
    let span = info_span!(
        "request",
        method = %request.method(),
        path = request.uri().path(),
        request_id = id,
        trace_id = trace.trace_id(),
    );
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str).to_owned();
    let method = request.method().to_string();
    let (began, started) = (Instant::now(), SystemTime::now());
    let response = next.run(request).instrument(span.clone()).await;
    let status = response.status();
    let seconds = began.elapsed().as_secs_f64();
    metrics::histogram!("http_request_seconds", "status" => status.as_u16().to_string()).record(seconds);
    events::spans::record(|| {
        let span = Span::ended(trace, Kind::Server, format!("{method} {route}"), started)
            .with("http.request.method", method)
            .with("http.route", route)
            .with("http.response.status_code", i64::from(status.as_u16()));
        if status.is_server_error() { span.failed(status.to_string()) } else { span }
    });
    if status.is_server_error() {
        span.in_scope(|| tracing::warn!(status = status.as_u16(), seconds, "request failed"));
    } else {
        span.in_scope(|| tracing::debug!(status = status.as_u16(), seconds, "request done"));
    }
    response
}
