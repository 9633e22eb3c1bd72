use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::PgPool;
use time::OffsetDateTime;
use uuid::Uuid;

use super::Page;
use crate::{Error, failed};

/// A parked event, as a line of the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Parked {
    /// Its place in the outbox.
    pub seq: i64,
    /// The event.
    pub event_id: Uuid,
    /// What happened.
    pub event_type: String,
    /// To what it happened.
    pub aggregate_id: Uuid,
    /// Which event of its aggregate it is.
    pub aggregate_version: i32,
    /// How often it was tried.
    pub attempts: i16,
    /// What the broker said to the last attempt.
    pub last_error: Option<String>,
    /// When it was written.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When the schedule was exhausted.
    #[serde(with = "time::serde::rfc3339")]
    pub parked_at: OffsetDateTime,
}

/// All that is known of one event, parked or not.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Its place in the outbox.
    pub seq: i64,
    /// The event.
    pub event_id: Uuid,
    /// What happened.
    pub event_type: String,
    /// To what it happened.
    pub aggregate_id: Uuid,
    /// Which event of its aggregate it is.
    pub aggregate_version: i32,
    /// How often it was refused.
    pub attempts: i16,
    /// What the broker said to the last attempt that failed.
    pub last_error: Option<String>,
    /// When it was written.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it was set aside.
    #[serde(with = "time::serde::rfc3339::option")]
    pub parked_at: Option<OffsetDateTime>,
    /// When the broker confirmed it.
    #[serde(with = "time::serde::rfc3339::option")]
    pub published_at: Option<OffsetDateTime>,
    /// How many later events of its aggregate are not published: they wait behind it while it is parked.
    pub waiting_behind: i64,
    /// The message, as it will be or was published.
    pub payload: Box<RawValue>,
}

/// Parked events in their order, beginning behind `after`.
///
/// # Errors
/// When the database does not answer.
pub async fn list_parked(pool: &PgPool, after: i64, limit: u8) -> Result<Page<Parked>, Error> {
    // `attempts > 0` is what the index of troubled events asks for; nothing is parked without an attempt.
    let items = sqlx::query_as!(
        Parked,
        r#"select seq, event_id, event_type, aggregate_id, aggregate_version, attempts, last_error, created_at,
                  parked_at as "parked_at!"
           from outbox
           where published_at is null and attempts > 0 and parked_at is not null and seq > $1
           order by seq
           limit $2"#,
        after,
        i64::from(limit),
    )
    .fetch_all(pool)
    .await
    .map_err(failed("cannot list what is parked"))?;
    let next = items.last().filter(|_| items.len() == usize::from(limit)).map(|last| last.seq);
    Ok(Page { items, next })
}

/// One event with its payload; `None` if the outbox has none with this id.
///
/// # Errors
/// When the database does not answer.
pub async fn show(pool: &PgPool, event_id: Uuid) -> Result<Option<Event>, Error> {
    let row = sqlx::query!(
        r#"select seq, event_id, event_type, aggregate_id, aggregate_version, attempts, last_error, created_at,
                  parked_at, published_at, payload::text as "payload!",
                  (select count(*) from outbox later
                   where later.aggregate_id = outbox.aggregate_id and later.seq > outbox.seq
                     and later.published_at is null) as "waiting_behind!"
           from outbox where event_id = $1"#,
        event_id,
    )
    .fetch_optional(pool)
    .await
    .map_err(failed("cannot read an event"))?;
    let Some(row) = row else { return Ok(None) };
    let payload = RawValue::from_string(row.payload);
    Ok(Some(Event {
        seq: row.seq,
        event_id: row.event_id,
        event_type: row.event_type,
        aggregate_id: row.aggregate_id,
        aggregate_version: row.aggregate_version,
        attempts: row.attempts,
        last_error: row.last_error,
        created_at: row.created_at,
        parked_at: row.parked_at,
        published_at: row.published_at,
        waiting_behind: row.waiting_behind,
        payload: payload.map_err(|error| Error::new("cannot read an event's payload", error))?,
    }))
}
