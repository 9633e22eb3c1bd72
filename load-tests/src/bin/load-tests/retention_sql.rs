//! SQL of the retention benchmark: the product's statement, a partitioned table beside it, and writers.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::product_sql::ProductSql;

/// The order service pauses as long between two windows.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// How long published events are kept, as by default in the order service.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);

/// The product's statement that erases one window of old events.
///
/// `$1` is the `seq` before the window, `$2` the age in seconds. The first two columns are the last `seq` of the window
/// and how many events were erased.
pub(crate) struct Windows(String);

impl Windows {
    /// # Errors
    /// When the product has no such statement, or one with other parameters.
    pub(crate) fn new(product: &ProductSql) -> Result<Self> {
        let statement = product.find(&["delete from outbox ", "update outbox_retention"])?;
        Ok(Self(statement.prepared(&["Int8", "Float8"])?.to_owned()))
    }

    /// Erases window by window, to the end or for `duration`, and returns how many events were erased.
    pub(crate) async fn erase(&self, session: &mut PgConnection, duration: Option<Duration>) -> Result<u32> {
        let start = Instant::now();
        let (mut after, mut erased) = (0_i64, 0_u32);
        while duration.is_none_or(|duration| start.elapsed() < duration) {
            let erase = sqlx::query(AssertSqlSafe(self.0.clone())).bind(after).bind(KEEP.as_secs_f64());
            let row = erase.fetch_one(&mut *session).await.context("failed to erase a window")?;
            let (last, count): (Option<i64>, i64) = (row.try_get(0)?, row.try_get(1)?);
            // A window of which nothing is old enough ends the walk, as in the order service.
            let (Some(last), 1..) = (last, count) else { break };
            after = last;
            erased += u32::try_from(count)?;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(erased)
    }
}

/// Creates the outbox again in two partitions, by age.
///
/// A unique key of a partitioned table has to contain the partition's own column. So this database can no longer promise
/// that an event id, or an aggregate's version, exists once.
pub(crate) const PARTITIONED: &str = "
    create table parted (like outbox including defaults, primary key (created_at, seq),
                         unique (created_at, event_id), unique (created_at, aggregate_id, aggregate_version))
        partition by range (created_at);
    create index parted_pending on parted (lane, seq) where published_at is null and parked_at is null;
    create table parted_old partition of parted for values from (minvalue) to (date_trunc('day', now()) - interval '7 days');
    create table parted_young partition of parted for values from (date_trunc('day', now()) - interval '7 days') to (maxvalue);
    create sequence parted_seq";

/// Copies the outbox into the partitions.
pub(crate) const FILL_PARTITIONED: &str = "insert into parted select * from outbox";

/// Returns a script for pgbench that writes one event into `outbox` or `parted`.
pub(crate) fn write(table: &str) -> String {
    let (column, value) =
        if table == "outbox" { ("", "") } else { ("seq, ", "nextval('parted_seq') + 100000000, ") };
    format!(
        "\\set lane random(0, 15)
         insert into {table} ({column}event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                              schema_version, payload, lane)
         values ({value}gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderCreated', 1, '{{}}', :lane);"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_products_window_statement_is_found() {
        assert!(Windows::new(&ProductSql::read().unwrap()).unwrap().0.contains("$2"));
    }
}
