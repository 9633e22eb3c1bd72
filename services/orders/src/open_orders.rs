//! Orders that still wait for an answer: counted, listed for operators, and given up when they have waited too long.

use std::time::Duration;

use axum::{Json, Router, extract::State as Shared, routing::get};
use events::{Cause, TraceContext};
use runtime::{admin::Params, problem::Problem};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use time::OffsetDateTime;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    Shop,
    cancel_order::{self, Cancellation},
    order_state::{Happening, State},
};

/// How often they are looked at, how many are given up at a time, and how long one statement may take.
const EVERY: Duration = Duration::from_secs(1);
const AT_A_TIME: i64 = 100;
const PATIENCE: Duration = Duration::from_secs(5);

/// So many rounds the consumer has to have been there.
const GRACE: u32 = 10;

/// Counts open orders into `orders_open`, shows the age of the oldest in `orders_oldest_open_seconds`, and cancels those
/// that have waited for longer than `answer_within`, until `stop`. When the database does not answer the gauges become
/// NaN: unknown is never shown as zero.
///
/// A time-out is an event like any other: what inventory or billing did meanwhile, they undo when they hear of it, and
/// what they do later they undo then.
///
/// Nothing is given up before `consuming` has been `Ok` for ten rounds: after an outage the answers that lie in the queue
/// come first.
pub async fn watch(
    shop: Shop,
    answer_within: Duration,
    consuming: impl Fn() -> Result<(), String> + Send,
    stop: CancellationToken,
) {
    let rounds = async {
        let (mut failing, mut heard) = (false, 0_u32);
        loop {
            heard = if consuming().is_ok() { heard.saturating_add(1) } else { 0 };
            let looked = timeout(PATIENCE, observe(&shop.pool)).await.ok().and_then(Result::ok);
            let (open, age) = looked.unwrap_or((f64::NAN, f64::NAN));
            metrics::gauge!("orders_open").set(open);
            metrics::gauge!("orders_oldest_open_seconds").set(age);
            let given_up = if heard > GRACE { give_up(&shop, answer_within).await } else { Ok(0) };
            match given_up {
                Ok(_) => failing = false,
                Err(_) if failing => {}
                Err(problem) => {
                    failing = true;
                    tracing::warn!(problem, "unanswered orders are not given up for now");
                }
            }
            sleep(EVERY).await;
        }
    };
    stop.run_until_cancelled(rounds).await;
}

async fn observe(pool: &PgPool) -> Result<(f64, f64), sqlx::Error> {
    let row = sqlx::query!(
        r#"select count(*)::float8 as "open!",
                  coalesce(extract(epoch from clock_timestamp() - min(placed_at)), 0)::float8 as "age!"
           from orders where status in ('pending', 'reserved', 'paid')"#
    )
    .fetch_one(pool)
    .await?;
    Ok((row.open, row.age))
}

/// Cancels what has waited for too long, oldest first, each in a statement of its own. Several instances may do so at
/// once: who comes second finds the order moved on.
pub(crate) async fn give_up(shop: &Shop, answer_within: Duration) -> Result<u64, String> {
    let late = sqlx::query!(
        "select id, version, status from orders
         where status in ('pending', 'reserved', 'paid')
           and placed_at < clock_timestamp() - make_interval(secs => $1)
         order by placed_at limit $2",
        answer_within.as_secs_f64(),
        AT_A_TIME,
    )
    .fetch_all(&shop.pool);
    let late = timeout(PATIENCE, late).await.map_err(|late| late.to_string())?;
    let mut given_up = 0;
    for order in late.map_err(|error| error.to_string())? {
        let state: State = order.status.parse()?;
        if state.after(Happening::WaitedTooLong).is_none() {
            continue;
        }
        let silent = state.waiting_for().join(" and ");
        let cancellation = Cancellation {
            // Not where else it might be given up: an answer that comes at this moment would be called missing.
            from: vec![order.status],
            cause: Cause::TimedOut,
            detail: format!("no answer from {silent} within {}", humantime::format_duration(answer_within)),
        };
        let trace = TraceContext::root();
        let written = cancel_order::write(&shop.pool, order.id, order.version, &trace, cancellation);
        let written = timeout(PATIENCE, written).await.map_err(|late| late.to_string())?;
        if written.map_err(|problem| problem.to_string())?.is_some() {
            given_up += 1;
            shop.wake.after_commit();
            metrics::counter!("orders_timed_out_total").increment(1);
            tracing::warn!(order_id = %order.id, trace_id = trace.trace_id(), silent, "order given up");
        }
    }
    Ok(given_up)
}

/// `GET /admin/open-orders`: who waits for whom, oldest first.
pub fn admin(pool: PgPool) -> Router {
    Router::new().route("/admin/open-orders", get(list)).with_state(pool)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListParams {
    /// Open for longer than this many seconds.
    #[serde(default)]
    older_than: u32,
    #[serde(default = "usual_limit")]
    limit: u8,
}

fn usual_limit() -> u8 {
    50
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OpenOrder {
    id: Uuid,
    #[serde(with = "time::serde::rfc3339")]
    placed_at: OffsetDateTime,
    open_seconds: f64,
    waiting_for: &'static [&'static str],
}

async fn list(
    Shared(pool): Shared<PgPool>,
    Params(params): Params<ListParams>,
) -> Result<Json<Vec<OpenOrder>>, Problem> {
    let rows = sqlx::query!(
        r#"select id, status, placed_at,
                  extract(epoch from clock_timestamp() - placed_at)::float8 as "open_seconds!"
           from orders
           where status in ('pending', 'reserved', 'paid')
             and placed_at <= clock_timestamp() - make_interval(secs => $1)
           order by placed_at limit $2"#,
        f64::from(params.older_than),
        i64::from(params.limit.clamp(1, 100)),
    )
    .fetch_all(&pool)
    .await?;
    let orders = rows.into_iter().map(|row| OpenOrder {
        id: row.id,
        placed_at: row.placed_at,
        open_seconds: row.open_seconds,
        waiting_for: row.status.parse().map_or(&[], State::waiting_for),
    });
    Ok(Json(orders.collect()))
}
