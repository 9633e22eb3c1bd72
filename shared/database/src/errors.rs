//! Whose fault a failed statement is. One table decides for consumers, relays, the API and the start of a process.
//!
//! <https://www.postgresql.org/docs/current/errcodes-appendix.html>

use std::{io, time::Duration};

use tokio::time::timeout;

/// Waits for an answer of the server for so long.
///
/// # Errors
/// The statement's error, or that no answer came: a fault of the server.
pub async fn within_deadline<T>(
    deadline: Duration,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let no_answer = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {deadline:?}"));
    timeout(deadline, statement).await.unwrap_or_else(|_| Err(no_answer().into()))
}

/// Whose fault a failed statement is, and so what helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The data's: the next attempt would end the same way. A consumer sets the message aside.
    Data,
    /// This deployment's: its schema, its grants, its sequences. It is the same for every message and every client until
    /// an operator repairs it, so everything waits, and health says why.
    Deployment,
    /// The server's or the network's: the same statement may succeed later.
    Server,
    /// Another session holds a lock for longer than this one waits.
    Locked,
    /// It took too long. Less work at once may be fast enough.
    TooSlow,
    /// Unknown, for example an exception that a trigger raises.
    Unknown,
}

/// Every class of SQLSTATEs that PostgreSQL's appendix A lists, and each code whose fault is not its class's, with the reason.
/// The longest matching prefix wins. A code that is not listed is unknown.
pub const SQLSTATES: [(&str, Fault); 54] = [
    ("03", Fault::Unknown), // statement not complete: no error of a server
    ("08", Fault::Server),  // connection lost
    ("09", Fault::Unknown), // raised by a trigger
    // "Cached plan must not change result type": a migration has changed a column.
    ("0A", Fault::Deployment),
    ("0B", Fault::Unknown),    // invalid begin of a transaction
    ("0F", Fault::Unknown),    // invalid locator
    ("0L", Fault::Deployment), // invalid grantor
    ("0P", Fault::Deployment), // no such role
    ("0Z", Fault::Unknown),    // a trigger's exception handler
    ("10", Fault::Unknown),    // XQuery
    ("20", Fault::Unknown),    // a trigger's `case` without a match
    ("21", Fault::Unknown),    // more rows than one
    ("22", Fault::Data),       // a value that does not fit
    // Of a parameter or an option more often than of a message's value.
    ("22023", Fault::Unknown),
    ("2200H", Fault::Deployment), // a sequence at its end
    ("23", Fault::Data),          // a violated constraint
    // No value of a message is null by the time it is written: a column that this build does not know, or a defect.
    ("23502", Fault::Unknown),
    ("24", Fault::Unknown),    // invalid cursor
    ("25", Fault::Server),     // read-only after a fail-over, idle in a transaction for too long
    ("25P02", Fault::Unknown), // an earlier statement of the transaction failed, and its error was dropped
    ("25P04", Fault::TooSlow), // ended at `transaction_timeout`
    ("26", Fault::Server),     // a session that has lost its prepared statements, by a pooler
    ("27", Fault::Unknown),    // a trigger changed the row that it was called for
    ("28", Fault::Server),     // wrong login, while a server is being set up
    ("2B", Fault::Deployment), // privileges depend on each other
    ("2D", Fault::Unknown),    // `commit` in a function
    ("2F", Fault::Unknown),    // a function's exception
    ("34", Fault::Unknown),    // no such cursor
    ("38", Fault::Unknown),    // a function outside of SQL
    ("39", Fault::Unknown),    // the same, or a trigger that returns the wrong row
    ("3B", Fault::Unknown),    // no such savepoint
    ("3D", Fault::Server),     // no such database, while it is restored
    ("3F", Fault::Deployment), // no such schema
    ("40", Fault::Server),     // deadlock, serialization failure
    ("42", Fault::Deployment), // no such table or column, permission denied
    ("44", Fault::Data),       // a view's check option
    ("53", Fault::Server),     // out of disk, memory or connections
    // 54000 is the server's stop before transaction ids wrap around: it refuses every write. A row that is too large for an
    // index has the same code, and no text that the services index is as long.
    ("54", Fault::Server),
    ("54001", Fault::Data),       // too complex
    ("54011", Fault::Data),       // too many columns
    ("54023", Fault::Data),       // too many arguments
    ("55", Fault::Server),        // not in the needed state
    ("55P02", Fault::Deployment), // a setting that needs a restart
    ("55P03", Fault::Locked),
    ("57", Fault::Server),     // shutdown, crash of another session
    ("57014", Fault::TooSlow), // cancelled at `statement_timeout`
    ("58", Fault::Server),     // I/O error
    ("72", Fault::Server),     // snapshot too old
    ("F0", Fault::Server),     // the server's configuration file
    ("HV", Fault::Server),     // a foreign server
    ("P0", Fault::Unknown),    // raised by a trigger
    ("XX", Fault::Server),     // an internal error: setting messages aside would not help
    // One page or index entry is corrupt, and all others can be read: what needs this one must not stop the rest.
    ("XX001", Fault::Unknown),
    ("XX002", Fault::Unknown),
];

/// The primary keys that a sequence numbers. All others come with a message or are derived from one: the same key a second time
/// is that message's fault.
const NUMBERED: [&str; 3] = ["answers_pkey", "dead_letters_pkey", "outbox_pkey"];

impl Fault {
    pub fn of(error: &sqlx::Error) -> Self {
        match error {
            // A sequence is behind its table, as after a restore or a switch to a logical replica.
            sqlx::Error::Database(refusal)
                if refusal.is_unique_violation()
                    && refusal.constraint().is_some_and(|name| NUMBERED.contains(&name)) =>
            {
                Self::Deployment
            }
            sqlx::Error::Database(refusal) => Self::of_sqlstate(&refusal.code().unwrap_or_default()),
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::BeginFailed
            | sqlx::Error::WorkerCrashed => Self::Server,
            _ => Self::Unknown,
        }
    }

    /// Whether a row of the statement may be to blame: without that row it may succeed.
    pub fn may_be_of_a_row(self) -> bool {
        matches!(self, Self::Data | Self::Unknown)
    }

    fn of_sqlstate(code: &str) -> Self {
        let fitting = SQLSTATES.iter().filter(|(state, _)| code.starts_with(state));
        fitting.max_by_key(|(state, _)| state.len()).map_or(Self::Unknown, |(_, fault)| *fault)
    }
}

/// Whether another session held a lock for longer than this one waits.
pub fn is_locked(error: &sqlx::Error) -> bool {
    Fault::of(error) == Fault::Locked
}

/// Whether the database is busy or unavailable, or not as this build needs it: the same statement may succeed later.
pub fn is_unavailable(error: &sqlx::Error) -> bool {
    matches!(Fault::of(error), Fault::Server | Fault::Deployment | Fault::TooSlow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_that_a_sequence_numbers_is_known() {
        let migrations = [
            include_str!("../../../migrations/outbox/1001_outbox.sql"),
            include_str!("../../../migrations/inbox/2002_dead_letters.sql"),
            include_str!("../../../migrations/orders/3001_orders.sql"),
        ];
        let numbered = migrations.iter().flat_map(|sql| sql.split("create table ").skip(1)).filter(|table| {
            table
                .split(";")
                .next()
                .is_some_and(|table| table.contains("generated always as identity primary key"))
        });
        let mut keys: Vec<_> =
            numbered.map(|table| format!("{}_pkey", table.split(" ").next().unwrap_or_default())).collect();
        keys.sort();
        assert_eq!(keys, NUMBERED);
    }
}
