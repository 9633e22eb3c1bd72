//! An HTTP server whose waits are bounded, and the three routes that every service has.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use axum::{Router, http::header, routing::get};
use axum_server::accept::NoDelayAcceptor;
use hyper_util::rt::TokioTimer;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;

use crate::{Health, settings};

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
    let health = Arc::new(health);
    let text = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Router::new()
        // Answering at all is the answer: a process with a dead task has ended.
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(move || async move { health.ready() }))
        .route("/metrics", get(move || async move { (text, metrics.render()) }))
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
