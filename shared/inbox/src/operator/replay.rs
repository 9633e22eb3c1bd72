use std::{sync::Arc, time::Duration};

use events::transport::{Applied, Failure, Handler, Incoming};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgPool;
use time::OffsetDateTime;
use tokio::time::timeout;
use uuid::Uuid;

use super::{Page, Which};

/// The most letters that one call replays, and the most ids that it may be given: it has to end within the deadline of a
/// request.
pub const MOST: i64 = 50;

/// How long the handler may take over one letter.
const HANDLER_DEADLINE: Duration = Duration::from_secs(10);

/// Under which conditions a letter is applied again.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Events older than this are refused. It has to be shorter than the time for which `processed_events` are kept: of
    /// an event that this consumer has forgotten, nobody can tell whether its effect is there already.
    pub within: Duration,
    /// Apply those too, and what was discarded. The operator answers for it.
    pub force: bool,
}

/// What became of one letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// The effect was committed now.
    Applied,
    /// The event had been applied before, and was recognised: effects are unchanged.
    Unchanged,
    /// It cannot be applied, for this reason; it still waits.
    StillFails {
        /// A short, stable name.
        reason: String,
        /// The same as a sentence.
        detail: String,
    },
    /// Refused: older than the consumer's memory can be trusted with.
    TooOld {
        /// What would happen, and how to insist.
        detail: String,
    },
    /// It was given up before. `force` replays it all the same.
    Discarded,
    /// There is no letter with this id.
    NoSuchLetter,
}

/// One letter, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Again {
    /// The letter.
    pub id: i64,
    /// The event that it says it is, if that could be read.
    pub event_id: Option<Uuid>,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Applies letters again, in the order of their arrival, with the service's own handler: the bytes are decoded anew, so
/// a reader that has learnt a new schema meanwhile can read them, and whether an effect is there already is decided by
/// `processed_events`, in the transaction of the effect. A letter is resolved once it has settled.
///
/// A crash after the effect and before the letter is resolved leaves it waiting; replayed once more, it is unchanged.
///
/// # Errors
/// When the database does not answer. What was applied until then is applied.
pub async fn replay<H: Handler>(
    pool: &PgPool,
    handler: &Arc<H>,
    which: &Which,
    rules: Rules,
) -> Result<Page<Again>, sqlx::Error> {
    let chosen = sqlx::query!(
        "select id, event_id, resolution
         from dead_letters
         where case when $2::bigint[] is null then id > $1 and resolved_at is null else id = any($2) end
           and ($3::timestamptz is null or arrived_at >= $3) and ($4::timestamptz is null or arrived_at < $4)
         order by id
         limit $5",
        which.after,
        which.ids.as_deref(),
        which.from,
        which.to,
        MOST,
    )
    .fetch_all(pool)
    .await?;
    let mut next = chosen.last().filter(|_| i64::try_from(chosen.len()) == Ok(MOST)).map(|last| last.id);
    let mut items = Vec::with_capacity(chosen.len());
    for letter in &chosen {
        let (outcome, away) = if letter.resolution.as_deref() == Some("discarded") && !rules.force {
            (Outcome::Discarded, false)
        } else {
            replay_one(pool, handler, letter.id, rules).await?
        };
        items.push(Again { id: letter.id, event_id: letter.event_id, outcome });
        if away {
            // The others would only wait for the same database, one after the other.
            next = None;
            break;
        }
    }
    let missing = which.ids.iter().flatten().filter(|id| chosen.iter().all(|letter| letter.id != **id));
    items.extend(missing.map(|id| Again { id: *id, event_id: None, outcome: Outcome::NoSuchLetter }));
    Ok(Page { items, next })
}

/// What became of it, and whether that was for want of the database.
async fn replay_one<H: Handler>(
    pool: &PgPool,
    handler: &Arc<H>,
    id: i64,
    rules: Rules,
) -> Result<(Outcome, bool), sqlx::Error> {
    let row = sqlx::query!(
        r#"select message_id, headers::text as "headers!", body from dead_letters where id = $1"#,
        id,
    )
    .fetch_one(pool)
    .await?;
    // Not by the database's `->>`, which fails over a header that holds \u0000.
    let headers: Value = serde_json::from_str(&row.headers).unwrap_or_default();
    let traceparent = headers["traceparent"].as_str().map(str::to_owned);
    let incoming = Incoming { message_id: row.message_id, traceparent, body: row.body };
    let event = match events::decode(&incoming) {
        Ok(event) => event,
        Err(rejection) => return Ok((still_fails(rejection.reason(), &rejection), false)),
    };
    // The writer's clock, and days against days: good enough for a question of memory.
    if OffsetDateTime::now_utc() - event.time > rules.within && !rules.force {
        let detail = format!(
            "the event is older than the {} days for which this consumer's memory is trusted: if it was applied and \
             forgotten, it would be applied a second time; `force` does it all the same",
            rules.within.as_secs() / 86_400
        );
        return Ok((Outcome::TooOld { detail }, false));
    }
    // In a task of its own: a client that hangs up does not stop a transaction half-way, and a panic is one letter's.
    let handler = handler.clone();
    let applying =
        tokio::spawn(
            async move { timeout(HANDLER_DEADLINE, handler.apply(std::slice::from_ref(&event))).await },
        );
    let outcome = match applying.await {
        Ok(Ok(Ok(Applied { first: 0, .. }))) => Outcome::Unchanged,
        Ok(Ok(Ok(_))) => Outcome::Applied,
        Ok(Ok(Err(failure @ Failure::Temporary(_)))) => {
            return Ok((still_fails("temporary", &failure), true));
        }
        Ok(Ok(Err(failure @ Failure::Permanent(_)))) => {
            return Ok((still_fails("permanent", &failure), false));
        }
        Ok(Ok(Err(failure))) => return Ok((still_fails("unexpected", &failure), false)),
        Ok(Err(_)) => return Ok((still_fails("temporary", &"the handler took too long"), true)),
        Err(_) => return Ok((still_fails("unexpected", &"the handler panicked"), false)),
    };
    sqlx::query!(
        "update dead_letters set resolved_at = clock_timestamp(), resolution = 'replayed'
         where id = $1 and resolution is distinct from 'replayed'",
        id,
    )
    .execute(pool)
    .await?;
    Ok((outcome, false))
}

fn still_fails(reason: &str, detail: &impl ToString) -> Outcome {
    Outcome::StillFails { reason: reason.to_owned(), detail: detail.to_string() }
}
