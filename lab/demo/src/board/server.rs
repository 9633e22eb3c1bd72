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
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::choice::Choice;
use crate::running_system::RunningSystem;
use crate::story;

use super::answer::{Answer, Failure, begun};
use super::board_state::BoardState;
use super::collector::collect;
use super::faults::{self, Faults, Strike};
use super::guard::{self, Guard};
use super::load::BoardLoad;
use super::steps::{self, StepPhase, StepRequest, Steps, StepsState};
use super::twin::{self, Compare, Twin};
use super::{assets, failed};

/// Pages that are told at the same time.
const STREAMS: usize = 16;

const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How long an order may take that a person has placed.
const ORDER_DEADLINE: Duration = Duration::from_secs(5);

/// Serves the page over a running system until the future is dropped.
pub(crate) async fn serve(listener: TcpListener, system: RunningSystem, choice: Choice) -> Result<()> {
    let (faults, strikes) = Faults::new(None);
    let (twin, comparisons) = Twin::new(None);
    let (steps, requests) = Steps::new(StepsState::in_phase(StepPhase::Off));
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
        () = faults::carry_out(&state.faults, strikes, &state.system, &state.load) => Ok(()),
        () = twin::carry_out(&state.twin, comparisons, choice) => Ok(()),
        () = steps::carry_out(&state.steps, requests, choice) => Ok(()),
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
        .route("/failed", get(failed::list))
        .route("/failed/{service}/{key}", get(failed::show))
        .route("/failed/replay", post(failed::replay))
        .route("/failed/discard", post(failed::discard))
        .route("/failed/send", post(failed::send_bad_message));
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

async fn story(State(state): State<BoardState>, Path(id): Path<Uuid>) -> Answer<Value> {
    let story = story::story(&state.system, id).await?;
    state.recorder.keep_story(&story);
    Ok(Json(story))
}

/// Places an order that can be confirmed.
async fn place(State(state): State<BoardState>) -> Answer<Value> {
    let sent = Instant::now();
    let id =
        timeout(ORDER_DEADLINE, state.system.order_once()).await.context("the order was not answered")??;
    state.load.record(id);
    Ok(Json(json!({ "id": id, "milliseconds": sent.elapsed().as_secs_f64() * 1e3 })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rate {
    rate: u32,
}

async fn set_load(State(state): State<BoardState>, Json(Rate { rate }): Json<Rate>) -> Answer<Value> {
    state.load.set_rate(rate).await?;
    Ok(Json(json!({})))
}

async fn strike(State(state): State<BoardState>, Json(strike): Json<Strike>) -> Answer<Value> {
    if !state.system.can_act() {
        return Err(Failure::forbidden("this board has no access to the container engine"));
    }
    begun(faults::begin(&state.faults, &strike))
}

async fn compare(State(state): State<BoardState>, Json(compare): Json<Compare>) -> Answer<Value> {
    need_processes(&state)?;
    begun(twin::begin(&state.twin, &compare))
}

async fn step(State(state): State<BoardState>, Json(request): Json<StepRequest>) -> Answer<Value> {
    need_processes(&state)?;
    begun(steps::begin(&state.steps, request))
}

fn need_processes(state: &BoardState) -> Result<(), Failure> {
    let refusal = "the lab programs and variants are in no image: `cargo demo --with local up` has them";
    if state.system.has_processes() { Ok(()) } else { Err(Failure::forbidden(refusal)) }
}
