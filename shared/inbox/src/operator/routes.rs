//! The operator's routes over HTTP. `docs/http.md` is their reference.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State},
    routing::{get, post},
};
use events::transport::Handler;
use runtime::{
    admin::{Choice, Note, Params},
    problem::{Body, Problem},
};
use serde::Deserialize;
use sqlx::PgPool;

use super::{Again, Discard, Letter, MOST, Page, Rules, Summary, Which, discard, list, replay, show};

/// What the routes share.
struct Desk<H> {
    pool: PgPool,
    handler: Arc<H>,
    rules: Rules,
}

impl<H> Clone for Desk<H> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), handler: self.handler.clone(), rules: self.rules }
    }
}

/// `/admin/dead-letters…`, with the service's own handler for what is replayed.
pub fn routes<H: Handler>(pool: PgPool, handler: H, rules: Rules) -> Router {
    Router::new()
        .route("/admin/dead-letters", get(list_letters::<H>))
        .route("/admin/dead-letters/{id}", get(show_letter::<H>))
        .route("/admin/dead-letters/replay", post(replay_letters::<H>))
        .route("/admin/dead-letters/discard", post(discard_letters::<H>))
        .with_state(Desk { pool, handler: Arc::new(handler), rules })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListParams {
    #[serde(default)]
    after: i64,
    #[serde(default = "usual_limit")]
    limit: u8,
    /// Also those that were settled.
    #[serde(default)]
    all: bool,
}

fn usual_limit() -> u8 {
    50
}

async fn list_letters<H: Handler>(
    State(desk): State<Desk<H>>,
    Params(params): Params<ListParams>,
) -> Result<Json<Page<Summary>>, Problem> {
    let limit = params.limit.clamp(1, 100);
    Ok(Json(list(&desk.pool, params.after, limit, params.all).await?))
}

async fn show_letter<H: Handler>(
    State(desk): State<Desk<H>>,
    Path(id): Path<i64>,
) -> Result<Json<Letter>, Problem> {
    let letter = show(&desk.pool, id).await?;
    letter.map(Json).ok_or_else(|| Problem::no_such("there is no dead letter with this id"))
}

async fn replay_letters<H: Handler>(
    State(desk): State<Desk<H>>,
    Body(choice): Body<Choice<i64>>,
) -> Result<Json<Page<Again>>, Problem> {
    choice.check(MOST)?;
    let rules = Rules { force: choice.force, ..desk.rules };
    let which = Which { ids: choice.ids, from: choice.from, to: choice.to, after: choice.after };
    let page = replay(&desk.pool, &desk.handler, &which, rules).await?;
    let outcomes: Vec<_> = page.items.iter().map(|again| (again.id, &again.outcome)).collect();
    tracing::info!(count = outcomes.len(), force = rules.force, ?outcomes, "dead letters were replayed");
    Ok(Json(page))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DiscardBody {
    ids: Vec<i64>,
    note: Note,
}

async fn discard_letters<H: Handler>(
    State(desk): State<Desk<H>>,
    Body(body): Body<DiscardBody>,
) -> Result<Json<Discard>, Problem> {
    let done = discard(&desk.pool, &body.ids, body.note.as_str()).await?;
    let Discard { discarded, untouched } = &done;
    tracing::info!(?discarded, ?untouched, note = body.note.as_str(), "dead letters were discarded");
    Ok(Json(done))
}
