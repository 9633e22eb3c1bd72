//! The admin API, on its own listener and behind a token: list, show, replay and discard what was set aside.
//! `docs/http.md` is the reference of its routes. The owners of the tables, `outbox` and `inbox`, do the work.

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{ConnectInfo, FromRequest, FromRequestParts, Path, Query, Request, State},
    http::{StatusCode, header, request::Parts},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use database::Pool;
use inbox::{DeadLetterTable, Inbox, dead_letters};
use messaging::{
    SharedHandler, Wake,
    replay::{Note, Page, ReplayPolicy, Selection},
};
use outbox::parked_events::{self, ReplayOutcome, Replayed};
use serde::{Deserialize, de::DeserializeOwned};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info_span};
use uuid::{Uuid, fmt::Hyphenated};

use crate::{
    admission::Admission,
    environment, http,
    problem::{Problem, complete, read_json},
    settings::Tokens,
};

/// How long a request may take. A page of a replay takes far less.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

/// Requests at the same time; further ones are answered with 503.
const MAX_REQUESTS: usize = 4;

/// Serves the admin API on its own address, which is off unless it is configured.
pub(crate) struct AdminServer {
    listener: TcpListener,
    tokens: Tokens,
}

impl AdminServer {
    /// Listens, if an address is configured. An address without a token ends the process: an unprotected admin API would be
    /// an invalid setting that no one notices. `prefix` starts the service's variables, for example `ORDERS_`.
    pub(crate) fn bind(prefix: &str, address: Option<SocketAddr>, tokens: Option<&Tokens>) -> Option<Self> {
        let address = address?;
        let Some(tokens) = tokens else {
            environment::exit_invalid_config(&format!(
                "{prefix}ADMIN_TOKEN is missing: {prefix}ADMIN_ADDRESS is set, and the admin API needs a token"
            ));
        };
        let listener = http::bind(&format!("{prefix}ADMIN_ADDRESS"), address);
        Some(Self { listener, tokens: tokens.clone() })
    }

    /// Serves `routes` to clients with a token, until `stop`.
    pub(crate) async fn serve(self, routes: Router, stop: CancellationToken) -> anyhow::Result<()> {
        // The token is checked before anything else, whatever the path.
        let app = http::limited(routes, Admission::new(MAX_REQUESTS, MAX_REQUESTS), REQUEST_DEADLINE)
            .layer(middleware::from_fn_with_state(self.tokens, authorize))
            .layer(middleware::map_response(
                |response| async move { complete(response, Problem::from_status) },
            ));
        http::serve(self.listener, app, stop).await
    }
}

/// Rejects requests without a token, and puts the operator's name into the log of all that follows. All operators share
/// the tokens, so the name is what the client claims (`X-Operator`).
async fn authorize(State(tokens): State<Tokens>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.split_once(' '));
    let shown = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, shown)| shown);
    // In constant time, so that the duration does not tell how much of a guess was right. The length is no secret.
    let is_shown = |shown: &str, token: &String| bool::from(shown.as_bytes().ct_eq(token.as_bytes()));
    let authorized = shown.is_some_and(|shown| tokens.0.iter().any(|token| is_shown(shown, token)));
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| *peer);
    if !authorized {
        tracing::warn!(?peer, path = request.uri().path(), "admin request without a valid token");
        return Problem::unauthorized("send Authorization: Bearer with the token of ADMIN_TOKEN")
            .into_response();
    }
    let name = request.headers().get("x-operator").and_then(|value| value.to_str().ok());
    let name: String = name.unwrap_or("unnamed").chars().take(100).collect();
    let span = info_span!("operator", who = name, peer = peer.map(tracing::field::display));
    next.run(request).instrument(span).await
}

const DEFAULT_LIMIT: u8 = 50;
const MAX_LIMIT: u8 = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListParams {
    #[serde(default)]
    after: i64,
    limit: Option<u8>,
    /// Dead letters only: also those that are resolved.
    #[serde(default)]
    all: bool,
}

impl ListParams {
    fn limit(&self) -> u8 {
        self.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT)
    }
}

#[derive(Clone)]
struct OutboxState {
    pool: Pool,
    wake: Wake,
    policy: ReplayPolicy,
}

/// `/admin/parked…` and `/admin/published…`. Wakes the relays when events are pending again.
pub(crate) fn outbox_routes(pool: Pool, wake: Wake, policy: ReplayPolicy) -> Router {
    Router::new()
        .route("/admin/parked", get(list_parked))
        .route("/admin/parked/replay", post(replay_parked))
        .route("/admin/parked/{event_id}", get(show_event))
        .route("/admin/parked/{event_id}/discard", post(discard_parked))
        .route("/admin/published/replay", post(replay_published))
        .with_state(OutboxState { pool, wake, policy })
}

async fn list_parked(
    State(state): State<OutboxState>,
    Params(params): Params<ListParams>,
) -> Result<Json<Page<parked_events::OutboxEvent>>, Problem> {
    Ok(Json(parked_events::list(&state.pool, params.after, params.limit()).await?))
}

async fn show_event(
    State(state): State<OutboxState>,
    PathId(event_id): PathId<Hyphenated>,
) -> Result<Json<parked_events::OutboxEvent>, Problem> {
    let event = parked_events::show(&state.pool, event_id.into_uuid()).await?;
    event.map(Json).ok_or_else(|| Problem::not_found("the outbox has no event with this id"))
}

async fn replay_parked(
    State(state): State<OutboxState>,
    Body(selection): Body<Selection<Uuid>>,
) -> Result<Json<Page<parked_events::ReplayResult>>, Problem> {
    state.replay(Replayed::Parked, selection).await
}

async fn replay_published(
    State(state): State<OutboxState>,
    Body(selection): Body<Selection<Uuid>>,
) -> Result<Json<Page<parked_events::ReplayResult>>, Problem> {
    if selection.all {
        // The whole history through every consumer is never what was meant.
        return Err(Problem::bad_request("`all` is not allowed here: give ids, or from and to"));
    }
    state.replay(Replayed::Published, selection).await
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DiscardParked {
    note: Note,
    /// The operator accepts that consumers will see a gap in this aggregate's sequence.
    #[serde(default)]
    accept_gap: bool,
}

async fn discard_parked(
    State(state): State<OutboxState>,
    PathId(event_id): PathId<Hyphenated>,
    Body(body): Body<DiscardParked>,
) -> Result<Json<parked_events::Discarded>, Problem> {
    if !body.accept_gap {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let problem = Problem::new(status, "gap-not-accepted", "Discarding leaves a gap");
        return Err(problem.detail(
            "consumers will never receive this event, and the later ones of its aggregate are published without it: \
             send acceptGap: true to accept that",
        ));
    }
    let note = body.note.as_str();
    let discarded = parked_events::discard(&state.pool, event_id.into_uuid(), note).await?;
    let discarded = discarded.ok_or_else(|| Problem::not_found("no parked event has this id"))?;
    state.wake.after_commit();
    let parked_events::Discarded { aggregate_id, gap, follow } = &discarded;
    tracing::info!(%event_id, %aggregate_id, gap, ?follow, note, "parked event discarded");
    Ok(Json(discarded))
}

impl OutboxState {
    async fn replay(
        &self,
        replayed: Replayed,
        selection: Selection<Uuid>,
    ) -> Result<Json<Page<parked_events::ReplayResult>>, Problem> {
        selection.check(parked_events::MAX_REPLAY).map_err(Problem::bad_request)?;
        let policy = ReplayPolicy { force: selection.force, ..self.policy };
        let page = parked_events::replay(&self.pool, replayed, &selection, policy).await?;
        let pending = page.items.iter().filter(|item| item.outcome == ReplayOutcome::Pending);
        let ids: Vec<_> = pending.map(|item| item.event_id.to_string()).collect();
        if !ids.is_empty() {
            self.wake.after_commit();
        }
        let (count, asked, dry_run) = (ids.len(), page.items.len(), selection.dry_run);
        tracing::info!(?replayed, count, asked, force = policy.force, dry_run, ?ids, "events replayed");
        Ok(Json(page))
    }
}

#[derive(Clone)]
struct DeadLetterState {
    pool: Pool,
    table: DeadLetterTable,
    handler: SharedHandler,
    policy: ReplayPolicy,
}

/// `/admin/dead-letters…`. Replays use the service's own `handler`.
pub(crate) fn dead_letter_routes(
    pool: Pool,
    inbox: Inbox,
    handler: SharedHandler,
    policy: ReplayPolicy,
) -> Router {
    let table = DeadLetterTable::new(pool.clone(), inbox);
    Router::new()
        .route("/admin/dead-letters", get(list_letters))
        .route("/admin/dead-letters/{id}", get(show_letter))
        .route("/admin/dead-letters/replay", post(replay_letters))
        .route("/admin/dead-letters/discard", post(discard_letters))
        .with_state(DeadLetterState { pool, table, handler, policy })
}

async fn list_letters(
    State(state): State<DeadLetterState>,
    Params(params): Params<ListParams>,
) -> Result<Json<Page<dead_letters::DeadLetter>>, Problem> {
    Ok(Json(dead_letters::list(&state.pool, params.after, params.limit(), params.all).await?))
}

async fn show_letter(
    State(state): State<DeadLetterState>,
    PathId(id): PathId<i64>,
) -> Result<Json<dead_letters::DeadLetter>, Problem> {
    let letter = dead_letters::show(&state.pool, id).await?;
    letter.map(Json).ok_or_else(|| Problem::not_found("there is no dead letter with this id"))
}

async fn replay_letters(
    State(state): State<DeadLetterState>,
    Body(selection): Body<Selection<i64>>,
) -> Result<Json<Page<dead_letters::ReplayResult>>, Problem> {
    selection.check(dead_letters::MAX_REPLAY).map_err(Problem::bad_request)?;
    let policy = ReplayPolicy { force: selection.force, ..state.policy };
    let page = dead_letters::replay(&state.table, &state.handler, &selection, policy).await?;
    let outcomes: Vec<_> = page.items.iter().map(|item| (item.id, &item.outcome)).collect();
    let (count, dry_run) = (outcomes.len(), selection.dry_run);
    tracing::info!(count, force = policy.force, dry_run, ?outcomes, "dead letters replayed");
    Ok(Json(page))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DiscardLetters {
    ids: Vec<i64>,
    note: Note,
}

async fn discard_letters(
    State(state): State<DeadLetterState>,
    Body(body): Body<DiscardLetters>,
) -> Result<Json<dead_letters::Discard>, Problem> {
    let note = body.note.as_str();
    let discard = dead_letters::discard(&state.table, &body.ids, note).await?;
    let dead_letters::Discard { discarded, untouched } = &discard;
    tracing::info!(?discarded, ?untouched, note, "dead letters discarded");
    Ok(Json(discard))
}

/// `axum::extract::Query` that rejects with a [`Problem`].
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = Query::from_request_parts(parts, state).await;
        params.map(|Query(params)| Self(params)).map_err(|invalid| Problem::bad_request(invalid.body_text()))
    }
}

/// `axum::extract::Path` that rejects with a [`Problem`].
struct PathId<T>(T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathId<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let id = Path::from_request_parts(parts, state).await;
        id.map(|Path(id)| Self(id)).map_err(|invalid| Problem::bad_request(invalid.body_text()))
    }
}

/// `axum::Json` for requests that rejects with a [`Problem`].
struct Body<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        read_json(request, Problem::bad_request).await.map(Self)
    }
}
