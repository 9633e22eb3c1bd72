//! Optional. Without it: the records of processed events stay, and the table grows.

use std::time::Duration;

use database::{Erase, Pool, Retention, Window};
use uuid::Uuid;

/// Erases the records of events that `consumer` processed longer ago than `keep`, by the database's clock. `keep` must
/// be longer than the longest time after which an event can be published again: a copy that arrives later is applied
/// again.
///
/// The walk follows the primary key. Event ids begin with the time of their aggregate's first cause, so the key is almost the
/// order of processing, and no further index must be maintained for each event. Ids only decide where the walk ends; whether
/// a record is erased is decided by `processed_at`.
pub fn retention(pool: Pool, consumer: &'static str, keep: Duration) -> Retention<EraseProcessed> {
    Retention::new("processed_events", pool, EraseProcessed { consumer, keep })
}

#[derive(Debug)]
pub struct EraseProcessed {
    consumer: &'static str,
    keep: Duration,
}

impl Erase for EraseProcessed {
    type Key = Uuid;
    const FIRST_KEY: Uuid = Uuid::nil();

    /// The limit is a literal, because the plan depends on it. What was erased is recorded in the same statement:
    /// `demo verify` reads it.
    async fn erase_window(
        &self,
        pool: &Pool,
        after: Uuid,
        rows: i64,
    ) -> Result<Option<Window<Uuid>>, sqlx::Error> {
        if after.is_nil() {
            sqlx::query!(
                "insert into inbox_retention (consumer) values ($1) on conflict do nothing",
                self.consumer
            )
            .execute(pool)
            .await?;
        }
        sqlx::query_as!(
            Window,
            r#"with turn as (
                   select clock_timestamp() - $3::float8 * interval '1 second' as cutoff
                   from inbox_retention where consumer = $1 for update skip locked
               ), thousand as materialized (
                   select event_id, processed_at, row_number() over (order by event_id) as number from (
                       select event_id, processed_at from processed_events
                       where consumer = $1 and event_id > $2 and exists (select from turn) order by event_id limit 1000
                   ) as next
               ), bite as materialized (
                   select * from thousand where number <= $4
               ), gone as (
                   delete from processed_events using turn
                   where processed_events.consumer = $1 and processed_events.event_id > $2
                     and processed_events.event_id <= (select event_id from bite order by event_id desc limit 1)
                     and processed_events.processed_at < turn.cutoff
                   returning 1
               ), counted as (
                   select count(*) as erased from gone
               ), written as (
                   update inbox_retention
                   set erased_before = greatest(erased_before, turn.cutoff), erased = inbox_retention.erased + counted.erased
                   from turn, counted where consumer = $1 and counted.erased > 0
               )
               select (select event_id from bite order by event_id desc limit 1) as last,
                      counted.erased as "erased!",
                      exists (select from bite where processed_at >= turn.cutoff) as "some_are_young!",
                      (select count(*) = $4 from bite) as "is_full!",
                      true as "more!"
               from turn, counted"#,
            self.consumer,
            after,
            self.keep.as_secs_f64(),
            rows,
        )
        .fetch_optional(pool)
        .await
    }

    async fn next_key(&self, pool: &Pool, after: Uuid) -> Result<Option<Uuid>, sqlx::Error> {
        sqlx::query_scalar!(
            "select event_id from processed_events where consumer = $1 and event_id > $2 order by event_id limit 1",
            self.consumer,
            after,
        )
        .fetch_optional(pool)
        .await
    }

    async fn full_walk(&self, pool: &Pool) -> Result<Option<Uuid>, sqlx::Error> {
        sqlx::query_scalar!(
            "select full_walk_after from inbox_retention
             where consumer = $1 and not full_walk_at between clock_timestamp() - interval '1 day' and clock_timestamp()",
            self.consumer,
        )
        .fetch_optional(pool)
        .await
    }

    async fn save_full_walk(&self, pool: &Pool, after: Option<Uuid>) -> Result<(), sqlx::Error> {
        sqlx::query!(
            "update inbox_retention
             set full_walk_after = coalesce($1::uuid, '00000000-0000-0000-0000-000000000000'),
                 full_walk_at = case when $1 is null then clock_timestamp() else full_walk_at end
             where consumer = $2",
            after,
            self.consumer,
        )
        .execute(pool)
        .await?;
        Ok(())
    }
}
