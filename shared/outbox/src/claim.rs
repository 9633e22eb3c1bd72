//! What a relay may publish now: first the right to a few lanes, then the events in them.

use events::{LANES, transport::Outgoing};
use sqlx::PgConnection;

use crate::{Error, failed, store::Claimed};

/// Locks up to `share` lanes that have something to publish, beginning the search at lane `start`.
///
/// The lock is on *lane rows*. With `skip locked` on event rows instead, one relay would hold an order's first event
/// while another publishes its second. Lanes that another relay holds are skipped, not waited for; the moving start
/// keeps a busy low lane from starving a high one. `behind` says, lane by lane, from where on to look: see `floor.rs`.
pub(crate) async fn lock_lanes(
    transaction: &mut PgConnection,
    start: i16,
    share: i64,
    behind: &[i64],
) -> Result<Vec<i16>, Error> {
    sqlx::query_scalar!(
        "select lane
         from outbox_lanes
         where exists (
             select from outbox event
             where event.lane = outbox_lanes.lane and event.seq > ($4::bigint[])[outbox_lanes.lane + 1]
               and event.published_at is null and event.parked_at is null
               and (event.attempts = 0 or event.available_at <= statement_timestamp())
               and not exists (
                   select from outbox older
                   where older.aggregate_id = event.aggregate_id and older.seq < event.seq
                     and older.published_at is null and older.attempts > 0
                     and (older.parked_at is not null or older.available_at > statement_timestamp()) offset 0)
               and (event.aggregate_version = 1 or not exists (
                   select from outbox unseen
                   where unseen.aggregate_id = event.aggregate_id
                     and unseen.aggregate_version < event.aggregate_version
                     and unseen.seq <= ($4::bigint[])[outbox_lanes.lane + 1]
                     and unseen.published_at is null))
             offset 0)
         order by (lane - $1::smallint + $3::smallint) % $3::smallint
         limit $2
         for update skip locked",
        start,
        share,
        LANES,
        behind,
    )
    .fetch_all(transaction)
    .await
    .map_err(failed("cannot lock lanes of the outbox"))
}

/// Whether any event is due, in lanes that we may have found locked.
///
/// Lane by lane, with a `limit` in each: as a plain join PostgreSQL may read the whole index first, and walk over the
/// dead entries of all lanes.
pub(crate) async fn something_is_due(transaction: &mut PgConnection, behind: &[i64]) -> Result<bool, Error> {
    sqlx::query_scalar!(
        r#"select exists (
               select from unnest($1::bigint[]) with ordinality as floor (seq, place)
               cross join lateral (
                   select from outbox event
                   where event.lane = floor.place - 1 and event.seq > floor.seq
                     and event.published_at is null and event.parked_at is null
                     and (event.attempts = 0 or event.available_at <= statement_timestamp())
                     and not exists (
                         select from outbox older
                         where older.aggregate_id = event.aggregate_id and older.seq < event.seq
                           and older.published_at is null and older.attempts > 0
                           and (older.parked_at is not null or older.available_at > statement_timestamp()) offset 0)
                     and (event.aggregate_version = 1 or not exists (
                         select from outbox unseen
                         where unseen.aggregate_id = event.aggregate_id
                           and unseen.aggregate_version < event.aggregate_version
                           and unseen.seq <= floor.seq
                           and unseen.published_at is null))
                   limit 1) due) as "due!""#,
        behind,
    )
    .fetch_one(transaction)
    .await
    .map_err(failed("cannot look at the outbox"))
}

/// Reads what is due in lanes that are locked already, at most `per_lane` events from each, in order.
///
/// This has to be a statement of its own, after [`lock_lanes`]. In one statement with it, the events would come from
/// a snapshot older than the lock, and what the lane's previous holder has just published and marked would still look
/// due. An event waits while an older one of its aggregate backs off or is parked: that is the first `not exists`.
///
/// It also waits while an older one is owed *below* where this look begins: that is the second. An event whose back-off
/// has just ended, that an operator has just given back, or that committed very late, is found by the next full look
/// only; until then a look ahead would see its successor, and nothing that holds it back.
///
/// `statement_timestamp()` is one moment for the whole statement. A clock that goes on while the rows are read would find
/// a refused event not due yet, and a moment later its successor not held back any more. An event that was never refused
/// is due whatever its `available_at` says, for the same reason: nothing would hold back its successor.
///
/// `offset 0`, here and in [`lock_lanes`], keeps the planner from turning a condition into a join with all that was ever
/// owed.
pub(crate) async fn read_due(
    transaction: &mut PgConnection,
    lanes: &[i16],
    per_lane: i64,
    behind: &[i64],
) -> Result<Vec<Claimed>, Error> {
    let rows = sqlx::query!(
        r#"select due.seq, due.event_id, due.aggregate_id, due.event_type, due.payload as "payload!",
                  due.traceparent
           from unnest($1::smallint[]) as locked (lane)
           cross join lateral (
               select event.seq, event.event_id, event.aggregate_id, event.event_type,
                      event.payload::text as payload, event.headers ->> 'traceparent' as traceparent
               from outbox event
               where event.lane = locked.lane and event.seq > ($3::bigint[])[locked.lane + 1]
                 and event.published_at is null and event.parked_at is null
                 and (event.attempts = 0 or event.available_at <= statement_timestamp())
                 and not exists (
                     select from outbox older
                     where older.aggregate_id = event.aggregate_id and older.seq < event.seq
                       and older.published_at is null and older.attempts > 0
                       and (older.parked_at is not null or older.available_at > statement_timestamp()) offset 0)
                 and (event.aggregate_version = 1 or not exists (
                     select from outbox unseen
                     where unseen.aggregate_id = event.aggregate_id
                       and unseen.aggregate_version < event.aggregate_version
                       and unseen.seq <= ($3::bigint[])[locked.lane + 1]
                       and unseen.published_at is null))
               order by event.seq
               limit $2) due
           order by due.seq"#,
        lanes,
        per_lane,
        behind,
    )
    .fetch_all(transaction)
    .await
    .map_err(failed("cannot read the outbox"))?;
    let claimed = rows.into_iter().map(|row| Claimed {
        seq: row.seq,
        lane: events::lane(row.aggregate_id),
        aggregate_id: row.aggregate_id,
        message: Outgoing {
            id: row.event_id,
            event_type: row.event_type,
            body: row.payload.into_bytes(),
            traceparent: row.traceparent,
        },
    });
    Ok(claimed.collect())
}
