//! The operator's routes over HTTP: events that are parked, and events that are to be published again. `docs/http.md` is
//! their reference.

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, post},
};
use runtime::{
    admin::{Choice, Note, Params},
    problem::{Body, Problem},
};
use serde::Deserialize;
use sqlx::PgPool;
use uuid::Uuid;

use super::{Again, Discard, Event, MOST, Outcome, Page, Parked, Rules, Which};
use crate::Wake;

/// What the routes share.
#[derive(Clone)]
struct Desk {
    pool: PgPool,
    wake: Wake,
    rules: Rules,
}

/// `/admin/parked…` and `/admin/published…`. `wake` is rung when something is owed again.
pub fn routes(pool: PgPool, wake: Wake, rules: Rules) -> Router {
    Router::new()
        .route("/admin/parked", get(list_parked))
        .route("/admin/parked/replay", post(replay_parked))
        .route("/admin/parked/{event_id}", get(show))
        .route("/admin/parked/{event_id}/discard", post(discard))
        .route("/admin/published/replay", post(replay_published))
        .with_state(Desk { pool, wake, rules })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListParams {
    #[serde(default)]
    after: i64,
    #[serde(default = "usual_limit")]
    limit: u8,
}

fn usual_limit() -> u8 {
    50
}

async fn list_parked(
    State(desk): State<Desk>,
    Params(params): Params<ListParams>,
) -> Result<Json<Page<Parked>>, Problem> {
    let page = super::list_parked(&desk.pool, params.after, params.limit.clamp(1, 100)).await;
    Ok(Json(page.map_err(problem)?))
}

async fn show(State(desk): State<Desk>, Path(event_id): Path<Uuid>) -> Result<Json<Event>, Problem> {
    let event = super::show(&desk.pool, event_id).await.map_err(problem)?;
    event.map(Json).ok_or_else(|| Problem::no_such("the outbox has no event with this id"))
}

async fn replay_parked(
    State(desk): State<Desk>,
    Body(choice): Body<Choice<Uuid>>,
) -> Result<Json<Page<Again>>, Problem> {
    let (which, rules) = desk.read(choice)?;
    let page = super::replay_parked(&desk.pool, &which, rules).await.map_err(problem)?;
    Ok(desk.replayed("parked", page, rules))
}

async fn replay_published(
    State(desk): State<Desk>,
    Body(choice): Body<Choice<Uuid>>,
) -> Result<Json<Page<Again>>, Problem> {
    if choice.all {
        // The whole history through every consumer is never what was meant.
        return Err(Problem::bad_request("not all: ids, or from and to"));
    }
    let (which, rules) = desk.read(choice)?;
    let page = super::replay_published(&desk.pool, &which, rules).await.map_err(problem)?;
    Ok(desk.replayed("published", page, rules))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DiscardBody {
    note: Note,
    /// Consumers will see a gap in this aggregate's sequence: to be said, or nothing is done.
    #[serde(default)]
    accept_gap: bool,
}

async fn discard(
    State(desk): State<Desk>,
    Path(event_id): Path<Uuid>,
    Body(body): Body<DiscardBody>,
) -> Result<Json<Discard>, Problem> {
    if !body.accept_gap {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let problem = Problem::new(status, "gap-not-accepted", "Discarding leaves a gap");
        return Err(problem.detail(
            "consumers will never see this event, and the later ones of its order are published without it: send \
             acceptGap: true if that is meant",
        ));
    }
    let note = body.note.as_str();
    let done = super::discard(&desk.pool, event_id, note).await.map_err(problem)?;
    match &done {
        Discard::Discarded { aggregate_id, gap, follow } => {
            desk.wake.after_commit();
            tracing::info!(%event_id, %aggregate_id, gap, ?follow, note, "a parked event was discarded");
            Ok(Json(done))
        }
        Discard::NotParked => Err(Problem::no_such("no parked event has this id")),
    }
}

impl Desk {
    fn read(&self, choice: Choice<Uuid>) -> Result<(Which, Rules), Problem> {
        choice.check(MOST)?;
        let rules = Rules { force: choice.force, ..self.rules };
        Ok((Which { ids: choice.ids, from: choice.from, to: choice.to, after: choice.after }, rules))
    }

    fn replayed(&self, what: &str, page: Page<Again>, rules: Rules) -> Json<Page<Again>> {
        let owed = page.items.iter().filter(|again| again.outcome == Outcome::Owed);
        let ids: Vec<_> = owed.map(|again| again.event_id.to_string()).collect();
        if !ids.is_empty() {
            self.wake.after_commit();
        }
        let (count, asked) = (ids.len(), page.items.len());
        tracing::info!(what, count, asked, force = rules.force, ?ids, "events were replayed");
        Json(page)
    }
}

/// The cause behind an outbox's error is the database's.
fn problem(error: crate::Error) -> Problem {
    match error.into_source().downcast::<sqlx::Error>() {
        Ok(cause) => (*cause).into(),
        Err(cause) => {
            tracing::error!(cause, "an operator's request failed");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Something went wrong on our side")
        }
    }
}
