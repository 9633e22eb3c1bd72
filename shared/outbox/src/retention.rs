//! Optional. Without it: published events stay, and the table grows.

use std::time::Duration;

use database::{Erase, Pool, Retention, Window};

/// Erases events that were published longer ago than `keep`, by the database's clock. Pending events stay forever.
///
/// The walk follows the primary key. An index on `published_at` would find the rows too, and every mark would have to
/// maintain it; `seq` is almost the order of publishing, and its index exists. `docs/retention.md` has the measurements.
pub fn retention(pool: Pool, keep: Duration) -> Retention<ErasePublished> {
    Retention::new("outbox", pool, ErasePublished(keep))
}

#[derive(Debug)]
pub struct ErasePublished(Duration);

impl Erase for ErasePublished {
    type Key = i64;
    const FIRST_KEY: i64 = 0;

    /// `published_at < cutoff` is never true for an event that is pending, backing off or parked, however old it is. The
    /// condition stands in the `delete` itself: if an operator takes a mark back at this moment, PostgreSQL checks it again
    /// after waiting for them. The limit is a literal, because the plan depends on it.
    async fn erase_window(
        &self,
        pool: &Pool,
        after: i64,
        rows: i64,
    ) -> Result<Option<Window<i64>>, sqlx::Error> {
        sqlx::query_as!(
            Window,
            r#"with locked as (
                   select clock_timestamp() - $2::float8 * interval '1 second' as cutoff
                   from outbox_retention for update skip locked
               ), thousand as materialized (
                   select seq, created_at, published_at, row_number() over (order by seq) as number from (
                       select seq, created_at, published_at from outbox
                       where seq > $1 and exists (select from locked) order by seq limit 1000
                   ) as next
               ), candidates as materialized (
                   select * from thousand where number <= $3
               ), deleted as (
                   delete from outbox using locked
                   where outbox.seq > $1 and outbox.seq <= (select max(seq) from candidates)
                     and outbox.published_at < locked.cutoff
                   returning 1
               ), total as (
                   select count(*) as erased from deleted
               ), recorded as (
                   update outbox_retention
                   set erased_before = greatest(erased_before, locked.cutoff), erased = outbox_retention.erased + total.erased
                   from locked, total where total.erased > 0
               )
               select (select max(seq) from candidates) as last,
                      total.erased as "erased!",
                      -- A time that is more than six minutes ahead comes from a clock that has been set back since. It says
                      -- nothing about the rows behind it.
                      exists (select from candidates where published_at between locked.cutoff
                                                            and clock_timestamp() + interval '6 minutes') as "some_are_young!",
                      (select count(*) = $3 from candidates) as "is_full!",
                      -- An event is published after it is created: past an event that is itself too young, all are.
                      (select created_at not between locked.cutoff and clock_timestamp() + interval '6 minutes'
                       from candidates order by seq desc limit 1) is true as "more!"
               from locked, total"#,
            after,
            self.0.as_secs_f64(),
            rows,
        )
        .fetch_optional(pool)
        .await
    }

    async fn next_key(&self, pool: &Pool, after: i64) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar!("select seq from outbox where seq > $1 order by seq limit 1", after)
            .fetch_optional(pool)
            .await
    }

    async fn full_walk(&self, pool: &Pool) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar!(
            "select full_walk_after from outbox_retention
             where not full_walk_at between clock_timestamp() - interval '1 day' and clock_timestamp()"
        )
        .fetch_optional(pool)
        .await
    }

    async fn save_full_walk(&self, pool: &Pool, after: Option<i64>) -> Result<(), sqlx::Error> {
        sqlx::query!(
            "update outbox_retention
             set full_walk_after = coalesce($1::bigint, 0),
                 full_walk_at = case when $1 is null then clock_timestamp() else full_walk_at end",
            after,
        )
        .execute(pool)
        .await?;
        Ok(())
    }
}
