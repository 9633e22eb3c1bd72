use std::time::Duration;

use sqlx::{ConnectOptions, PgConnection, PgPool, Row, postgres::PgPoolOptions};
use tokio::time::timeout;

use crate::{
    DatabaseUrl,
    read_only::{ReadOnlyCheck, is_read_only},
    stale_plans,
};

/// How long a request waits for a connection before it is answered that the service is overloaded.
pub(crate) const ACQUIRE_DEADLINE: Duration = Duration::from_secs(3);

/// How long the check of a returned connection may take.
const CHECK_DEADLINE: Duration = Duration::from_secs(5);

/// A connection that was idle for longer is tested before it is used: the server may have been restarted meanwhile.
/// Testing at every use would halve the throughput.
pub(crate) const MAX_UNTESTED_IDLE: Duration = Duration::from_secs(1);

/// What the connections of a pool are used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// Single statements that commit by themselves. No transaction may be begun on this pool: its connections are not
    /// checked for one when they come back, because the check is a round trip for each statement, and a fifth of the
    /// order service's throughput. `services/orders/clippy.toml` enforces the rule.
    Statements,
    /// Transactions that are on disk before they are acknowledged. For everything that a promise rests upon.
    Transactions,
    /// Transactions whose commit may be lost in a crash of the database. For the relay's marks: a lost mark is a
    /// duplicate that consumers drop, and not waiting for the disk leaves it to the commits that must.
    AsyncCommit,
}

/// A pool that connects when it is first used.
pub fn pool(url: &DatabaseUrl, name: &str, connections: u32, kind: PoolKind) -> PgPool {
    let mut options = url
        .options()
        .application_name(name)
        .log_slow_statements(tracing::log::LevelFilter::Warn, Duration::from_secs(1))
        .options([
            // A statement or a lock that takes longer than this is stuck, and blocks others.
            ("statement_timeout", "10s"),
            // A frozen process holds its locks no longer than this; the relay's confirm deadline has to be shorter.
            ("idle_in_transaction_session_timeout", "30s"),
            // The same if it froze while the server was sending to it, which neither of the two would end.
            ("tcp_user_timeout", "30s"),
            // With a large backlog the planner overestimates the relay's claim, and compiles it to machine code each
            // time, for longer than it runs: the relay drained at 0.64 of the bare publisher's rate, and at 0.84 without.
            ("jit", "off"),
            // Every statement here finds its rows by an index. While a table is young the planner takes it for small, reads
            // all of it instead, and keeps that plan until the table is analysed for the first time.
            ("enable_seqscan", "off"),
            // In such a plan a bitmap scan reads the whole index and sorts what it finds, also for a statement that needs the
            // first few entries in the index's order: the payment worker read 240,000 entries for 64 payments.
            ("enable_bitmapscan", "off"),
            // A role, a database or a server may have other defaults for these two. Without the first, a crash of the
            // database loses acknowledged writes. With a stricter isolation, a transaction that has waited for a lock does
            // not see what the lock's holder has committed, and the code after each lock relies on that.
            ("synchronous_commit", if kind == PoolKind::AsyncCommit { "off" } else { "on" }),
            ("default_transaction_isolation", "read committed"),
        ]);
    if kind == PoolKind::AsyncCommit {
        // Planning the relay's claim takes ten times as long as running it, and there is one plan only.
        options = options.options([("plan_cache_mode", "force_generic_plan")]);
    }
    if kind == PoolKind::Statements {
        // A client waits: a clear "locked by another request" is better than half of its time-out.
        options = options.options([("lock_timeout", "2s")]);
    }
    let read_only = ReadOnlyCheck::default();
    let mut pool = PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_DEADLINE)
        .test_before_acquire(false)
        .before_acquire(move |connection, meta| {
            let read_only = read_only.clone();
            Box::pin(async move {
                if read_only.outdates(meta.age) || stale_plans::outdate(meta.age) {
                    return Ok(false);
                }
                if meta.idle_for > MAX_UNTESTED_IDLE || read_only.is_due() {
                    return Ok(!read_only.found(is_read_only(connection).await?));
                }
                Ok(true)
            })
        });
    if kind != PoolKind::Statements {
        pool = pool.after_release(|connection, _| {
            // A silent connection would keep its place in the pool for ever. An error makes the pool drop it.
            let silent = |_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
            Box::pin(async move {
                timeout(CHECK_DEADLINE, is_outside_transaction(connection)).await.map_err(silent)?
            })
        });
    }
    pool.connect_lazy_with(options)
}

/// Whether a connection that comes back is outside any transaction, and so may be lent again.
///
/// sqlx 0.9 counts a transaction only once the answer to `BEGIN` has arrived. A future that is dropped in between, by a
/// client that hangs up or a time-out, returns the connection inside a transaction that sqlx does not know of. The next
/// borrower's statement succeeds, is acknowledged, and is rolled back later. So returned connections are checked, and
/// one that is still inside a transaction is closed. Inside a transaction `now()` is when that began; outside, it is
/// when this very statement did, if it is sent as a simple query. (A `rollback` would do too, but writes a warning into
/// the server's log each time.)
async fn is_outside_transaction(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let row = sqlx::raw_sql("select now() = statement_timestamp()").fetch_one(connection).await?;
    let outside: bool = row.try_get(0)?;
    if !outside {
        tracing::warn!("closed a connection that came back inside a transaction");
    }
    Ok(outside)
}
