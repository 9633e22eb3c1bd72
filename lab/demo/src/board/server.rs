//! The board's HTTP server.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
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

use crate::choice::Choice;
use crate::running_system::RunningSystem;
use crate::story;

use super::board_state::BoardState;
use super::busy::Busy;
use super::collector::collect;
use super::faults::{Faults, Strike};
use super::guard::{self, Guard};
use super::load::BoardLoad;
use super::steps::{StepRequest, Steps};
use super::twin::{Compare, Twin};
use super::{assets, failed, orders};

/// Pages that are told at the same time.
const STREAMS: usize = 16;

const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Serves the page over a running system until the future is dropped.
pub(crate) async fn serve(listener: TcpListener, system: RunningSystem, choice: Choice) -> Result<()> {
    let (faults, strikes) = Faults::new();
    let (twin, comparisons) = Twin::new();
    let (steps, requests) = Steps::new();
    let (pages, snapshots) = watch::channel(Arc::from("null"));
    let guard =
        Guard { port: listener.local_addr()?.port(), token: Uuid::new_v4().simple().to_string().into() };
    let state = BoardState {
        load: Arc::new(BoardLoad::new(system.orders_url(), system.ledger().await?)),
        system: Arc::new(system),
        faults: Arc::new(faults),
        twin: Arc::new(twin),
        steps: Arc::new(steps),
        recorder: Arc::default(),
        snapshots,
        streams: Arc::new(Semaphore::new(STREAMS)),
    };
    tokio::select! {
        ended = axum::serve(listener, routes(state.clone(), guard)) => ended.context("the board's server ended"),
        () = collect(&state, pages) => Ok(()),
        () = state.faults.carry_out(strikes, &state.system, &state.load) => Ok(()),
        () = state.twin.carry_out(comparisons, choice) => Ok(()),
        () = state.steps.carry_out(requests, choice) => Ok(()),
    }
}

fn routes(state: BoardState, guard: Guard) -> Router {
    let token = guard.token.clone();
    let mut routes = Router::new()
        .route("/", get(|| async move { assets::page(&token) }))
        // Browsers ask for it.
        .route("/favicon.ico", get(|| async { StatusCode::NO_CONTENT }))
        .route("/stream", get(follow))
        .route("/recording", get(|State(state): State<BoardState>| async move { state.recorder.download() }))
        .route("/orders/{id}", get(story))
        .route("/orders", post(place))
        .route("/load", post(set_load))
        .route("/fault", post(strike))
        .route("/twin", post(compare))
        .route("/steps", post(step))
        .route("/failed", get(list_failed))
        .route("/failed/{service}/{key}", get(show_failed))
        .route("/failed/replay", post(replay_failed))
        .route("/failed/discard", post(discard_failed))
        .route("/failed/send", post(send_bad_message));
    for (path, content_type, text) in assets::files() {
        routes = routes.route(path, get(move || async move { assets::file(content_type, text) }));
    }
    routes.layer(middleware::from_fn_with_state(guard, guard::guard)).with_state(state)
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
    let story = story::story(&state.system, id).await;
    if let Ok(story) = &story {
        state.recorder.keep_story(story);
    }
    answer(story)
}

async fn place(State(state): State<BoardState>) -> Response {
    answer(orders::place(&state.system, &state.load).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rate {
    rate: u32,
}

async fn set_load(State(state): State<BoardState>, Json(Rate { rate }): Json<Rate>) -> Response {
    answer(state.load.set_rate(rate).await.map(|()| json!({})))
}

async fn strike(State(state): State<BoardState>, Json(strike): Json<Strike>) -> Response {
    if !state.system.can_act() {
        return forbidden("this board has no access to the container engine");
    }
    begun(state.faults.begin(&strike))
}

async fn compare(State(state): State<BoardState>, Json(compare): Json<Compare>) -> Response {
    if !state.system.has_processes() {
        return forbidden(NEEDS_PROCESSES);
    }
    begun(state.twin.begin(&compare))
}

async fn step(State(state): State<BoardState>, Json(request): Json<StepRequest>) -> Response {
    if !state.system.has_processes() {
        return forbidden(NEEDS_PROCESSES);
    }
    begun(state.steps.request(request))
}

async fn list_failed(State(state): State<BoardState>) -> Response {
    answer(failed::list(&state.system).await)
}

async fn show_failed(
    State(state): State<BoardState>,
    Path((service, key)): Path<(String, String)>,
) -> Response {
    answer(failed::show(&state.system, &format!("{service}/{key}")).await)
}

async fn replay_failed(State(state): State<BoardState>, Json(replay): Json<failed::Replay>) -> Response {
    answer(failed::replay(&state.system, replay).await)
}

async fn discard_failed(State(state): State<BoardState>, Json(discard): Json<failed::Discard>) -> Response {
    answer(failed::discard(&state.system, discard).await)
}

async fn send_bad_message(State(state): State<BoardState>) -> Response {
    answer(failed::send_bad_message(&state.system).await.map(|()| json!({})))
}

const NEEDS_PROCESSES: &str =
    "the lab programs and variants are in no image: `cargo demo --with local up` has them";

fn forbidden(reason: &'static str) -> Response {
    (StatusCode::FORBIDDEN, reason).into_response()
}

/// The answer to a request that begins something.
fn begun(result: Result<()>) -> Response {
    match result {
        Ok(()) => Json(json!({})).into_response(),
        Err(error) if error.is::<Busy>() => (StatusCode::CONFLICT, error.to_string()).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}")).into_response(),
    }
}

fn answer<T: serde::Serialize>(result: Result<T>) -> Response {
    match result {
        Ok(body) => Json(body).into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response(),
    }
}
