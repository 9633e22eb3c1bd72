//! Receives spans as a trace store does: OTLP over HTTP with protocol buffers, decoded with the official definitions. It
//! keeps the last ones in memory, so that the lab can show a trace and a test can look at one without another product.

mod received;
mod waterfall;

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message as _;
use tokio::{net::TcpListener, task::AbortHandle};

pub use received::ReceivedSpan;
pub use waterfall::waterfall;

/// The most spans that are kept: the oldest are forgotten.
const CAPACITY: usize = 100_000;

/// The largest request body, in bytes.
const MAX_BODY: usize = 8 * 1024 * 1024;

/// The media type of protocol buffers, in requests and answers.
const PROTOBUF: &str = "application/x-protobuf";

/// A store that listens on a port of its own until it is dropped.
#[derive(Debug)]
pub struct TraceStore {
    address: SocketAddr,
    spans: Spans,
    server: AbortHandle,
}

type Spans = Arc<Mutex<Received>>;

#[derive(Debug, Default)]
struct Received {
    /// The last ones.
    spans: VecDeque<ReceivedSpan>,
    /// How many there were.
    count: usize,
}

impl TraceStore {
    /// Listens on a free port of the loopback interface.
    ///
    /// # Errors
    /// When there is none.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_on(0).await
    }

    /// Listens on this port of the loopback interface.
    ///
    /// # Errors
    /// When it is in use.
    pub async fn start_on(port: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.context("failed to listen for spans")?;
        let address = listener.local_addr()?;
        let spans = Spans::default();
        let routes = Router::new()
            .route("/v1/traces", post(receive))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(spans.clone());
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
            received.spans.iter().filter(|span| span.trace_id == trace_id).cloned().collect();
        trace.sort_by_key(|span| (span.start_nanos, span.end_nanos));
        trace
    }

    /// How many spans have arrived, those included that are forgotten.
    pub fn count(&self) -> usize {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).count
    }
}

impl Drop for TraceStore {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn receive(State(spans): State<Spans>, body: Bytes) -> Response {
    let request = match ExportTraceServiceRequest::decode(body) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("not OTLP: {error}")).into_response(),
    };
    let mut received = spans.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = received.spans.len();
    received.spans.extend(received::spans(request));
    received.count += received.spans.len() - kept;
    let surplus = received.spans.len().saturating_sub(CAPACITY);
    received.spans.drain(..surplus);
    ([(header::CONTENT_TYPE, PROTOBUF)], ExportTraceServiceResponse::default().encode_to_vec())
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_is_not_otlp_is_refused() -> anyhow::Result<()> {
        let store = TraceStore::start().await?;
        let url = format!("{}/v1/traces", store.endpoint());
        let client = reqwest::Client::builder().no_proxy().build()?;
        assert_eq!(client.post(&url).body("nonsense").send().await?.status(), 400);
        assert_eq!(client.post(&url).body("").send().await?.status(), 200);
        assert_eq!(store.count(), 0);
        Ok(())
    }
}
