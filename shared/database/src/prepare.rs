use std::time::Duration;

use sqlx::{
    ConnectOptions, Connection, PgConnection,
    migrate::{MigrateError, Migrator},
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::DatabaseUrl;

/// How long connecting, and each later step, may take. sqlx has no time-out for a server that accepts and stays silent.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// How long migrating may take, with every other instance migrating at the same time.
const MIGRATE_DEADLINE: Duration = Duration::from_secs(120);

/// How long to wait before the next attempt while the database is unavailable.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The oldest server that this is tested with, as PostgreSQL counts versions.
const OLDEST_SERVER: i32 = 150_000;

/// The database refuses this service, or does not fit it. Waiting does not help; a setting has to change.
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
///
/// Several instances may do this at once: one migrates, the others wait for it.
///
/// # Errors
/// [`InvalidDatabase`] when the database refuses the login, is too old, or has a newer schema than this binary.
pub async fn prepare(
    url: &DatabaseUrl,
    migrations: &[&Migrator],
    stop: &CancellationToken,
) -> Result<bool, InvalidDatabase> {
    let all = migrations.iter().flat_map(|migrator| migrator.iter().cloned()).collect();
    let migrator = Migrator::with_migrations(all);
    let mut waiting = false;
    loop {
        match try_prepare(url, &migrator).await {
            Ok(()) => return Ok(true),
            Err(Obstacle::Invalid(problem)) => return Err(InvalidDatabase(problem)),
            Err(Obstacle::Unavailable(reason)) if !waiting => {
                waiting = true;
                tracing::warn!(reason, "waiting for the database");
            }
            Err(Obstacle::Unavailable(_)) => {}
        }
        if stop.run_until_cancelled(sleep(RETRY_INTERVAL)).await.is_none() {
            return Ok(false);
        }
    }
}

async fn try_prepare(url: &DatabaseUrl, migrator: &Migrator) -> Result<(), Obstacle> {
    let silent = |what: &str| Obstacle::Unavailable(format!("no answer to {what}"));
    let options = url.options().application_name("migrate");
    let connecting = timeout(CONNECT_DEADLINE, options.connect());
    let mut connection = connecting.await.map_err(|_| silent("the connection attempt"))??;
    let checking = timeout(CONNECT_DEADLINE, check_server(&mut connection));
    checking.await.map_err(|_| silent("the first query"))??;
    let migrating = timeout(MIGRATE_DEADLINE, migrator.run(&mut connection));
    match migrating.await.map_err(|_| silent("the migrations"))? {
        Ok(()) => {}
        Err(MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) => {
            return Err(error.into());
        }
        Err(error) => {
            return Err(Obstacle::Invalid(format!("its schema does not fit this binary: {error}")));
        }
    }
    // Nothing depends on the answer.
    let _ = timeout(CONNECT_DEADLINE, connection.close()).await;
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
        tracing::error!("fsync is off: a crash of the database WILL lose acknowledged orders");
    }
    tracing::info!(version, "the database answers");
    Ok(())
}
