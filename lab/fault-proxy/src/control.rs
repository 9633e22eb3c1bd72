//! The control API: routes with their state, and the faults of each route.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, State},
    http::StatusCode,
    middleware,
    routing::{get, put},
};
use axum_server::Handle;
use serde::Serialize;
use tokio::net::TcpListener;

use crate::{
    Fault, Stats,
    control_fault::{FaultBody, ShownFault},
    control_problem::{Body, Problem, complete},
    route_state::{RouteState, Routes},
};

/// The largest list takes about 16 patterns of 1 KiB, in JSON.
const MAX_BODY_BYTES: usize = 64 * 1024;

pub(crate) async fn serve(listener: TcpListener, routes: Arc<Routes>) {
    let app = Router::new()
        .route("/routes", get(show_routes))
        .route("/routes/{name}/faults", put(replace_faults).delete(clear_faults))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::map_response(complete))
        .with_state(routes);
    let handle = Handle::new();
    let _stop = StopOnDrop(handle.clone());
    let serving = async {
        let server = axum_server::from_tcp(listener.into_std()?)?.handle(handle);
        server.serve(app.into_make_service()).await
    };
    if let Err(cause) = serving.await {
        tracing::error!("failed to serve the control API: {cause}");
    }
}

/// Closes the connections of the server, which are tasks of their own, when its future is dropped.
struct StopOnDrop(Handle<SocketAddr>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownRoute {
    name: String,
    state: ShownState,
    listen: SocketAddr,
    upstream: String,
    max_connections: usize,
    stats: Stats,
    faults: Vec<ShownFault>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ShownState {
    Normal,
    Faulty,
}

impl From<&RouteState> for ShownRoute {
    fn from(state: &RouteState) -> Self {
        let faults = shown_faults(state);
        Self {
            name: state.route.name.clone(),
            state: if faults.is_empty() { ShownState::Normal } else { ShownState::Faulty },
            listen: state.address,
            upstream: state.route.upstream.clone(),
            max_connections: state.route.max_connections,
            stats: state.counters.now(),
            faults,
        }
    }
}

fn shown_faults(state: &RouteState) -> Vec<ShownFault> {
    state.faults.list().faults.iter().map(|active| ShownFault::from(&**active)).collect()
}

async fn show_routes(State(routes): State<Arc<Routes>>) -> Json<Vec<ShownRoute>> {
    Json(routes.0.values().map(|state| ShownRoute::from(&**state)).collect())
}

async fn replace_faults(
    State(routes): State<Arc<Routes>>,
    Path(name): Path<String>,
    Body(list): Body<Vec<FaultBody>>,
) -> Result<Json<Vec<ShownFault>>, Problem> {
    let state = routes.get(&name)?;
    state.replace(list.into_iter().map(Fault::from).collect()).await?;
    Ok(Json(shown_faults(state)))
}

async fn clear_faults(
    State(routes): State<Arc<Routes>>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    routes.get(&name)?.replace(Vec::new()).await?;
    Ok(StatusCode::NO_CONTENT)
}
