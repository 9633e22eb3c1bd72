/// Whether another session held a lock for longer than this one waits.
pub fn is_locked(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|refusal| refusal.code()).is_some_and(|code| code == "55P03")
}

/// Whether the database is busy or unavailable, so that the same statement may succeed later. Decides by SQLSTATE class.
///
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>
pub fn is_unavailable(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(refusal) => {
            // Connection lost, wrong login, no such database (while it is restored), transaction rolled back (deadlock),
            // out of resources, operator intervention (shutdown, time-outs), system error; idle in a transaction for too
            // long, or read only after a fail-over.
            let code = refusal.code().unwrap_or_default();
            matches!(code.get(..2), Some("08" | "28" | "3D" | "40" | "53" | "57" | "58" | "25"))
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::BeginFailed
        | sqlx::Error::WorkerCrashed => true,
        _ => false,
    }
}
