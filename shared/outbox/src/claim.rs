//! The two statements of a claim. The predicate itself is the SQL function `outbox_claimable`, with its reasons, in
//! `migrations/outbox/1001_outbox.sql`. `scan_from` holds, for each lane, the `seq` after which the lane is read.

use messaging::{LANES, Outgoing};
use sqlx::PgConnection;

use crate::{Error, failed, store::ClaimedEvent};

/// A lane with claimable events.
pub(crate) struct ClaimableLane {
    pub(crate) lane: i16,
    /// Whether it is locked by this transaction. Otherwise another relay holds it, or enough lanes are locked already.
    pub(crate) locked: bool,
}

/// Finds all lanes that have claimable events, and locks up to `max_lanes` of them, beginning at `first_lane`.
///
/// The lock is on *lane rows*. With `skip locked` on event rows instead, one relay would hold an order's first event
/// while another publishes its second. Lanes that another relay holds are skipped, not waited for. The moving start
/// keeps a busy low lane from starving a high one.
pub(crate) async fn lock_lanes(
    transaction: &mut PgConnection,
    first_lane: i16,
    max_lanes: i64,
    scan_from: &[i64],
) -> Result<Vec<ClaimableLane>, Error> {
    sqlx::query_as!(
        ClaimableLane,
        r#"with claimable as materialized (
               select lane from outbox_lanes
               where exists (select from outbox_claimable(outbox_lanes.lane, ($4::bigint[])[outbox_lanes.lane + 1]) offset 0)
           ), locked as (
               select lane from outbox_lanes where lane in (select lane from claimable)
               order by (lane - $1::smallint + $3::smallint) % $3::smallint
               limit $2
               for update skip locked
           )
           select lane as "lane!", locked.lane is not null as "locked!"
           from claimable left join locked using (lane)
           order by (lane - $1::smallint + $3::smallint) % $3::smallint"#,
        first_lane,
        max_lanes,
        LANES,
        scan_from,
    )
    .fetch_all(transaction)
    .await
    .map_err(failed("failed to lock lanes of the outbox"))
}

/// Reads the claimable events of lanes that are already locked, at most `per_lane` from each, in `seq` order.
///
/// A statement of its own, after [`lock_lanes`]. In one statement with it, the events would come from a snapshot older
/// than the lock, and events that the lane's previous holder has just published and marked would still look pending.
pub(crate) async fn read_claimable(
    transaction: &mut PgConnection,
    lanes: &[i16],
    per_lane: i64,
    scan_from: &[i64],
) -> Result<Vec<ClaimedEvent>, Error> {
    let rows = sqlx::query!(
        r#"select claimed.seq as "seq!", claimed.lane as "lane!", claimed.event_id as "event_id!",
                  claimed.aggregate_id as "aggregate_id!", claimed.event_type as "event_type!",
                  claimed.payload as "payload!", claimed.traceparent, claimed.created_at as "created_at!",
                  claimed.refused_before as "refused_before!"
           from unnest($1::smallint[]) as locked (lane)
           cross join lateral (
               select event.seq, event.lane, event.event_id, event.aggregate_id, event.event_type,
                      event.payload::text as payload, event.headers ->> 'traceparent' as traceparent,
                      event.created_at, event.attempts > 0 as refused_before
               from outbox_claimable(locked.lane, ($3::bigint[])[locked.lane + 1]) event
               order by event.seq
               limit $2) claimed
           order by claimed.seq"#,
        lanes,
        per_lane,
        scan_from,
    )
    .fetch_all(transaction)
    .await
    .map_err(failed("failed to read the outbox"))?;
    let claimed = rows.into_iter().map(|row| ClaimedEvent {
        seq: row.seq,
        lane: row.lane,
        aggregate_id: row.aggregate_id,
        created_at: row.created_at.into(),
        refused_before: row.refused_before,
        message: Outgoing {
            id: row.event_id,
            event_type: row.event_type,
            body: row.payload.into_bytes(),
            traceparent: row.traceparent,
        },
    });
    Ok(claimed.collect())
}
