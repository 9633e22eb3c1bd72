//! Handlers that acknowledge too early, record apart from the effect, forget, or trust their own clock.

use std::time::Duration;

use database::Pool;
use events::Event;
use flaws::Flaw;
use messaging::{Applied, Failure, Handler, SharedHandler, crash_points::crash_point};
use time::OffsetDateTime;
use uuid::Uuid;

/// How long the effect is delayed after `Ok`: the acknowledgement has certainly reached the broker by then, so that an
/// experiment needs no luck.
const ACK_HEAD_START: Duration = Duration::from_millis(500);

/// The age, by its own clock, from which `age-by-own-clock` drops an event.
const MAX_AGE: time::Duration = time::Duration::minutes(15);

/// A service's handler with one part left out, or none.
pub struct FlawedHandler {
    inner: SharedHandler,
    pool: Pool,
    consumer: &'static str,
    flaw: Option<Flaw>,
}

impl FlawedHandler {
    pub fn new(inner: SharedHandler, pool: Pool, consumer: &'static str, flaw: Option<Flaw>) -> Self {
        Self { inner, pool, consumer, flaw }
    }
}

impl Handler for FlawedHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        match self.flaw {
            Some(Flaw::AckBeforeCommit) => {
                let (inner, group) = (self.inner.clone(), group.to_vec());
                let applied = Applied { first: group.len(), duplicates: 0 };
                tokio::spawn(async move {
                    tokio::time::sleep(ACK_HEAD_START).await;
                    let _ = inner.apply(&group).await;
                });
                Ok(applied)
            }
            Some(Flaw::DedupeOutsideTransaction) => {
                let new = self.record_first(group).await?;
                let new: Vec<_> = group.iter().filter(|event| new.contains(&event.id)).cloned().collect();
                let duplicates = group.len() - new.len();
                let applied = self.inner.apply(&new).await?;
                Ok(Applied { duplicates: applied.duplicates + duplicates, ..applied })
            }
            Some(Flaw::AgeByOwnClock) => {
                let now = OffsetDateTime::now_utc();
                let recent: Vec<_> =
                    group.iter().filter(|event| now - event.time < MAX_AGE).cloned().collect();
                let dropped = group.len() - recent.len();
                let applied = self.inner.apply(&recent).await?;
                Ok(Applied { duplicates: applied.duplicates + dropped, ..applied })
            }
            Some(Flaw::ShortMemory) => self.inner.apply(&self.with_new_ids(group).await?).await,
            _ => self.inner.apply(group).await,
        }
    }
}

impl FlawedHandler {
    /// Gives the events whose records were erased new ids: effects and answers then get other ids too, as if ids were not
    /// derived. Otherwise primary keys would refuse what the inbox does not.
    async fn with_new_ids(&self, group: &[Event]) -> Result<Vec<Event>, inbox::Error> {
        let ids: Vec<_> = group.iter().map(|event| event.id).collect();
        let forgotten: Vec<Uuid> =
            sqlx::query_scalar("select event_id from forgotten_events where event_id = any($1)")
                .bind(&ids)
                .fetch_all(&self.pool)
                .await?;
        let copies = group.iter().cloned().map(|mut event| {
            if forgotten.contains(&event.id) {
                event.id = Uuid::now_v7();
            }
            event
        });
        Ok(copies.collect())
    }

    /// Commits "processed" for the new events of a group, and returns their ids. A crash right after it loses their
    /// effects. Without a crash the records are removed again, and the product's handler inserts them with the effects.
    async fn record_first(&self, group: &[Event]) -> Result<Vec<Uuid>, inbox::Error> {
        let ids: Vec<_> = group.iter().map(|event| event.id).collect();
        let types: Vec<_> = group.iter().map(|event| event.event_type.to_owned()).collect();
        let new = sqlx::query_scalar(
            "insert into processed_events (consumer, event_id, event_type)
             select $1, event_id, event_type from unnest($2::uuid[], $3::text[]) as new (event_id, event_type)
             on conflict do nothing returning event_id",
        )
        .bind(self.consumer)
        .bind(&ids)
        .bind(&types)
        .fetch_all(&self.pool)
        .await?;
        crash_point("inbox-recorded");
        sqlx::query("delete from processed_events where consumer = $1 and event_id = any($2)")
            .bind(self.consumer)
            .bind(&new)
            .execute(&self.pool)
            .await?;
        Ok(new)
    }
}
