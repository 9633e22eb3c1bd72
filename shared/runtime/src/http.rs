//! An HTTP server whose waits are bounded, and the three routes that every service has.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use axum_server::accept::NoDelayAcceptor;
use hyper_util::rt::TokioTimer;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;
use utoipa::openapi::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{Health, health::Readiness, settings};

/// How long a client may take over a request's head, and how long a connection may be idle. A client that sends one
/// byte a minute would otherwise hold its connection for ever.
const HEAD_DEADLINE: Duration = Duration::from_secs(15);

/// How long requests that are under way may take to end after the stop.
const DRAIN_DEADLINE: Duration = Duration::from_secs(6);

/// The largest request head, in bytes: a longer path or more headers are answered with 414 or 431.
const LARGEST_HEAD: usize = 16 * 1024;

/// Takes the port. A port that is in use is a wrong setting.
pub fn bind(variable: &str, address: SocketAddr) -> TcpListener {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound
        .unwrap_or_else(|error| settings::refuse(&format!("{variable}: cannot listen on {address}: {error}")))
}

/// `/livez`, `/readyz` and `/metrics`.
pub fn observability(health: Health, metrics: PrometheusHandle) -> Router {
    observed().with_state(Observed { health: Arc::new(health), metrics }).into()
}

/// What these three promise, for the document of a service's whole API.
pub fn observability_document() -> OpenApi {
    observed().into_openapi()
}

#[derive(Clone)]
struct Observed {
    health: Arc<Health>,
    metrics: PrometheusHandle,
}

fn observed() -> OpenApiRouter<Observed> {
    OpenApiRouter::new().routes(routes!(livez)).routes(routes!(readyz)).routes(routes!(metrics))
}

/// The type of what Prometheus reads.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether the process is alive. Answering at all is the answer: a process with a dead task has ended.
#[utoipa::path(
    get, path = "/livez", tag = "observability",
    responses((status = 200, description = "It is.", body = String, content_type = "text/plain; charset=utf-8")),
)]
async fn livez() -> &'static str {
    "alive\n"
}

/// Whether the service can do its work. Always with the state of each part.
#[utoipa::path(
    get, path = "/readyz", tag = "observability",
    responses(
        (status = 200, description = "All that is needed is up.", body = Readiness),
        (status = 503, description = "Something that is needed is down. Not a problem document.", body = Readiness),
    ),
)]
async fn readyz(State(observed): State<Observed>) -> (StatusCode, Json<Readiness>) {
    observed.health.ready()
}

/// Metrics, as Prometheus reads them.
#[utoipa::path(
    get, path = "/metrics", tag = "observability",
    responses((status = 200, description = "All of them.", body = String, content_type = EXPOSITION)),
)]
async fn metrics(State(observed): State<Observed>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, EXPOSITION)], observed.metrics.render())
}

/// Serves until `stop`, then lets requests that are under way finish, up to a deadline.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: TcpListener, app: Router, stop: CancellationToken) -> anyhow::Result<()> {
    let handle = axum_server::Handle::new();
    let mut server = axum_server::from_tcp(listener)?.handle(handle.clone()).acceptor(NoDelayAcceptor::new());
    server = server.http1_only();
    server
        .http_builder()
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(LARGEST_HEAD);
    // With the peer's address: the log says from where an operator came.
    let serving = server.serve(app.into_make_service_with_connect_info::<SocketAddr>());
    tokio::pin!(serving);
    tokio::select! {
        ended = &mut serving => ended?,
        () = stop.cancelled() => {
            handle.graceful_shutdown(Some(DRAIN_DEADLINE));
            serving.await?;
        }
    }
    Ok(())
}
