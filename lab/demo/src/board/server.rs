//! The board's HTTP server.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use uuid::Uuid;

use crate::ledger::Ledger;
use crate::running_system::RunningSystem;

use super::board_state::BoardState;
use super::faults::{Busy, Faults, Strike};
use super::load::BoardLoad;
use super::{assets, collector, guard, orders};

/// Pages that are told at the same time.
const STREAMS: usize = 16;

const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Serves the page over a running system until the future is dropped.
pub(crate) async fn serve(listener: TcpListener, system: RunningSystem) -> Result<()> {
    let ledger = Arc::new(Ledger::open(&system.ledger_path().await?)?);
    let system = Arc::new(system);
    let (faults, begun) = Faults::new();
    let faults = Arc::new(faults);
    let load = Arc::new(BoardLoad::new(system.orders_url(), ledger));
    let (pages, snapshots) = watch::channel(Arc::from("null"));
    let state = BoardState {
        port: listener.local_addr()?.port(),
        token: Uuid::new_v4().simple().to_string().into(),
        system: system.clone(),
        faults: faults.clone(),
        load: load.clone(),
        snapshots,
        streams: Arc::new(Semaphore::new(STREAMS)),
    };
    let mut routes = Router::new()
        .route("/", get(|State(state): State<BoardState>| async move { assets::page(&state.token) }))
        // Browsers ask for it.
        .route("/favicon.ico", get(|| async { StatusCode::NO_CONTENT }))
        .route("/stream", get(follow))
        .route("/orders/{id}", get(story))
        .route("/orders", post(place))
        .route("/load", post(set_load))
        .route("/fault", post(strike));
    for (path, content_type, text) in assets::FILES {
        routes = routes.route(path, get(move || async move { assets::file(content_type, text) }));
    }
    let routes = routes.layer(middleware::from_fn_with_state(state.clone(), guard::guard)).with_state(state);
    tokio::select! {
        ended = axum::serve(listener, routes) => ended.context("the board's server ended"),
        () = collector::collect(&system, &faults, &load, pages) => Ok(()),
        () = faults.carry_out(begun, &system, &load) => Ok(()),
    }
}

/// Sends a snapshot whenever there is a new one. A page that does not keep up misses some.
async fn follow(State(state): State<BoardState>) -> Response {
    let Ok(permit) = state.streams.clone().try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many pages are open").into_response();
    };
    let next = |(mut snapshots, permit): (watch::Receiver<Arc<str>>, OwnedSemaphorePermit)| async move {
        snapshots.changed().await.ok()?;
        let event = Event::default().data(&**snapshots.borrow_and_update());
        Some((Ok::<_, Infallible>(event), (snapshots, permit)))
    };
    let events = stream::unfold((state.snapshots, permit), next);
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

async fn story(State(state): State<BoardState>, Path(id): Path<Uuid>) -> Response {
    answer(orders::story(&state.system, id).await.map(Json))
}

async fn place(State(state): State<BoardState>) -> Response {
    answer(orders::place(&state.system, &state.load).await.map(Json))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rate {
    rate: u32,
}

async fn set_load(State(state): State<BoardState>, body: Result<Json<Rate>, JsonRejection>) -> Response {
    match body {
        Ok(Json(Rate { rate })) => answer(state.load.set_rate(rate).await.map(|()| Json(json!({})))),
        Err(invalid) => invalid.into_response(),
    }
}

async fn strike(State(state): State<BoardState>, body: Result<Json<Strike>, JsonRejection>) -> Response {
    let strike = match body {
        Ok(Json(strike)) => strike,
        Err(invalid) => return invalid.into_response(),
    };
    if !state.system.can_act() {
        return (StatusCode::FORBIDDEN, "this board has no access to the container engine").into_response();
    }
    match state.faults.begin(&strike) {
        Ok(()) => Json(json!({})).into_response(),
        Err(error) if error.is::<Busy>() => (StatusCode::CONFLICT, error.to_string()).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}")).into_response(),
    }
}

fn answer<T: IntoResponse>(result: Result<T>) -> Response {
    match result {
        Ok(body) => body.into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response(),
    }
}
