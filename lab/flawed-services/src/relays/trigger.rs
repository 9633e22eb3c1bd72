//! NOTIFY for each row, from a trigger: any program that writes an event wakes the relay, and need not know of it.
//!
//! The notification is part of the order's transaction, with the lock that `notify_in_transaction.rs` describes.

use anyhow::Context as _;
use database::Pool;

/// Creates the trigger, unless it is there. Its channel is the one that the product's listener subscribes to.
pub(crate) async fn create(pool: &Pool) -> anyhow::Result<()> {
    // One at a time: two instances that create it at once would fail.
    let statements = "
        select pg_advisory_xact_lock(hashtext('outbox_row_written'));
        create or replace function outbox_row_written() returns trigger language plpgsql as $$
        begin
            perform pg_notify('outbox:' || tg_table_schema, new.seq::text);
            return null;
        end $$;
        create or replace trigger outbox_row_written after insert on outbox
            for each row execute function outbox_row_written()";
    sqlx::raw_sql(statements).execute(pool).await.context("failed to create the trigger")?;
    Ok(())
}
