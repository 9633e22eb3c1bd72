//! Whose fault a failed statement is. One table decides for consumers, for the API and for the start of a process.
//!
//! <https://www.postgresql.org/docs/current/errcodes-appendix.html>

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

/// SQLSTATEs and their classes. The longest one that fits decides.
const SQLSTATES: [(&str, Fault); 21] = [
    ("08", Fault::Server), // connection lost
    // "Cached plan must not change result type": a migration has changed a column.
    ("0A000", Fault::Deployment),
    ("22", Fault::Data),       // a value that does not fit
    ("23", Fault::Data),       // a violated constraint
    ("25", Fault::Server),     // read-only after a fail-over, idle in a transaction for too long
    ("28", Fault::Server),     // wrong login, while a server is being set up
    ("3D", Fault::Server),     // no such database, while it is restored
    ("3F", Fault::Deployment), // no such schema
    ("40", Fault::Server),     // deadlock, serialization failure
    ("42", Fault::Deployment), // no such table or column, permission denied
    ("53", Fault::Server),     // out of disk, memory or connections
    ("54", Fault::Data),       // a program limit, for example a row that is too large
    ("55", Fault::Server),     // not in the needed state, for example a sequence at its end
    ("55P03", Fault::Locked),
    ("57", Fault::Server),     // shutdown, crash of another session
    ("57014", Fault::TooSlow), // cancelled at `statement_timeout`
    ("25P04", Fault::TooSlow), // ended at `transaction_timeout`
    ("58", Fault::Server),     // I/O error
    ("F0", Fault::Server),     // the server's configuration file
    ("HV", Fault::Server),     // a foreign server
    ("XX", Fault::Server),     // corrupted data, an internal error: setting messages aside would not help
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

    #[test]
    fn every_sqlstate_of_the_table_has_its_fault_and_the_longest_one_decides() {
        for (state, fault) in SQLSTATES {
            assert_eq!(Fault::of_sqlstate(&format!("{state:0<5}")), fault, "{state}");
        }
        for (code, fault) in [
            ("23514", Fault::Data),
            ("23505", Fault::Data),
            ("22P05", Fault::Data),
            ("42501", Fault::Deployment),
            ("53100", Fault::Server),
            ("55000", Fault::Server),
            ("57P01", Fault::Server),
            ("P0001", Fault::Unknown),
            ("", Fault::Unknown),
        ] {
            assert_eq!(Fault::of_sqlstate(code), fault, "{code}");
        }
    }
}
