use std::time::Duration;

use messaging::{DeadLetter, DeadLetterStore, Failure};
use serde::Deserialize;
use serde_json::Value;
use sqlx::PgPool;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How long saving one dead letter may take, including its body.
const SAVE_DEADLINE: Duration = Duration::from_secs(15);

/// How often they are counted, and how long that may take: what `/metrics` shows is at most five seconds old, or NaN.
const COUNT_INTERVAL: Duration = Duration::from_secs(2);
const COUNT_DEADLINE: Duration = Duration::from_secs(2);

/// The longest text that is kept of a message's headers and properties, in characters. The body has no such limit.
const MAX_TEXT: usize = 500;

/// Keeps dead letters in a table of the pool's schema, where an operator finds them.
#[derive(Debug, Clone)]
pub struct DeadLetterTable {
    pool: PgPool,
}

impl DeadLetterTable {
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// Counts what is unresolved into the gauge `inbox_dead_letters`, until `stop`. When the database does not answer it
    /// becomes NaN: unknown is never shown as zero.
    pub async fn observe(self, stop: CancellationToken) {
        let observing = async {
            loop {
                let unresolved = sqlx::query_scalar!(
                    r#"select count(*)::float8 as "count!" from dead_letters where resolved_at is null"#
                )
                .fetch_one(&self.pool);
                let count = timeout(COUNT_DEADLINE, unresolved).await;
                let count = count.ok().and_then(Result::ok).unwrap_or(f64::NAN);
                metrics::gauge!("inbox_dead_letters").set(count);
                sleep(COUNT_INTERVAL).await;
            }
        };
        stop.run_until_cancelled(observing).await;
    }

    async fn insert(&self, letter: &DeadLetter) -> Result<Option<i64>, sqlx::Error> {
        let message_id = letter.message_id.as_deref().map(storable);
        let (event_id, event_type, subject) = label(letter);
        // Either unique key of the table may find that the dead letter is there already: redelivered by the broker, or set
        // aside twice by a consumer that died in between.
        sqlx::query_scalar!(
            "insert into dead_letters (queue, arrival, message_id, event_id, event_type, subject, reason, detail,
                                       headers, routing_key, body)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9::text::json, $10, $11)
             on conflict do nothing
             returning id",
            letter.queue,
            letter.arrival.as_deref().map(storable),
            message_id,
            event_id,
            event_type,
            subject,
            storable(&letter.reason),
            storable(&letter.detail),
            letter.headers.to_string(),
            storable(&letter.routing_key),
            letter.body,
        )
        .fetch_optional(&self.pool)
        .await
    }
}

impl DeadLetterStore for DeadLetterTable {
    async fn save(&self, letter: &DeadLetter) -> Result<(), Failure> {
        let saved = timeout(SAVE_DEADLINE, self.insert(letter)).await;
        let id = saved.map_err(|late| Failure::Temporary(late.into()))?.map_err(crate::failure)?;
        let DeadLetter { queue, message_id, reason, .. } = letter;
        match id {
            Some(id) => {
                tracing::info!(id, queue, message_id, reason, "dead letter saved; it waits for an operator");
            }
            None => tracing::info!(queue, message_id, reason, "dead letter redelivered; it is saved already"),
        }
        Ok(())
    }
}

/// Text that PostgreSQL accepts: `text` holds no NUL, and a message from outside may. Bounded, because people read it.
fn storable(text: &str) -> String {
    text.chars().take(MAX_TEXT).map(|c| if c == '\0' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// The event that the message claims to be, as far as it can be read: id, type, subject. Only shown, never relied on.
fn label(letter: &DeadLetter) -> (Option<Uuid>, Option<String>, Option<Uuid>) {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Label {
        id: Value,
        #[serde(rename = "type")]
        event_type: Value,
        subject: Value,
    }
    let label: Label = serde_json::from_slice(&letter.body).unwrap_or_default();
    let uuid = |text: &str| Uuid::parse_str(text).ok();
    let id = label.id.as_str().and_then(uuid).or_else(|| uuid(letter.message_id.as_deref()?));
    (id, label.event_type.as_str().map(storable), label.subject.as_str().and_then(uuid))
}
