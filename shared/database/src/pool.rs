use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use deadpool::managed::{
    self, Manager, Metrics, Object, PoolConfig, PoolError, QueueMode, RecycleError, RecycleResult,
};
use futures_util::{
    TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Describe, Either, Error, Execute, Executor,
    PgConnection, Postgres, SqlSafeStr, SqlStr,
    postgres::{PgListener, PgPoolOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo},
    raw_sql,
};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout},
};

use crate::{DatabaseHealth, DatabaseUrl, Fault, PoolKind, ServerLogin, url::is_read_only};

/// How long a borrower waits for a connection. A request is then answered that the service is overloaded.
const ACQUIRE_DEADLINE: Duration = Duration::from_secs(3);

/// The pause before connecting is tried again, within that time.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

const TEST_DEADLINE: Duration = Duration::from_secs(1);

/// How old a connection becomes. A server that was drained, or whose name leads elsewhere now, is left after that time.
const MAX_AGE: Duration = Duration::from_secs(30 * 60);

/// How long a connection stays open that is not needed any more.
const MAX_IDLE: Duration = Duration::from_secs(10 * 60);

/// How long an operation that was given up keeps its place in the pool: as long as the server may be at work on it.
const ABANDONED_DEADLINE: Duration = Duration::from_secs(10);

/// Connections that are lent to one operation at a time. Cheap to clone; it connects when it is first used.
///
/// A future can be dropped at each of its awaits: a client hangs up, a time-out fires, a process stops. Its connection is then
/// inside a transaction, or waits for an answer that never comes. So a connection is lent again only if its borrower says that
/// the operation has ended ([`Session::finish`]), and is closed otherwise.
///
/// sqlx's pool keeps both kinds. It counts a transaction only once `BEGIN` was answered, so the next borrower's write may
/// succeed, be acknowledged, and be rolled back later; and it asks each returned connection whether it still answers, without
/// a deadline: behind a network that drops packets, connections were lost to the pool for a quarter of an hour.
#[derive(Debug, Clone)]
pub struct Pool {
    sessions: managed::Pool<Connector>,
    health: DatabaseHealth,
}

impl Pool {
    pub fn new(url: &DatabaseUrl, name: &str, connections: u32, kind: PoolKind) -> Self {
        let connector = Connector {
            url: url.with(|options| {
                let options = options.application_name(name);
                options.log_slow_statements(tracing::log::LevelFilter::Warn, Duration::from_secs(1))
            }),
            kind,
            state: Mutex::new(State { tested: Instant::now(), valid_since: Instant::now(), failure: None }),
        };
        let config = PoolConfig {
            queue_mode: QueueMode::Lifo,
            ..PoolConfig::new(connections.try_into().unwrap_or(1))
        };
        // It only fails for its own deadlines without a runtime, and there are none.
        let pool = managed::Pool::builder(connector).config(config).build();
        let sessions = pool.unwrap_or_else(|error| unreachable!("failed to build a pool: {error}"));
        Self { sessions, health: DatabaseHealth::default() }
    }

    /// With the health that [`for_writing`](Self::for_writing) looks at.
    #[must_use]
    pub fn with_health(self, health: DatabaseHealth) -> Self {
        Self { health, ..self }
    }

    /// This pool, for a write. Fails while health says that commits hang: the server would keep the session, however soon its
    /// client gives the commit up, and writers that try again would use up the server's connections within minutes.
    pub fn for_writing(&self) -> Result<&Self, Error> {
        self.health.check_commits().map(|()| self)
    }

    /// Borrows a connection.
    pub async fn acquire(&self) -> Result<Session, Error> {
        self.sessions.retain(|connection, _| connection.used.elapsed() < MAX_IDLE);
        match timeout(ACQUIRE_DEADLINE, self.sessions.get()).await {
            Ok(Ok(connection)) => Ok(Session(Some(connection))),
            Ok(Err(PoolError::Backend(error))) => Err(error),
            Ok(Err(_)) => Err(Error::PoolClosed),
            // The reason why it could not connect says more than that the time is up.
            Err(_) => {
                let failure = self.sessions.manager().state(|state| state.failure.take());
                let recent = failure.filter(|(at, _)| at.elapsed() < ACQUIRE_DEADLINE);
                Err(recent.map_or(Error::PoolTimedOut, |(_, error)| error))
            }
        }
    }

    /// Borrows a connection [for writing](Self::for_writing), and begins a transaction on it.
    pub async fn begin(&self) -> Result<Session, Error> {
        self.begin_with("begin").await
    }

    /// Like [`begin`](Self::begin), with a command that may do more.
    pub async fn begin_with(&self, command: impl SqlSafeStr) -> Result<Session, Error> {
        let mut session = self.for_writing()?.acquire().await?;
        raw_sql(command).execute(&mut *session).await?;
        Ok(session)
    }

    /// Returns when everything that was visible before the call is on the synchronous standby too; without one, at once. For an
    /// action that rests on a *read* alone: a publish, a repeated answer, the acknowledgement of a duplicate.
    pub async fn await_replication(&self) -> Result<(), Error> {
        self.begin_with("begin; set local synchronous_commit = on").await?.commit_read().await
    }

    /// The server that the connections have found, for a replication connection.
    pub fn server(&self) -> ServerLogin {
        self.sessions.manager().url.server()
    }

    /// Connects for `LISTEN`, outside of this pool: sqlx ends a listener with a statement that has no deadline, and a silent
    /// connection would keep its place for as long.
    pub async fn listener(&self) -> Result<PgListener, Error> {
        let Connector { url, kind, .. } = self.sessions.manager();
        let alone = PgPoolOptions::new().max_connections(1).acquire_timeout(ACQUIRE_DEADLINE);
        // To the server that the other connections have found. A standby refuses `LISTEN`.
        let mut listener = PgListener::connect_with(&alone.connect_lazy_with(url.options())).await?;
        listener.execute(AssertSqlSafe(kind.settings())).await?;
        Ok(listener)
    }
}

/// Opens the connections of a pool, and tests them.
#[derive(Debug)]
struct Connector {
    url: DatabaseUrl,
    kind: PoolKind,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tested: Instant,
    /// Connections that were opened before are not lent again: one of them was found silent, or its server read-only.
    valid_since: Instant,
    /// When and why the last attempt to connect failed.
    failure: Option<(Instant, Error)>,
}

#[derive(Debug)]
struct Connection {
    connection: PgConnection,
    opened: Instant,
    used: Instant,
}

impl Connector {
    fn state<T>(&self, access: impl FnOnce(&mut State) -> T) -> T {
        access(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn connect(&self) -> Result<PgConnection, Error> {
        let mut connection = self.url.connect().await?;
        // Safe: all of it is in this crate.
        raw_sql(AssertSqlSafe(self.kind.settings())).execute(&mut connection).await?;
        Ok(connection)
    }
}

impl Manager for Connector {
    type Type = Connection;
    type Error = Error;

    async fn create(&self) -> Result<Connection, Error> {
        loop {
            match self.connect().await {
                Ok(connection) => {
                    self.state(|state| state.failure = None);
                    let now = Instant::now();
                    return Ok(Connection { connection, opened: now, used: now });
                }
                Err(error) if Fault::of(&error) == Fault::Server => {
                    self.state(|state| state.failure = Some((Instant::now(), error)));
                    sleep(RETRY_INTERVAL).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Tests a connection before it is lent again, if a test is due. An error makes the pool drop it.
    async fn recycle(&self, kept: &mut Connection, _: &Metrics) -> RecycleResult<Error> {
        let is_due = self.state(|state| {
            if kept.opened < state.valid_since || kept.opened.elapsed() > MAX_AGE {
                return None;
            }
            let interval = self.kind.test_interval();
            let is_due = kept.used.elapsed() > interval || state.tested.elapsed() > interval;
            if is_due {
                state.tested = Instant::now();
            }
            Some(is_due)
        });
        let is_due = is_due.ok_or(RecycleError::message("outdated"))?;
        if is_due
            && !matches!(timeout(TEST_DEADLINE, is_read_only(&mut kept.connection)).await, Ok(Ok(false)))
        {
            self.state(|state| state.valid_since = Instant::now());
            return Err(RecycleError::message("silent, or its server is read-only"));
        }
        Ok(())
    }
}

/// A connection that is lent to one operation. Dropped before its end is reported, it is closed.
#[derive(Debug)]
pub struct Session(Option<Object<Connector>>);

impl Session {
    /// Reports that the operation has ended: everything was answered, and no transaction is open.
    pub fn finish(mut self) {
        if let Some(mut lent) = self.0.take() {
            lent.used = Instant::now();
        }
    }

    /// Commits the transaction, and ends the operation. After an error it is unknown whether it was committed.
    ///
    /// Of a transaction in which a statement has failed, PostgreSQL answers a `commit` with success, and rolls it back. The
    /// empty `select` before it fails then.
    pub async fn commit(self) -> Result<(), Error> {
        self.end("select; commit").await
    }

    /// Commits a transaction that has written nothing, and waits until everything that it has read is on the synchronous
    /// standby too.
    ///
    /// A commit that waits for the standby becomes visible without it when its wait is cancelled, or when the primary restarts.
    /// A transaction that has written nothing does not wait, so whatever rests on such a row would be gone once the standby
    /// takes over. This writes a record: the log is sent in order, and the commit waits for all that is before it. Without a
    /// synchronous standby nothing is written.
    /// (<https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION-HA>)
    pub async fn commit_read(self) -> Result<(), Error> {
        self.end(
            "select pg_logical_emit_message(true, 'barrier', '')
             where current_setting('synchronous_standby_names') <> '';
             commit",
        )
        .await
    }

    /// Rolls the transaction back, and ends the operation.
    pub async fn rollback(self) -> Result<(), Error> {
        self.end("rollback").await
    }

    async fn end(mut self, command: &'static str) -> Result<(), Error> {
        raw_sql(command).execute(&mut *self).await?;
        self.finish();
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(mut lent) = self.0.take() else { return };
        let Ok(runtime) = Handle::try_current() else {
            drop(Object::take(lent));
            return;
        };
        // Its place stays taken until the server has answered: with clients that give up slow requests, the server would
        // otherwise get more and more of them at once.
        runtime.spawn(async move {
            let _ = timeout(ABANDONED_DEADLINE, lent.connection.ping()).await;
            drop(Object::take(lent));
        });
    }
}

impl Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        let Some(lent) = &self.0 else { unreachable!("only `finish` and `drop` take it") };
        &lent.connection
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        let Some(lent) = &mut self.0 else { unreachable!("only `finish` and `drop` take it") };
        &mut lent.connection
    }
}

/// Single statements that commit by themselves, each on a connection that is lent for it.
impl<'p> Executor<'p> for &'p Pool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let rows = async move {
            let mut session = self.acquire().await?;
            let rows: Result<Vec<_>, Error> = session.fetch_many(query).try_collect().await;
            // A fault of the server or of the deployment may be this session's: it is lost, its server is read-only, or it has a
            // plan for a schema that has changed. After any other error it is as good as before.
            let fault = rows.as_ref().inspect_err(|error| self.health.note(error)).err().map(Fault::of);
            if !matches!(fault, Some(Fault::Server | Fault::Deployment)) {
                session.finish();
            }
            Ok::<_, Error>(stream::iter(rows?.into_iter().map(Ok)))
        };
        Box::pin(stream::once(rows).try_flatten())
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let mut rows = self.fetch(query);
        Box::pin(async move { rows.try_next().await })
    }

    /// Needed by the trait only: statements are prepared when they are first executed.
    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        'p: 'e,
    {
        Box::pin(async move { self.acquire().await?.prepare_with(sql, parameters).await })
    }

    /// As above.
    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, Error>>
    where
        'p: 'e,
    {
        Box::pin(async move { self.acquire().await?.describe(sql).await })
    }
}
