use serde::Serialize;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{Error, failed};

/// What came of giving an event up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Discard {
    /// It is in `outbox_discarded` now.
    Discarded {
        /// Whose history has a gap.
        aggregate_id: Uuid,
        /// The version that no consumer will ever see.
        gap: i32,
        /// The later events that had waited, and are published now, behind the gap: at most a hundred are named.
        follow: Vec<i32>,
    },
    /// Nothing was done: no parked event has this id.
    NotParked,
}

/// Gives a parked event up: it is never published, and the aggregate's later events go on without it. Consumers see a
/// gap in `sequence`. `note` says why, to those who find that gap.
///
/// # Errors
/// When the database does not answer.
pub async fn discard(pool: &PgPool, event_id: Uuid, note: &str) -> Result<Discard, Error> {
    // Moved, in one statement: in one table or in the other, and never in both or in neither.
    let row = sqlx::query!(
        r#"with gone as (
               delete from outbox
               where event_id = $1 and published_at is null and parked_at is not null
               returning *
           ), kept as (
               insert into outbox_discarded select gone.*, clock_timestamp(), $2 from gone
               returning seq, aggregate_id, aggregate_version
           )
           select aggregate_id, aggregate_version,
                  array(select later.aggregate_version from outbox later
                        where later.aggregate_id = kept.aggregate_id and later.seq > kept.seq
                          and later.published_at is null
                        order by later.seq limit 100) as "follow!"
           from kept"#,
        event_id,
        note,
    )
    .fetch_optional(pool)
    .await
    .map_err(failed("cannot discard an event"))?;
    Ok(row.map_or(Discard::NotParked, |row| Discard::Discarded {
        aggregate_id: row.aggregate_id,
        gap: row.aggregate_version,
        follow: row.follow,
    }))
}
