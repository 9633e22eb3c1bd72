//! The proxy as a process, for a network of containers: routes from the command line, faults over HTTP.
//!
//! `GET /routes` shows what each route has done, `PUT /routes/{name}` sets its fault, and `DELETE /routes/{name}` ends it. There
//! is no authentication, so it listens on loopback only.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, put},
};
use clap::Parser;
use fault_proxy::{Error, Fault, Proxy, Route, Stats};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

/// Forwards TCP connections and injects network faults.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// A route as name=listen,upstream: an IP address with a port, and a host with a port. May be repeated.
    #[arg(long = "route", required = true, value_name = "NAME=LISTEN,UPSTREAM")]
    routes: Vec<Route>,

    /// Where faults are set. Loopback only.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    control: SocketAddr,

    /// Permits routes to listen on private and unspecified addresses.
    #[arg(long)]
    container_network: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { routes, control, container_network } = Arguments::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    ensure!(
        control.ip().is_loopback(),
        "the control API listens on loopback only, because it has no authentication"
    );
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let routes = routes.into_iter().map(|route| Route { container_network, ..route }).collect();
    let proxy = Arc::new(Proxy::start(routes).await?);
    let listener = TcpListener::bind(control).await.context("failed to listen for the control API")?;
    println!("{}", listener.local_addr()?);
    let app = Router::new()
        .route("/routes", get(show))
        .route("/routes/{name}", put(set).delete(clear))
        .with_state(proxy);
    tokio::select! {
        served = async { axum::serve(listener, app).await } => served.context("failed to serve the control API"),
        _ = terminate.recv() => Ok(()),
    }
}

async fn show(State(proxy): State<Arc<Proxy>>) -> Json<BTreeMap<String, Stats>> {
    Json(proxy.stats())
}

async fn set(
    State(proxy): State<Arc<Proxy>>,
    Path(name): Path<String>,
    Json(fault): Json<Fault>,
) -> Result<StatusCode, (StatusCode, String)> {
    answer(proxy.set(&name, fault))
}

async fn clear(
    State(proxy): State<Arc<Proxy>>,
    Path(name): Path<String>,
) -> Result<StatusCode, (StatusCode, String)> {
    answer(proxy.clear(&name))
}

fn answer(done: Result<(), Error>) -> Result<StatusCode, (StatusCode, String)> {
    match done {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error @ Error::UnknownRoute(_)) => Err((StatusCode::NOT_FOUND, error.to_string())),
        Err(error) => Err((StatusCode::BAD_REQUEST, error.to_string())),
    }
}
