use std::{fmt, str::FromStr, time::Duration};

use sqlx::{
    ConnectOptions, Connection, PgConnection,
    migrate::{MigrateError, Migrator},
    postgres::PgConnectOptions,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How long connecting, and each later step, may take. sqlx has no time-out for a server that accepts and stays silent.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// How long migrating may take, with every other instance migrating at the same time.
const MIGRATE_DEADLINE: Duration = Duration::from_secs(120);

/// How long a migration waits for a lock. What wants the table after it waits behind it: one long transaction would stop
/// every writer.
const LOCK_TIMEOUT: &str = "5s";

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
    let options = url.options().application_name("migrate").options([("lock_timeout", LOCK_TIMEOUT)]);
    let connecting = timeout(CONNECT_DEADLINE, options.connect());
    let mut connection = connecting.await.map_err(|_| silent("the connection attempt"))??;
    let checking = timeout(CONNECT_DEADLINE, check_server(&mut connection));
    checking.await.map_err(|_| silent("the first query"))??;
    let migrating = timeout(MIGRATE_DEADLINE, migrate(&mut connection, migrator));
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
    tolerant.set_ignore_missing(true);
    tolerant.run(connection).await
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

/// Where the database is. Its password is never shown.
#[derive(Clone)]
pub struct DatabaseUrl(PgConnectOptions);

impl DatabaseUrl {
    pub fn options(&self) -> PgConnectOptions {
        self.0.clone()
    }
}

impl FromStr for DatabaseUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let scheme = url.split(':').next().unwrap_or_default();
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err("it must begin with postgres://".into());
        }
        // Without TLS in this build, the client would wait for a server that lets it in without.
        let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
        let wants_tls = |parameter: &str| {
            parameter
                .strip_prefix("sslmode=")
                .is_some_and(|mode| !["disable", "allow", "prefer"].contains(&mode))
        };
        if parameters.split('&').any(wants_tls) {
            return Err("sslmode must be disable, allow or prefer: this build has no TLS".into());
        }
        // The client would look it up as one name, again and again.
        if address.rsplit('@').next().is_some_and(|hosts| hosts.contains(',')) {
            return Err("it must name one host".into());
        }
        // The cause may quote the URL, and the URL holds the password.
        PgConnectOptions::from_str(url).map(Self).map_err(|_| {
            "not a URL like postgres://user:password@host:5432/database (percent-encode special characters)"
                .into()
        })
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(options) = self;
        write!(f, "postgres://{}@{}:{}", options.get_username(), options.get_host(), options.get_port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_this_build_cannot_honour_is_refused() {
        for (url, why) in [
            ("http://localhost/shop", "must begin with"),
            ("postgres://orders:secret@localhost/shop?sslmode=require", "no TLS"),
            ("postgres://orders:secret@one,two/shop", "one host"),
            ("postgres://localhost:port/shop", "not a URL"),
        ] {
            let refused = url.parse::<DatabaseUrl>().unwrap_err();
            assert!(refused.contains(why) && !refused.contains("secret"), "{url}: {refused}");
        }
        for url in
            ["postgres://orders:a%2Cb@localhost/shop", "postgres://orders@localhost/shop?sslmode=prefer"]
        {
            assert!(url.parse::<DatabaseUrl>().is_ok(), "{url}");
        }
    }
}
