//! The order, its event and `NOTIFY` in one transaction: no event is lost, and every commit waits for every other one.
//!
//! It looks attractive: the commit itself wakes the relay. But PostgreSQL delivers notifications in the order of commits,
//! and for that takes one lock for the whole server, from before a notifying commit until it is on disk. Commits that would
//! have shared one flush to disk queue up, with one flush each.
//! `PreCommit_Notify` in <https://github.com/postgres/postgres/blob/REL_17_STABLE/src/backend/commands/async.c>

use events::OrderCreated;

use super::{WriteState, created_event, insert_order};

pub(crate) async fn write(state: &WriteState, order: &OrderCreated) -> anyhow::Result<()> {
    let event = created_event(order)?;
    let mut transaction = state.transactions.begin().await?;
    insert_order(&mut transaction, order).await?;
    outbox::append(&mut transaction, &[event]).await?;
    sqlx::query("select pg_notify('outbox:' || current_schema(), 'scan')").execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(())
}
