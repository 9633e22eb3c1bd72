use std::time::Duration;

use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Row as _,
    migrate::{MigrateError, Migrator},
    raw_sql,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{DatabaseUrl, Fault};

/// How long connecting, and each later step, may take. sqlx has no time-out for a server that accepts and stays silent.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// How long a migration may take. It holds its locks meanwhile. A longer one is applied by hand: `docs/versioning.md`.
const MIGRATION_LIMIT: Duration = Duration::from_secs(120);

/// How much longer its client waits: the server says first that it has cancelled the work, and the work ends with that.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// How long to wait before the next attempt while the database is unavailable.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The oldest server that this is tested with, as PostgreSQL counts versions.
const OLDEST_SERVER: i32 = 150_000;

/// The database refuses this service, or does not fit it. Waiting does not help; a setting must change.
#[derive(Debug)]
pub struct InvalidDatabase(pub String);

enum Obstacle {
    Invalid(String),
    Unavailable(String),
}

impl From<sqlx::Error> for Obstacle {
    fn from(error: sqlx::Error) -> Self {
        if let sqlx::Error::Database(refusal) = &error {
            let code = refusal.code().unwrap_or_default();
            // Invalid authorization, no such database, no such schema, insufficient privilege.
            if code.starts_with("28") || matches!(code.as_ref(), "3D000" | "3F000" | "42501") {
                return Self::Invalid(refusal.message().to_owned());
            }
        }
        Self::Unavailable(error.to_string())
    }
}

/// Waits until the database is available, and brings the service's schema up to date. `Ok(false)` if `stop` came first.
/// It fails when the database refuses the login, is too old, or has a schema of another history.
///
/// Several instances may do this at once: one migrates, the others wait for it. A newer schema is accepted, with a warning:
/// in a roll-out and after a roll-back, old processes run on it, so each migration must fit the release before it.
pub async fn prepare(
    url: &DatabaseUrl,
    migrations: &[&Migrator],
    stop: &CancellationToken,
) -> Result<bool, InvalidDatabase> {
    // From the start: without a series, an alert would not see a database that never answered.
    metrics::gauge!("database_available").set(0.0);
    prepare_within(MIGRATION_LIMIT, url, migrations, stop).await
}

/// [`prepare()`] with another limit for each migration.
pub async fn prepare_within(
    limit: Duration,
    url: &DatabaseUrl,
    migrations: &[&Migrator],
    stop: &CancellationToken,
) -> Result<bool, InvalidDatabase> {
    let all = migrations.iter().flat_map(|migrator| migrator.iter().cloned()).collect();
    let mut migrator = Migrator::with_migrations(all);
    // Its lock is one for the whole database: while one service migrates, no other could start.
    migrator.set_locking(false);
    let mut waiting = String::new();
    loop {
        match try_prepare(url, &migrator, limit).await {
            Ok(()) => return Ok(true),
            Err(Obstacle::Invalid(problem)) => return Err(InvalidDatabase(problem)),
            Err(Obstacle::Unavailable(reason)) => {
                if reason != waiting {
                    tracing::warn!(reason, "waiting for the database");
                }
                waiting = reason;
            }
        }
        if stop.run_until_cancelled(sleep(RETRY_INTERVAL)).await.is_none() {
            return Ok(false);
        }
    }
}

async fn try_prepare(url: &DatabaseUrl, migrator: &Migrator, limit: Duration) -> Result<(), Obstacle> {
    let silent = |what: &str| Obstacle::Unavailable(format!("no answer to {what}"));
    let url = url.with(|options| options.application_name("migrate"));
    let connecting = timeout(CONNECT_DEADLINE, url.connect());
    let mut connection = connecting.await.map_err(|_| silent("the connection attempt"))??;
    let checking = timeout(CONNECT_DEADLINE, async {
        check_session(&url, &mut connection).await?;
        check_server(&mut connection).await
    });
    checking.await.map_err(|_| silent("the first query"))??;
    timeout(CONNECT_DEADLINE + LOCK_TIMEOUT, lock(&mut connection, limit))
        .await
        .map_err(|_| silent("the lock"))??;
    let migrating = timeout(limit + ANSWER_DEADLINE, migrate(&mut connection, migrator));
    match migrating.await.map_err(|_| silent("the migrations"))? {
        Ok(()) => {}
        Err(MigrateError::Execute(error)) => return Err(error.into()),
        Err(MigrateError::ExecuteMigration(error, version)) if Fault::of(&error) == Fault::TooSlow => {
            return Err(Obstacle::Invalid(format!(
                "migration {version} takes longer than {limit:?}, so the server has cancelled it; it must be applied by hand"
            )));
        }
        Err(MigrateError::ExecuteMigration(error, version)) => {
            return Err(match error.into() {
                Obstacle::Invalid(problem) => Obstacle::Invalid(format!("migration {version}: {problem}")),
                Obstacle::Unavailable(reason) => {
                    Obstacle::Unavailable(format!("migration {version}: {reason}"))
                }
            });
        }
        Err(error) => {
            return Err(Obstacle::Invalid(format!("its schema does not fit this binary: {error}")));
        }
    }
    // Nothing depends on the answer.
    let _ = timeout(CONNECT_DEADLINE, connection.close()).await;
    Ok(())
}

/// How long a migration waits for a lock. What wants the table after it waits behind it: one long transaction would stop
/// every writer.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes the lock of this schema's migrations, which ends with the session, and limits what the server does for them. A client
/// that gives up ends nothing: the server would work on, with all its locks, while the next attempt begins.
async fn lock(connection: &mut PgConnection, limit: Duration) -> Result<(), sqlx::Error> {
    let (lock_limit, limit) = (LOCK_TIMEOUT.as_millis(), limit.as_millis());
    let sql = format!(
        "set lock_timeout = {lock_limit};
         set statement_timeout = {limit};
         select set_config(name, '{limit}', false) from pg_settings where name = 'transaction_timeout';
         select pg_advisory_lock(hashtextextended('migrations of ' || current_schema, 0))"
    );
    // Only numbers are in it.
    raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
}

/// Applies what is missing. Migrations that this binary does not know are accepted if they are newer than those of their
/// series that it knows: 1xxx is the outbox, 2xxx the inbox, 3xxx the service's own.
async fn migrate(connection: &mut PgConnection, migrator: &Migrator) -> Result<(), MigrateError> {
    let first = match migrator.run(&mut *connection).await {
        Err(MigrateError::VersionMissing(version)) => version,
        done => return done,
    };
    let applied: Vec<i64> = sqlx::query_scalar("select version from _sqlx_migrations order by version")
        .fetch_all(&mut *connection)
        .await
        .map_err(MigrateError::Execute)?;
    let unknown: Vec<_> = applied.into_iter().filter(|version| !migrator.version_exists(*version)).collect();
    let is_newer = |version: &i64| {
        migrator
            .iter()
            .filter(|known| known.version / 1000 == version / 1000)
            .all(|known| known.version < *version)
    };
    if !unknown.iter().all(is_newer) {
        return Err(MigrateError::VersionMissing(first));
    }
    tracing::warn!(?unknown, "the schema is newer than this binary");
    let mut tolerant = Migrator::with_migrations(migrator.iter().cloned().collect());
    tolerant.set_ignore_missing(true).set_locking(false);
    tolerant.run(connection).await
}

/// Checks that each connection has a session for itself.
///
/// A pooler that lends one session to each of several clients in turn (PgBouncer in transaction mode) loses what a session
/// sets, `synchronous_commit` and time-outs too, or gives it to another client.
async fn check_session(url: &DatabaseUrl, connection: &mut PgConnection) -> Result<(), Obstacle> {
    // Text, because such a pooler may know nothing of prepared statements.
    let process = async |connection: &mut PgConnection| {
        let row = raw_sql("select pg_backend_pid()").fetch_one(connection).await?;
        row.try_get::<i32, _>(0)
    };
    let mut other = url.connect().await?;
    if process(connection).await? == process(&mut other).await? {
        return Err(Obstacle::Invalid(
            "two connections share a session: a pooler is in between. Its mode must be `session`".into(),
        ));
    }
    other.close().await?;
    Ok(())
}

/// Checks what the promises need from the server: its version, that it is writable, that it syncs to disk.
async fn check_server(connection: &mut PgConnection) -> Result<(), Obstacle> {
    let (version, number, fsync, read_only): (String, i32, bool, bool) = sqlx::query_as(
        "select current_setting('server_version'), current_setting('server_version_num')::int,
                current_setting('fsync')::bool, current_setting('transaction_read_only')::bool",
    )
    .fetch_one(&mut *connection)
    .await?;
    if number < OLDEST_SERVER {
        return Err(Obstacle::Invalid(format!("PostgreSQL {version} is too old: 15 or newer")));
    }
    if read_only {
        return Err(Obstacle::Unavailable("it is read-only: a standby, or set so".into()));
    }
    if !fsync {
        tracing::error!("fsync is off: a power failure of the database WILL lose acknowledged orders");
    }
    tracing::info!(version, "the database answers");
    Ok(())
}
