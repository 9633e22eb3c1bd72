//! The database: a pool that cannot pass on a forgotten transaction, and what happens before the first query.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sqlx::{
    ConnectOptions, Connection, PgConnection, PgPool, Row,
    migrate::{MigrateError, Migrator},
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::settings;

/// How long a request waits for a connection before it is told that the service is overloaded.
const ACQUIRE_DEADLINE: Duration = Duration::from_secs(3);

/// How long connecting may take. sqlx has no time-out for a server that accepts and stays silent.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// How long migrating may take, with every other instance migrating at the same time.
const MIGRATE_DEADLINE: Duration = Duration::from_secs(120);

/// A connection that was idle for longer is tested before it is used: the server may have been restarted meanwhile.
/// Testing at every use would halve the throughput.
const TEST_AFTER_IDLE: Duration = Duration::from_secs(1);

/// The oldest server that this is tested with, as PostgreSQL counts versions.
const OLDEST_SERVER: i32 = 150_000;

/// Where the database is. Its password is never shown.
#[derive(Clone)]
pub struct DatabaseUrl(PgConnectOptions);

impl FromStr for DatabaseUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let scheme = url.split(':').next().unwrap_or_default();
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err("it begins with postgres://".into());
        }
        // The cause may quote the URL, and the URL holds the password.
        PgConnectOptions::from_str(url).map(Self).map_err(|_| {
            "not a URL like postgres://user:password@host:5432/database (percent-encode odd characters)"
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

/// What the connections of a pool are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Single statements that commit by themselves. Nobody may begin a transaction on this pool: its connections are
    /// not asked whether they are still inside one, which would be one more round trip for each statement, and a
    /// fifth of the order service's throughput. `services/orders/clippy.toml` holds that rule.
    Statements,
    /// Transactions, committed to disk before that is acknowledged. For everything that a promise rests upon.
    Transactions,
    /// Transactions whose commit may be lost in a crash of the database. For the relay's marks: a lost mark is a second
    /// copy of a message that consumers drop, and not waiting for the disk makes room for those who must.
    Marks,
}

/// Whether somebody else held a row for longer than we wait.
pub fn is_locked(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|refusal| refusal.code()).is_some_and(|code| code == "55P03")
}

/// Whether the database is busy or away, and the same statement may succeed later: by SQLSTATE class.
///
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>
pub fn is_away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(refusal) => {
            // Connection lost, wrong login, transaction rolled back (deadlock), out of resources, operator intervention
            // (shutdown, time-outs), system error; idle in a transaction for too long, or read only after a fail-over.
            let code = refusal.code().unwrap_or_default();
            matches!(code.get(..2), Some("08" | "28" | "40" | "53" | "57" | "58" | "25"))
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

/// A pool that connects when it is first used.
pub fn pool(url: &DatabaseUrl, name: &str, connections: u32, purpose: Purpose) -> PgPool {
    let mut options = url
        .0
        .clone()
        .application_name(name)
        .log_slow_statements(tracing::log::LevelFilter::Warn, Duration::from_secs(1));
    options = options.options([
        // A statement or a lock that takes longer than this is stuck, and holds up others.
        ("statement_timeout", "10s"),
        // A frozen process holds its locks no longer than this; the relay's confirm deadline has to be shorter.
        ("idle_in_transaction_session_timeout", "30s"),
        // And no longer than this if it froze while the server was sending to it, which neither of the two would end.
        ("tcp_user_timeout", "30s"),
        // With a large backlog the planner expects the relay's claim to be expensive, and compiles it to machine code
        // each time, for longer than it runs: the relay drained at 0.64 of the bare publisher's rate, and at 0.84
        // without.
        ("jit", "off"),
    ]);
    match purpose {
        // A client waits: better a clear "somebody else has it" than half of its patience.
        Purpose::Statements => options = options.options([("lock_timeout", "2s")]),
        Purpose::Marks => options = options.options([("synchronous_commit", "off")]),
        Purpose::Transactions => {}
    }
    let mut pool = PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_DEADLINE)
        .test_before_acquire(false)
        .before_acquire(|connection, meta| {
            Box::pin(async move {
                if meta.idle_for > TEST_AFTER_IDLE {
                    connection.ping().await?;
                }
                Ok(true)
            })
        });
    if purpose != Purpose::Statements {
        pool = pool.after_release(|connection, _| {
            // A link that has gone silent would keep its place in the pool for ever. An error has it dropped.
            let silent = |_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
            Box::pin(async move {
                timeout(CONNECT_DEADLINE, no_transaction_left_open(connection)).await.map_err(silent)?
            })
        });
    }
    pool.connect_lazy_with(options)
}

/// Whether a connection that comes back may be lent again.
///
/// sqlx 0.9 counts a transaction only once the answer to `BEGIN` has arrived. A future that is dropped in between, by a
/// client that hangs up or a time-out that fires, gives the connection back inside a transaction that nobody knows of.
/// The next borrower's statement succeeds, is acknowledged, and is rolled back later. So connections on which
/// transactions are begun are asked, and one that is still inside one is closed. In a transaction, `now()` is when that
/// began; outside, it is when this very statement did, if it is sent as a simple query. (A `rollback` would do too, at
/// the price of a warning in the server's log each time.)
async fn no_transaction_left_open(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let row = sqlx::raw_sql("select now() = statement_timestamp()").fetch_one(connection).await?;
    let outside: bool = row.try_get(0)?;
    if !outside {
        tracing::warn!("closed a connection that came back inside a transaction");
    }
    Ok(outside)
}

/// Waits until the database is there, and brings its schema up to date. Returns `false` if `stop` came first.
///
/// Several instances may do this at once: one migrates, the others wait for it. A database that is away is waited
/// for; one that refuses us, or that has a newer schema than this binary, is a wrong setting and ends the process.
pub async fn prepare(
    url: &DatabaseUrl,
    variable: &str,
    migrations: &[&Migrator],
    stop: &CancellationToken,
) -> bool {
    let all = migrations.iter().flat_map(|migrator| migrator.iter().cloned()).collect();
    let migrator = Migrator::with_migrations(all);
    let mut waiting = false;
    loop {
        match try_prepare(url, &migrator).await {
            Ok(()) => return true,
            Err(Obstacle::Setting(problem)) => settings::refuse(&format!("{variable}: {problem}")),
            Err(Obstacle::Away(reason)) => {
                if !waiting {
                    waiting = true;
                    tracing::warn!(reason, "waiting for the database");
                }
            }
        }
        if stop.run_until_cancelled(sleep(Duration::from_millis(500))).await.is_none() {
            return false;
        }
    }
}

enum Obstacle {
    Setting(String),
    Away(String),
}

impl From<sqlx::Error> for Obstacle {
    fn from(error: sqlx::Error) -> Self {
        if let sqlx::Error::Database(refusal) = &error {
            let code = refusal.code().unwrap_or_default();
            // Invalid authorization, no such database, no such schema, insufficient privilege.
            if code.starts_with("28") || matches!(code.as_ref(), "3D000" | "3F000" | "42501") {
                return Self::Setting(refusal.message().to_owned());
            }
        }
        Self::Away(error.to_string())
    }
}

async fn try_prepare(url: &DatabaseUrl, migrator: &Migrator) -> Result<(), Obstacle> {
    let options = url.0.clone().application_name("migrate");
    let mut connection = timeout(CONNECT_DEADLINE, options.connect())
        .await
        .map_err(|_| Obstacle::Away("it accepts connections and stays silent".into()))??;
    timeout(CONNECT_DEADLINE, inspect(&mut connection))
        .await
        .map_err(|_| Obstacle::Away("it let us in and stays silent".into()))??;
    let migrating = timeout(MIGRATE_DEADLINE, migrator.run(&mut connection));
    match migrating.await.map_err(|_| Obstacle::Away("migrating took too long".into()))? {
        Ok(()) => {}
        Err(MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) => {
            return Err(error.into());
        }
        Err(error) => {
            return Err(Obstacle::Setting(format!("its schema does not fit this binary: {error}")));
        }
    }
    // Nothing depends on the answer.
    let _ = timeout(CONNECT_DEADLINE, connection.close()).await;
    Ok(())
}

/// Looks at the server before trusting it with a promise.
async fn inspect(connection: &mut PgConnection) -> Result<(), Obstacle> {
    let (version, number, fsync, standby): (String, i32, bool, bool) = sqlx::query_as(
        "select current_setting('server_version'), current_setting('server_version_num')::int,
                current_setting('fsync')::bool, pg_is_in_recovery()",
    )
    .fetch_one(&mut *connection)
    .await?;
    if number < OLDEST_SERVER {
        return Err(Obstacle::Setting(format!("PostgreSQL {version} is too old: 15 or newer")));
    }
    if standby {
        return Err(Obstacle::Away("it is a read-only standby".into()));
    }
    if !fsync {
        tracing::error!("fsync is off: a crash of the database WILL lose acknowledged orders");
    }
    tracing::info!(version, "the database answers");
    Ok(())
}

/// Whether the database answers. Cheap to clone; all clones show the same.
#[derive(Clone)]
pub struct DatabaseState(Arc<Mutex<Result<(), String>>>);

impl Default for DatabaseState {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Err("not prepared yet".into()))))
    }
}

impl DatabaseState {
    /// How it is now, as far as is known: at most four seconds old while [`watch`](Self::watch) runs.
    ///
    /// # Errors
    /// Why the database cannot be used.
    pub fn state(&self) -> Result<(), String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For the health: whether the database answers.
    pub fn probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let state = self.clone();
        move || state.state()
    }

    /// Called once the database has been prepared: the first look of [`watch`](Self::watch) is yet to come.
    pub fn set_up(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Ok(());
    }

    /// Asks the database every two seconds, until `stop`. A change is logged once.
    pub async fn watch(self, pool: PgPool, stop: CancellationToken) {
        let watching = async {
            loop {
                let now = match timeout(Duration::from_secs(2), sqlx::query("select 1").execute(&pool)).await
                {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err("no answer within 2 s".to_owned()),
                };
                let before = std::mem::replace(
                    &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner),
                    now.clone(),
                );
                match (before, now) {
                    (Ok(()), Err(reason)) => tracing::warn!(reason, "the database is away"),
                    (Err(_), Ok(())) => tracing::info!("the database answers again"),
                    _ => {}
                }
                sleep(Duration::from_secs(2)).await;
            }
        };
        stop.run_until_cancelled(watching).await;
    }
}
