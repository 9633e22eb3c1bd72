use std::{fmt::Write as _, time::Duration};

/// What the connections of a pool are used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// Statements that a client waits for: a clear "locked by another request" is better than half of its time-out.
    Statements,
    /// Transactions that are on disk before they are acknowledged. For everything that a promise rests upon.
    Transactions,
    /// Transactions whose commit may be lost in a crash of the database. For the relay's marks: a lost mark is a
    /// duplicate that consumers drop, and not waiting for the disk leaves it to the commits that must.
    AsyncCommit,
}

/// Set after connecting, and not by the connection's options: a connection pooler in between refuses those, or ignores
/// them.
const SETTINGS: [(&str, &str); 7] = [
    // A statement or a lock that takes longer than this is stuck, and blocks others.
    ("statement_timeout", "10s"),
    // A frozen process holds its locks no longer than this; the relay's confirm deadline must be shorter.
    ("idle_in_transaction_session_timeout", "30s"),
    // The same if it froze while the server was sending to it, which neither of the two would end.
    ("tcp_user_timeout", "30s"),
    // With a large backlog the planner overestimates the relay's claim, and compiles it to machine code each time, for
    // longer than it runs: the relay drained at 0.64 of the bare publisher's rate, and at 0.84 without.
    ("jit", "off"),
    // Every statement here finds its rows by an index. While a table is young the planner takes it for small, reads all
    // of it instead, and keeps that plan until the table is analysed for the first time.
    ("enable_seqscan", "off"),
    // In such a plan a bitmap scan reads the whole index and sorts what it finds, also for a statement that needs the
    // first few entries in the index's order: the payment worker read 240,000 entries for 64 payments.
    ("enable_bitmapscan", "off"),
    // With a stricter isolation, a transaction that has waited for a lock does not see what the lock's holder has
    // committed, and the code after each lock relies on that.
    ("default_transaction_isolation", "read committed"),
];

impl PoolKind {
    /// A connection that was idle for longer is tested before it is lent: the server may have been restarted, or may
    /// have become a standby. In a busy pool one connection is tested in each such interval. Testing at every use would
    /// halve the throughput. A client should not meet a dead connection; what else uses one tries again by itself.
    pub(crate) fn test_interval(self) -> Duration {
        Duration::from_secs(if self == Self::Statements { 1 } else { 5 })
    }

    /// What a session of this kind sets once, as one simple query.
    pub(crate) fn settings(self) -> String {
        let mut sql = String::new();
        for (name, value) in SETTINGS {
            let _ = write!(sql, "set {name} = '{value}'; ");
        }
        // It would end a relay's transaction while its broker is slow. PostgreSQL 17 is the first to know it.
        sql += "select set_config(name, '0', false) from pg_settings where name = 'transaction_timeout'; ";
        sql += match self {
            // Planning the relay's claim takes ten times as long as running it, and there is one plan only.
            Self::AsyncCommit => "set synchronous_commit = off; set plan_cache_mode = force_generic_plan",
            Self::Statements | Self::Transactions => {
                // Weaker, a crash of the database loses acknowledged writes. `remote_apply`, which is stronger, stays.
                "select set_config('synchronous_commit', 'on', false)
                 where current_setting('synchronous_commit') in ('off', 'local', 'remote_write')"
            }
        };
        if self == Self::Statements {
            sql += "; set lock_timeout = '2s'";
        }
        sql
    }
}
