use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::PgPool;
use time::OffsetDateTime;
use uuid::Uuid;

use super::Page;

/// A line of the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// What an operator calls it.
    pub id: i64,
    /// The queue that it was taken from.
    pub queue: String,
    /// The AMQP property, if it was set.
    pub message_id: Option<String>,
    /// The event that it says it is, if that could be read.
    pub event_id: Option<Uuid>,
    /// Its type, if that could be read.
    pub event_type: Option<String>,
    /// A short, stable name of what was wrong.
    pub reason: String,
    /// The same as a sentence.
    pub detail: String,
    /// When it arrived.
    #[serde(with = "time::serde::rfc3339")]
    pub arrived_at: OffsetDateTime,
    /// `replayed` or `discarded`; `None` while it waits.
    pub resolution: Option<String>,
    /// Why it was discarded.
    pub note: Option<String>,
}

/// All that is known of one letter.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Letter {
    /// As in the list.
    #[serde(flatten)]
    pub summary: Summary,
    /// When an operator settled it.
    #[serde(with = "time::serde::rfc3339::option")]
    pub resolved_at: Option<OffsetDateTime>,
    /// All headers of the message.
    pub headers: Box<RawValue>,
    /// Under which key it was published.
    pub routing_key: String,
    /// The original bytes, where they are UTF-8.
    pub body: Option<String>,
    /// The original bytes in hexadecimal, where they are not.
    pub body_hex: Option<String>,
}

/// Letters in the order of their arrival, beginning behind `after`: those that wait, or all that ever came.
///
/// # Errors
/// When the database does not answer.
pub async fn list(
    pool: &PgPool,
    after: i64,
    limit: u8,
    resolved_too: bool,
) -> Result<Page<Summary>, sqlx::Error> {
    let items = sqlx::query_as!(
        Summary,
        "select id, queue, message_id, event_id, event_type, reason, detail, arrived_at, resolution, note
         from dead_letters
         where id > $1 and (resolved_at is null or $3)
         order by id
         limit $2",
        after,
        i64::from(limit),
        resolved_too,
    )
    .fetch_all(pool)
    .await?;
    let next = items.last().filter(|_| items.len() == usize::from(limit)).map(|last| last.id);
    Ok(Page { items, next })
}

/// One letter, with its bytes; `None` if there is none with this id.
///
/// # Errors
/// When the database does not answer.
pub async fn show(pool: &PgPool, id: i64) -> Result<Option<Letter>, sqlx::Error> {
    let row = sqlx::query!(
        r#"select id, queue, message_id, event_id, event_type, reason, detail, arrived_at, resolution, note,
                  resolved_at, headers::text as "headers!", routing_key, body
           from dead_letters where id = $1"#,
        id,
    )
    .fetch_optional(pool)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let (body, body_hex) = match String::from_utf8(row.body) {
        Ok(text) => (Some(text), None),
        Err(bytes) => (None, Some(hex(bytes.as_bytes()))),
    };
    Ok(Some(Letter {
        summary: Summary {
            id: row.id,
            queue: row.queue,
            message_id: row.message_id,
            event_id: row.event_id,
            event_type: row.event_type,
            reason: row.reason,
            detail: row.detail,
            arrived_at: row.arrived_at,
            resolution: row.resolution,
            note: row.note,
        },
        resolved_at: row.resolved_at,
        headers: RawValue::from_string(row.headers).map_err(|error| sqlx::Error::Decode(error.into()))?,
        routing_key: row.routing_key,
        body,
        body_hex,
    }))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
