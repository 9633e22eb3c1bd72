use std::time::Duration;

use database::{Pool, observe};
use events::FORGED;
use messaging::{DeadLetter, DeadLetterStore, Failure};
use serde::Deserialize;
use serde_json::Value;
use sqlx::{Executor, Postgres};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{Error, Inbox};

/// How long saving one dead letter may take, including its body.
const SAVE_DEADLINE: Duration = Duration::from_secs(15);

/// The most events that are counted: a writer that was rolled out before this reader leaves a million.
const MAX_COUNTED: i64 = 100_001;

/// The longest text that is kept of a message's headers and properties, in characters. The body has no such limit.
const MAX_TEXT: usize = 500;

/// The most events that wait behind dead letters of one queue. More stay in the queue, and health shows a consumer that
/// makes no progress: an operator must decide first.
const MAX_BEHIND: i64 = 10_000;

/// Keeps dead letters in a table of the pool's schema, where an operator finds them.
#[derive(Debug, Clone)]
pub struct DeadLetterTable {
    pub(crate) pool: Pool,
    pub(crate) inbox: Inbox,
}

impl DeadLetterTable {
    pub fn new(pool: Pool, inbox: Inbox) -> Self {
        Self { pool, inbox }
    }

    /// Counts what is unresolved into the gauge `inbox_dead_letters`, and how many of these wait behind another into
    /// `inbox_dead_letters_behind`, until `stop`. Both end at 100,001.
    pub async fn observe(self, stop: CancellationToken) {
        let count = || async {
            let unresolved = sqlx::query!(
                r#"select count(*)::float8 as "count!", count(*) filter (where reason = 'behind')::float8 as "behind!"
                   from (select reason from dead_letters where resolved_at is null limit $1) as unresolved"#,
                MAX_COUNTED,
            );
            let counted = unresolved.fetch_one(&self.pool).await?;
            Ok([counted.count, counted.behind])
        };
        let show = |[count, behind]: [f64; 2]| {
            metrics::gauge!("inbox_dead_letters").set(count);
            metrics::gauge!("inbox_dead_letters_behind").set(behind);
        };
        observe(count, show, stop).await;
    }

    /// Saves an event behind an older dead letter, unless that one has been resolved. In turn with the replay, which
    /// looks for such events after it has resolved one: otherwise each could miss the other, and the event would wait
    /// for nothing.
    async fn insert_behind(&self, letter: &DeadLetter) -> Result<bool, Error> {
        let mut transaction = self.inbox.begin(&self.pool).await?;
        let older = sqlx::query!(
            r#"select exists (select from dead_letters where queue = $1 and subject = $2 and resolved_at is null) as "blocks!",
                      (select count(*) from (select from dead_letters
                                             where queue = $1 and reason = 'behind' and resolved_at is null limit $3) as behind
                      ) as "behind!""#,
            letter.queue,
            label(letter).2,
            MAX_BEHIND,
        )
        .fetch_one(&mut *transaction)
        .await?;
        if older.blocks && older.behind >= MAX_BEHIND {
            let full = format!("{MAX_BEHIND} events wait behind dead letters already");
            return Err(Failure::Temporary(full.into()).into());
        }
        if older.blocks {
            insert(&mut *transaction, letter).await?;
        }
        // A letter that is there already was not written now, and may be on the primary alone.
        transaction.commit_read().await?;
        Ok(older.blocks)
    }
}

async fn insert<'e>(
    executor: impl Executor<'e, Database = Postgres>,
    letter: &DeadLetter,
) -> Result<Option<i64>, sqlx::Error> {
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
        letter.message_id.as_deref().map(storable),
        event_id,
        event_type,
        subject,
        storable(&letter.reason),
        storable(&letter.detail),
        letter.headers.to_string(),
        storable(&letter.routing_key),
        letter.body,
    )
    .fetch_optional(executor)
    .await
}

impl DeadLetterStore for DeadLetterTable {
    async fn save(&self, letter: &DeadLetter) -> Result<(), Failure> {
        let id = within_deadline(async { insert(self.pool.for_writing()?, letter).await }).await?;
        let DeadLetter { queue, message_id, reason, .. } = letter;
        match id {
            Some(id) => {
                tracing::info!(id, queue, message_id, reason, "dead letter saved; it waits for an operator");
            }
            None => {
                within_deadline(self.pool.await_replication()).await?;
                tracing::info!(queue, message_id, reason, "dead letter redelivered; it is saved already");
            }
        }
        Ok(())
    }

    async fn save_behind(&self, letter: &DeadLetter) -> Result<bool, Failure> {
        within_deadline(self.insert_behind(letter)).await
    }

    async fn begin_attempt(&self, queue: &str, event: Uuid) -> Result<u32, Failure> {
        let begun = sqlx::query_scalar!(
            "insert into delivery_attempts as earlier (queue, event_id) values ($1, $2)
             on conflict (queue, event_id) do update set begun = earlier.begun + 1, last_begun_at = default
             returning begun",
            queue,
            event,
        );
        let begun = within_deadline(async { begun.fetch_one(self.pool.for_writing()?).await });
        Ok(begun.await?.unsigned_abs())
    }

    async fn end_attempts(&self, queue: &str, event: Uuid) -> Result<(), Failure> {
        let erased =
            sqlx::query!("delete from delivery_attempts where queue = $1 and event_id = $2", queue, event);
        within_deadline(async { erased.execute(self.pool.for_writing()?).await }).await.map(drop)
    }
}

async fn within_deadline<T, E: Into<Error>>(
    saving: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    let saved = timeout(SAVE_DEADLINE, saving).await.map_err(|late| Failure::Temporary(late.into()))?;
    saved.map_err(|error| error.into().0)
}

/// Text that PostgreSQL accepts: `text` holds no NUL, and a message from outside may. Bounded, because people read it.
fn storable(text: &str) -> String {
    text.chars().take(MAX_TEXT).map(|c| if c == '\0' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// The event that the message claims to be, as far as it can be read: id, type, subject. By id and subject later events
/// wait behind it; a replay decodes the bytes again. Nothing waits behind a forged one, and it does not stand for the event
/// whose id it bears: its sender could hold back any aggregate.
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
    let event_type = label.event_type.as_str().map(storable);
    if letter.reason == FORGED {
        return (None, event_type, None);
    }
    (id, event_type, label.subject.as_str().and_then(uuid))
}
