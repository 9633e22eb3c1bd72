//! Faults that are injected by SQL, for drills and the soak.

use anyhow::Result;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::running_system::RunningSystem;

/// No queue is bound for `unwanted`.
pub(crate) const WRITE_UNROUTABLE: &str = "
    insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                               payload, lane)
    select gen_random_uuid(), 'order', gen_random_uuid(), 1, 'Unwanted', 1, '{}', number % 16
    from generate_series(1, 4000) as number";
pub(crate) const ERASE_UNROUTABLE: &str = "delete from orders.outbox where event_type = 'Unwanted'";

/// The error of a full disk, for each mark of an event of the order service. Orders wait while this waits for its lock.
pub(crate) const REFUSE_MARKS: &str = "
    set lock_timeout = '5s';
    create or replace function refuse_mark() returns trigger language plpgsql as $$
    begin raise exception 'could not extend file: No space left on device' using errcode = 'disk_full'; end $$;
    create or replace trigger disk_full before update of published_at on orders.outbox
        for each row execute function refuse_mark();";
pub(crate) const ACCEPT_MARKS: &str = "drop trigger if exists disk_full on orders.outbox";

/// Sets which standby a commit waits for, as the administrator of a system's own server.
pub(crate) async fn set_standby(system: &RunningSystem, value: &str) -> Result<()> {
    let mut administrator = PgConnection::connect(&system.addresses()?.admin_url).await?;
    // Two calls, because `alter system` refuses to run in a transaction.
    for statement in
        [&format!("alter system set synchronous_standby_names {value}"), "select pg_reload_conf()"]
    {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut administrator).await?;
    }
    Ok(administrator.close().await?)
}
