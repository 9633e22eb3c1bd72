//! The order, its event and `NOTIFY` in one transaction: nothing is lost, and every order waits for every other one.
//!
//! It looks like the best of both: the relay is woken by the commit itself. But PostgreSQL hands out notifications in the
//! order of commits, and takes one lock for the whole server from before a notifying commit until it is on disk. Commits
//! that would have shared a write to disk queue up, one write each.
//! `PreCommit_Notify` in <https://github.com/postgres/postgres/blob/REL_17_STABLE/src/backend/commands/async.c>

use events::{Draft, OrderCreated, TraceContext};

use crate::shop::{Shop, insert_order};

pub(crate) async fn write(shop: &Shop, order: &OrderCreated) -> anyhow::Result<()> {
    let event = Draft::of("/orders", ("order", order.order_id, 1), &TraceContext::root(), order)?;
    let mut transaction = shop.pool.begin().await?;
    insert_order(&mut transaction, order).await?;
    outbox::append(&mut transaction, &[event]).await?;
    sqlx::query("select pg_notify('outbox:' || current_schema(), 'look')").execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(())
}
