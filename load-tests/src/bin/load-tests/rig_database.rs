//! What the benchmarks read and write in the database of a running system.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::{
    bare_publisher::Message,
    orders_sql,
    rig::{Login, Rig},
};

/// How often a long wait prints how far it got.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

impl Rig {
    /// Reads the body and the headers of an order's first event from the outbox.
    pub(crate) async fn event_of(&self, order: Uuid) -> anyhow::Result<(String, String)> {
        let mut database = self.connect(Login::Orders).await?;
        let event = sqlx::query_as(
            "select payload::text, headers::text from outbox where aggregate_id = $1 and aggregate_version = 1",
        );
        event.bind(order).fetch_one(&mut database).await.context("failed to read the order's event")
    }

    /// Adds `events` unpublished events to the outbox, each like the first event of order `template`.
    pub(crate) async fn fill_outbox(&self, template: Uuid, events: u32) -> anyhow::Result<()> {
        let mut database = self.connect(Login::Orders).await?;
        let fill =
            sqlx::query(AssertSqlSafe(orders_sql::fill_outbox())).bind(template).bind(i64::from(events));
        let filled = fill.execute(&mut database).await.context("failed to fill the outbox")?.rows_affected();
        ensure!(
            filled == u64::from(events),
            "failed to fill the outbox: {filled} events were written, not {events}"
        );
        // Otherwise autovacuum starts because of the new rows in the middle of a measurement.
        sqlx::query("vacuum analyze outbox").execute(&mut database).await?;
        Ok(())
    }

    /// Adds stock for `orders` orders like the template, which have at most two pieces of a product. Without it, a long
    /// backlog is cancelled.
    pub(crate) async fn add_stock(&self, orders: i64) -> anyhow::Result<()> {
        let mut database = self.connect(Login::Admin).await?;
        let add = sqlx::query("update inventory.stock set on_hand = on_hand + 2 * $1").bind(orders);
        add.execute(&mut database).await.context("failed to add stock")?;
        Ok(())
    }

    /// Returns the highest `seq` in the order service's outbox, 0 if it is empty.
    pub(crate) async fn last_seq(&self) -> anyhow::Result<i64> {
        let mut database = self.connect(Login::Orders).await?;
        let last = sqlx::query_scalar("select coalesce(max(seq), 0) from outbox").fetch_one(&mut database);
        last.await.context("failed to read the last seq of the outbox")
    }

    /// Reads `count` events of the outbox for which `condition` holds, as messages.
    ///
    /// # Errors
    /// When there are fewer.
    pub(crate) async fn messages(&self, condition: &'static str, count: u32) -> anyhow::Result<Vec<Message>> {
        let mut database = self.connect(Login::Orders).await?;
        let statement =
            format!("select event_id::text, payload::text from outbox where {condition} limit {count}");
        let rows: Vec<(String, String)> =
            sqlx::query_as(AssertSqlSafe(statement)).fetch_all(&mut database).await?;
        ensure!(
            rows.len() == usize::try_from(count)?,
            "failed to read {count} events with {condition}: there are {}",
            rows.len()
        );
        Ok(rows.into_iter().map(|(id, body)| Message { id, body: body.into_bytes() }).collect())
    }

    /// Makes `count` messages like the first event of order `template`. The outbox does not keep their events.
    pub(crate) async fn fresh_messages(&self, template: Uuid, count: u32) -> anyhow::Result<Vec<Message>> {
        self.fill_outbox(template, count).await?;
        let messages = self.messages("published_at is null", count).await?;
        let mut database = self.connect(Login::Orders).await?;
        sqlx::query("delete from outbox where published_at is null").execute(&mut database).await?;
        Ok(messages)
    }

    /// Waits until both services have answered every order and every order is confirmed or cancelled.
    ///
    /// # Errors
    /// When that has not happened at the deadline; names what is still pending.
    pub(crate) async fn everything_applied(&self, deadline: Duration) -> anyhow::Result<()> {
        let mut database = self.connect(Login::Auditor).await?;
        let mut progress = Progress::new();
        testbed::eventually("all orders to be confirmed or cancelled", deadline, async || {
            // While an order is open, counting everything would tell nothing, and it reads all rows.
            let open = sqlx::query_scalar(
                "select count(*) from orders.orders where status in ('pending', 'reserved', 'paid')",
            );
            let open: i64 = open.fetch_one(&mut database).await?;
            if open > 0 {
                let state = format!("{open} orders are open");
                progress.print(&state);
                tokio::time::sleep(Duration::from_millis(200)).await;
                anyhow::bail!("{state}")
            }
            let (open, pending, inventory, billing): (i64, i64, i64, i64) = sqlx::query_as(
                "with created as (select count(*) as n from orders.outbox where event_type = 'OrderCreated')
                 select (select count(*) from orders.orders where status in ('pending', 'reserved', 'paid')),
                        (select count(*) from orders.outbox where published_at is null)
                      + (select count(*) from inventory.outbox where published_at is null)
                      + (select count(*) from billing.outbox where published_at is null)
                      + (select count(*) from billing.payments where state in ('asked', 'refunding')),
                        n - (select count(*) from inventory.processed_events where event_type = 'OrderCreated'),
                        n - (select count(*) from billing.processed_events where event_type = 'OrderCreated')
                 from created",
            )
            .fetch_one(&mut database)
            .await?;
            if (open, pending, inventory, billing) == (0, 0, 0, 0) {
                return Ok(Some(()));
            }
            let state = format!(
                "{open} orders are open, {pending} events and payments are pending; \
                 inventory has not applied {inventory} orders, billing {billing}"
            );
            progress.print(&state);
            // Not more often, because counting takes time on the cores that do the work.
            tokio::time::sleep(Duration::from_millis(200)).await;
            anyhow::bail!("{state}")
        })
        .await
    }
}

/// Prints a line now and then.
struct Progress(Instant);

impl Progress {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn print(&mut self, state: &str) {
        if self.0.elapsed() >= PROGRESS_EVERY {
            eprintln!("waiting: {state}");
            self.0 = Instant::now();
        }
    }
}
