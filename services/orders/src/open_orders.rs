//! Orders that wait for an answer: counted, listed for operators, and cancelled when they have waited too long.

use std::time::{Duration, SystemTime};

use axum::{Json, Router, extract::State, routing::get};
use database::{AgeWatermark, ClockWatch, Pool, is_locked};
use events::{
    Cause, OrderCancelled, TraceContext,
    spans::{Kind, Span},
};
use serde::{Deserialize, Serialize};
use service::{Params, problem::Problem};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    app_state::AppState,
    cancel_order,
    order_handler::INBOX,
    order_state::{OrderState, Trigger},
};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const STATEMENT_DEADLINE: Duration = Duration::from_secs(5);

/// The most orders that are counted: each instance counts each second, and an outage leaves a million.
const MAX_COUNTED: i64 = 100_001;

/// The most orders that one check cancels.
const MAX_CANCELLATIONS: i64 = 100;

/// With so many unresolved dead letters no order is cancelled: reading all of them at each check would take long.
const MAX_LETTERS: i64 = 1000;

/// For so many checks in a row the consumer's queue must be empty: what came at that very moment is applied by then.
const CAUGHT_UP_CHECKS: u32 = 10;

/// For so many checks in a row orders must be late: the other instances report only then, each second.
const LATE_CHECKS: u32 = 3;

/// Counts open orders into `orders_open`, up to 100,001, and the age of the oldest into `orders_oldest_open_seconds`,
/// or NaN when the database does not answer. Cancels those that have waited longer than `answer_within`. Until `stop`.
///
/// A time-out is an event like any other: inventory and billing undo what they did for the order, before or after it.
///
/// No order is cancelled before the consumers of all instances have `caught_up` for ten checks: after an outage the answers that
/// wait in the queues are applied first, however many. And none while the database's clock is suspect.
pub async fn watch(
    state: AppState,
    operations: Pool,
    answer_within: Duration,
    caught_up: impl Fn() -> Option<Vec<i16>> + Send,
    partitions: u8,
    stop: CancellationToken,
) {
    let rounds = async {
        let (mut failing, mut caught_up_checks, mut clock) = (false, 0_u32, ClockWatch::default());
        let (instance, mut watermark, mut ahead_since) = (Uuid::now_v7(), AgeWatermark::default(), None);
        let mut late_checks = 0_u32;
        loop {
            let own_partitions = caught_up();
            caught_up_checks = own_partitions.as_ref().map_or(0, |_| caught_up_checks.saturating_add(1));
            let scan = watermark.begin();
            let counted = sqlx::query!(
        r#"select count(*)::float8 as "open!", extract(epoch from clock_timestamp())::float8 as "now!",
                  greatest(extract(epoch from clock_timestamp() - min(placed_at)), 0)::float8 as "age!",
                  coalesce(max(placed_at) > clock_timestamp() + interval '6 minutes', false) as "ahead!"
           from (select placed_at from orders where status in ('pending', 'reserved', 'paid')
                   and placed_at > statement_timestamp() - make_interval(secs => $2)
                 order by placed_at limit $1) as open"#,
                MAX_COUNTED,
                scan.max_age.as_secs_f64(),
            )
            .fetch_one(&operations);
            let counted = timeout(STATEMENT_DEADLINE, counted).await.ok().and_then(Result::ok);
            let oldest = counted.as_ref().and_then(|row| Duration::try_from_secs_f64(row.age).ok());
            watermark.ended(&scan, oldest);
            // Placed by a clock that was ahead: how old such an order is, only this process's clock can tell.
            let is_ahead = counted.as_ref().is_some_and(|row| row.ahead);
            ahead_since = is_ahead.then(|| ahead_since.unwrap_or_else(Instant::now));
            let ahead_is_late = ahead_since.is_some_and(|since| since.elapsed() > answer_within);
            let (open, age) = counted.as_ref().map_or((f64::NAN, f64::NAN), |row| (row.open, row.age));
            metrics::gauge!("orders_open").set(open);
            metrics::gauge!("orders_oldest_open_seconds").set(age);
            let database_time = counted.and_then(|row| Duration::try_from_secs_f64(row.now).ok());
            let steady = database_time.is_some_and(|now| clock.is_steady(now));
            if database_time.is_some() && !steady {
                // Its ages would be wrong, and orders that it hides are not counted.
                watermark = AgeWatermark::default();
            }
            // At rest there are none, and the search for them would be one more statement each second.
            let some_are_late = ahead_is_late || age > answer_within.as_secs_f64();
            late_checks = if some_are_late { late_checks.saturating_add(1) } else { 0 };
            let own = own_partitions.as_deref().filter(|_| caught_up_checks > CAUGHT_UP_CHECKS && steady);
            let cancelled = if some_are_late {
                let all = all_caught_up(&operations, instance, own, partitions);
                match timeout(STATEMENT_DEADLINE, all).await {
                    Ok(Ok(true)) if late_checks > LATE_CHECKS => {
                        let late = (answer_within, scan.max_age, ahead_is_late);
                        cancel_late(&state, &operations, late).await
                    }
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(late) => Err(late.to_string()),
                }
            } else {
                Ok(())
            };
            if let (Err(problem), false) = (&cancelled, failing) {
                tracing::warn!(problem, "failed to cancel unanswered orders; trying again");
            }
            failing = cancelled.is_err();
            sleep(CHECK_INTERVAL).await;
        }
    };
    stop.run_until_cancelled(rounds).await;
}

/// Reports whether this instance has caught up, with the partitions that it knows to be its own. Tells whether all instances have,
/// and whether each partition is one's own: else another client may hold answers. Only while orders are late, so that it costs
/// nothing at rest. An instance that has reported within a minute and is silent now may hold answers for a while.
async fn all_caught_up(
    operations: &Pool,
    instance: Uuid,
    own_partitions: Option<&[i16]>,
    partitions: u8,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"with stale as (
               delete from caught_up_instances
               where instance <> $1 and reported_at < clock_timestamp() - interval '1 hour'
           ), reported as (
               insert into caught_up_instances (instance, caught_up, partitions) values ($1, $2, $3)
               on conflict (instance) do update
               set caught_up = excluded.caught_up, partitions = excluded.partitions, reported_at = excluded.reported_at
           ), other as (
               select caught_up and reported_at > clock_timestamp() - interval '3 seconds' as caught_up, partitions
               from caught_up_instances
               where instance <> $1 and reported_at > clock_timestamp() - interval '1 minute'
           )
           select $2 and not exists (select from other where not caught_up)
              and (select count(distinct own)
                   from (select unnest($3::smallint[]) union all select unnest(partitions) from other) as of_all (own)
                  ) >= $4::bigint as "all!""#,
        instance,
        own_partitions.is_some(),
        own_partitions.unwrap_or_default(),
        i64::from(partitions),
    )
    .fetch_one(operations.for_writing()?)
    .await
}

/// Cancels orders that have waited too long, oldest first, each in its own statement. Several instances may do so at
/// once: the second one finds the order changed. An order that another session has locked is left for the next check, and
/// does not keep the younger ones from being cancelled; any other error ends the check.
///
/// An order waits from when its event was published: before that no service knew of it, and an outage of the broker is not
/// the other services' silence. A parked event is given up, so its order ends like one without answers. Only the oldest
/// orders are looked at, because events are published in about that order.
///
/// An unresolved dead letter that names the order is its answer: an operator decides what becomes of it. It is found in the
/// letter's bytes, because a message that this release cannot read may be why the letter is there.
///
/// A time more than six minutes ahead counts as passed: a clock that was ahead has left it. With `ahead_is_late` also the time
/// of the order.
async fn cancel_late(
    state: &AppState,
    operations: &Pool,
    (answer_within, max_age, ahead_is_late): (Duration, Duration, bool),
) -> Result<(), String> {
    let late = sqlx::query!(
        r#"with letter as materialized (
               select body from dead_letters where queue = $4 and resolved_at is null limit $5
           ), oldest as materialized (
               select id, version, status, placed_at, convert_to(id::text, 'UTF8') as name from orders
               where status in ('pending', 'reserved', 'paid')
                 and placed_at > statement_timestamp() - make_interval(secs => $6)
                 and (placed_at < clock_timestamp() - make_interval(secs => $1)
                     or $7 and placed_at > clock_timestamp() + interval '6 minutes')
               order by placed_at limit $3
           )
           select id as "id!", version as "version!", status as "status!" from oldest
           where not exists (
               select from outbox asked
               where asked.aggregate_id = oldest.id and asked.parked_at is null
                 and (asked.published_at is null
                     or asked.published_at between clock_timestamp() - make_interval(secs => $1)
                                               and clock_timestamp() + interval '6 minutes')
           )
             and (select count(*) from letter) < $5
             and not exists (select from letter where position(oldest.name in body) > 0)
           order by placed_at limit $2"#,
        answer_within.as_secs_f64(),
        MAX_CANCELLATIONS,
        MAX_CANCELLATIONS * 10,
        INBOX.queue,
        MAX_LETTERS,
        max_age.as_secs_f64(),
        ahead_is_late,
    )
    .fetch_all(operations);
    let late = timeout(STATEMENT_DEADLINE, late).await.map_err(|late| late.to_string())?;
    let mut first_locked = None;
    for order in late.map_err(|error| error.to_string())? {
        let status: OrderState = order.status.parse()?;
        if status.after(Trigger::WaitedTooLong).is_none() {
            continue;
        }
        let silent = status.waiting_for().join(" and ");
        let detail = format!("no answer from {silent} within {}", humantime::format_duration(answer_within));
        let body = OrderCancelled { order_id: order.id, cause: Cause::TimedOut, detail };
        let (trace, began) = (TraceContext::root(), SystemTime::now());
        // Only from this state: the detail would be wrong if an answer came at this moment.
        let from = [order.status];
        let written = cancel_order::write(&state.pool, order.version, &trace, &from, &body);
        let written = match timeout(STATEMENT_DEADLINE, written).await.map_err(|late| late.to_string())? {
            Err(error) if is_locked(&error) => {
                first_locked.get_or_insert(format!("order {}: {error}", order.id));
                continue;
            }
            written => written.map_err(|error| error.to_string())?,
        };
        if written.is_some() {
            events::spans::record(|| {
                let span = Span::ended(trace, Kind::Internal, "time out order", began);
                span.with("shop.order_id", order.id.to_string())
            });
            state.wake.after_commit();
            metrics::counter!("orders_timed_out_total").increment(1);
            tracing::warn!(order_id = %order.id, trace_id = trace.trace_id(), silent, "order cancelled: no answer in time");
        }
    }
    first_locked.map_or(Ok(()), Err)
}

/// `GET /admin/open-orders`: the open orders, oldest first, with the services that have not answered.
pub fn admin_routes(pool: Pool) -> Router {
    Router::new().route("/admin/open-orders", get(list)).with_state(pool)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListParams {
    /// Open for longer than this many seconds.
    #[serde(default)]
    older_than: u32,
    #[serde(default = "default_limit")]
    limit: u8,
}

fn default_limit() -> u8 {
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
    State(pool): State<Pool>,
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
        waiting_for: row.status.parse().map_or(&[], OrderState::waiting_for),
    });
    Ok(Json(orders.collect()))
}
