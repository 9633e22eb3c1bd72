//! Two well-known ways to claim events that lose them, or their order. In drill builds only.

use std::sync::atomic::{AtomicI64, Ordering};

use events::transport::Outgoing;
use sqlx::{PgConnection, Row, postgres::PgRow};

use crate::{Error, failed, store::Claimed};

/// The last `seq` that this process has read: what a polling publisher with a cursor would keep.
static CURSOR: AtomicI64 = AtomicI64::new(0);

/// `seq > last`: sequence numbers are drawn before the commit, so one that commits late is behind the cursor for good.
pub(crate) async fn read_behind_cursor(
    transaction: &mut PgConnection,
    lanes: &[i16],
) -> Result<Vec<Claimed>, Error> {
    let rows = sqlx::query(
        "select seq, lane, aggregate_id, event_id, event_type, payload::text, headers ->> 'traceparent'
         from outbox where seq > $1 and lane = any($2) and published_at is null order by seq limit 500",
    )
    .bind(CURSOR.load(Ordering::SeqCst))
    .bind(lanes)
    .fetch_all(transaction)
    .await
    .map_err(failed("cannot read the outbox"))?;
    let claimed = claimed(&rows)?;
    CURSOR.fetch_max(claimed.last().map_or(0, |event| event.seq), Ordering::SeqCst);
    Ok(claimed)
}

/// `skip locked` on the events themselves: while one relay holds an order's first event, another takes its second.
pub(crate) async fn read_free_rows(transaction: &mut PgConnection) -> Result<Vec<Claimed>, Error> {
    let rows = sqlx::query(
        "select seq, lane, aggregate_id, event_id, event_type, payload::text, headers ->> 'traceparent'
         from outbox where published_at is null and parked_at is null and available_at <= clock_timestamp()
         order by seq limit 500 for update skip locked",
    )
    .fetch_all(transaction)
    .await
    .map_err(failed("cannot read the outbox"))?;
    claimed(&rows)
}

fn claimed(rows: &[PgRow]) -> Result<Vec<Claimed>, Error> {
    let claimed = |row: &PgRow| {
        Ok(Claimed {
            seq: row.try_get(0)?,
            lane: row.try_get(1)?,
            aggregate_id: row.try_get(2)?,
            message: Outgoing {
                id: row.try_get(3)?,
                event_type: row.try_get(4)?,
                body: row.try_get::<String, _>(5)?.into_bytes(),
                traceparent: row.try_get(6)?,
            },
        })
    };
    rows.iter().map(claimed).collect::<Result<_, _>>().map_err(failed("cannot read the outbox"))
}
