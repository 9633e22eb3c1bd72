//! An HTTP server with bounded waits, and the three routes that every service has: health and metrics.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use axum::{
    Json, Router,
    error_handling::HandleErrorLayer,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header, uri::Authority},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use hyper_util::rt::TokioTimer;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tower::{ServiceBuilder, timeout::TimeoutLayer};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::{ToSchema, openapi::OpenApi};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    admission::{Admission, admit},
    connection::{Acceptor, BoundedListener, CLIENT_DEADLINE, Peer, give_place, read_body},
    environment,
    problem::Problem,
};

/// How long requests in progress may take to finish after the stop.
const DRAIN_DEADLINE: Duration = Duration::from_secs(6);

/// The largest request head, in bytes: a longer path or more headers are answered with 414 or 431.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Listens on the address. A port that is in use is an invalid setting and ends the process.
pub fn bind(variable: &str, address: SocketAddr) -> TcpListener {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.unwrap_or_else(|error| {
        environment::exit_invalid_config(&format!("{variable}: failed to listen on {address}: {error}"))
    })
}

/// Whether a service needs a part to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    /// Not ready without it.
    Yes,
    /// Ready without it: orders are accepted while the broker is unavailable.
    No,
}

type Probe = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Whether a service can do its work, and the state of each part.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Readiness {
    /// Whether every needed part is up.
    ready: bool,
    /// The state of each part, by name.
    #[schema(value_type = BTreeMap<String, Part>)]
    parts: BTreeMap<&'static str, Part>,
}

/// The state of one part.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Part {
    up: bool,
    /// Why it is down.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

/// The parts of a service's health. Each request to `/readyz` calls every probe, so the answer is as old as the probes'
/// knowledge: at most five seconds.
#[derive(Default)]
pub struct Health {
    probes: Vec<(&'static str, Needed, Probe)>,
}

impl Health {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part. `probe` returns its last known state without waiting: `Err` says why the part is down.
    #[must_use]
    pub fn with(
        mut self,
        name: &'static str,
        needed: Needed,
        probe: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.probes.push((name, needed, Box::new(probe)));
        self
    }

    /// The answer to `/readyz`: 200 when every needed part is up, else 503; always with the state of each part.
    pub(crate) fn ready(&self) -> (StatusCode, Json<Readiness>) {
        let mut ready = true;
        let mut parts = BTreeMap::new();
        for (name, needed, probe) in &self.probes {
            let reason = probe().err();
            ready &= reason.is_none() || *needed == Needed::No;
            parts.insert(*name, Part { up: reason.is_none(), reason });
        }
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, Json(Readiness { ready, parts }))
    }
}

/// `/livez`, `/readyz` and `/metrics`, for the process whose runtime this is called in.
pub fn observability(health: Health, metrics: PrometheusHandle) -> Router {
    let process = Handle::current();
    observed().with_state(Observed { health: Arc::new(health), metrics, process }).into()
}

/// The same three routes, for the OpenAPI document of a service.
pub fn observability_document() -> OpenApi {
    observed().into_openapi()
}

#[derive(Clone)]
struct Observed {
    health: Arc<Health>,
    metrics: PrometheusHandle,
    /// The runtime of everything but HTTP.
    process: Handle,
}

fn observed() -> OpenApiRouter<Observed> {
    OpenApiRouter::new().routes(routes!(livez)).routes(routes!(readyz)).routes(routes!(metrics))
}

/// The content type of the Prometheus text format.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether the process is alive: whether it runs tasks, beside the thread that answers here. A process with a dead task ends.
#[utoipa::path(
    get, path = "/livez", tag = "observability",
    responses((status = 200, description = "The process is alive.", body = String, content_type = "text/plain; charset=utf-8")),
)]
async fn livez(State(observed): State<Observed>) -> &'static str {
    // If the runtime hangs there is no answer.
    let _ = observed.process.spawn(async {}).await;
    "alive\n"
}

/// Whether the service can do its work, with the state of each part.
#[utoipa::path(
    get, path = "/readyz", tag = "observability",
    responses(
        (status = 200, description = "Every needed part is up.", body = Readiness),
        (status = 503, description = "A needed part is down. Not a problem document.", body = Readiness),
    ),
)]
async fn readyz(State(observed): State<Observed>) -> (StatusCode, Json<Readiness>) {
    observed.health.ready()
}

/// Metrics in the Prometheus text format.
#[utoipa::path(
    get, path = "/metrics", tag = "observability",
    responses((status = 200, description = "All metrics.", body = String, content_type = EXPOSITION)),
)]
async fn metrics(State(observed): State<Observed>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, EXPOSITION)], observed.metrics.render())
}

/// Bounds what the requests to `routes` use: each body is read in full before the request counts, `admission` picks the
/// requests that run, each for at most `deadline`. A panic becomes a 500.
pub fn limited<S: Clone + Send + Sync + 'static>(
    routes: Router<S>,
    admission: Admission,
    deadline: Duration,
) -> Router<S> {
    let limits = ServiceBuilder::new()
        .layer(middleware::from_fn(read_body))
        .layer(CatchPanicLayer::new())
        .layer(middleware::from_fn_with_state(Arc::new(admission), admit))
        .layer(HandleErrorLayer::new(async |_| StatusCode::GATEWAY_TIMEOUT))
        .layer(TimeoutLayer::new(deadline));
    routes.fallback(|| async { StatusCode::NOT_FOUND }).layer(limits)
}

/// The thread that reads and refuses requests. Admitted requests run on the main runtime, with the relay and the consumer, so a
/// flood of connections competes with these for the cores, and not for a queue of tasks.
struct HttpThread(Option<Runtime>);

impl HttpThread {
    fn start() -> io::Result<Self> {
        let mut runtime = Builder::new_multi_thread();
        Ok(Self(Some(runtime.worker_threads(1).thread_name("http").enable_all().build()?)))
    }
}

impl Drop for HttpThread {
    fn drop(&mut self) {
        // Without waiting, which is not allowed in a task.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Serves `app` until `stop`, and refuses browsers' requests from other sites that may change something. Then lets requests in
/// progress finish, up to a deadline.
pub async fn serve(listener: TcpListener, app: Router, stop: CancellationToken) -> anyhow::Result<()> {
    let thread = HttpThread::start().context("failed to start the HTTP thread")?;
    let serving = serve_here(listener, app, stop);
    let runtime = thread.0.as_ref().context("the HTTP thread has stopped")?;
    AbortOnDropHandle::new(runtime.spawn(serving)).await.context("the HTTP server failed")?
}

async fn serve_here(listener: TcpListener, app: Router, stop: CancellationToken) -> anyhow::Result<()> {
    let handle = axum_server::Handle::<Peer>::new();
    let listener = BoundedListener::new(listener)?;
    let app = app.layer(middleware::from_fn_with_state(listener.wanted(), give_place));
    let server = axum_server::Server::from_listener(listener).handle(handle.clone());
    let mut server = server.acceptor(Acceptor).http1_only();
    server
        .http_builder()
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(CLIENT_DEADLINE)
        .max_buf_size(MAX_HEAD_BYTES);
    let app = app.layer(middleware::from_fn(refuse));
    // With the peer's address, because the admin API logs it.
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

/// Refuses a request that may change something, and that a page of another site has made. A browser sends such a request
/// without asking if it has no body, for example a cancellation; the page only cannot read the answer.
pub(crate) async fn refuse(request: Request, next: Next) -> Response {
    if request.method().is_safe() || !is_foreign(request.headers()) {
        return next.run(request).await;
    }
    Problem::new(StatusCode::FORBIDDEN, "foreign-page", "Refused for pages of other sites")
        .detail("a browser may change something only from a page of the same origin, over https or on this machine")
        .into_response()
}

/// Browsers send `Sec-Fetch-Site` to https and to localhost, and `Origin` with each request that is not safe. Clients that
/// are not browsers send neither.
///
/// Over http, a page's origin must be an address or localhost: of a site that has made its own name resolve to our address
/// (DNS rebinding), origin and host are the same. Over https it would need our certificate.
fn is_foreign(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site != "same-origin" && site != "none";
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let own =
        origin.to_str().ok().and_then(|origin| origin.split_once("://")).is_some_and(|(scheme, from)| {
            let same = headers.get(header::HOST).is_some_and(|host| host == from);
            same && (scheme == "https" || is_local(from))
        });
    !own
}

fn is_local(authority: &str) -> bool {
    authority.parse::<Authority>().is_ok_and(|authority| {
        let host = authority.host().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<IpAddr>().is_ok()
    })
}
