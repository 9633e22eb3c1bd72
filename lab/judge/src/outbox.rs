//! The events that the judge writes into the entrant's outbox, and what the entrant's outbox says about them.

use std::{
    collections::{BTreeMap, HashSet},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _, postgres::PgRow};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};
use uuid::Uuid;

use crate::entrant::OutboxTable;

/// The routing key of events that the judge's queue wants.
pub(crate) const WANTED: &str = "judge.wanted";
/// The routing key of events that no queue wants.
pub(crate) const UNWANTED: &str = "judge.unwanted";

/// Commits. The events are visible at once, and the log shows them when the second transaction has been written to disk. With
/// a usual commit it is the other way round for a moment, and a relay that reads the log would hold a level or break it by
/// chance. Level 7 makes that moment long.
const COMMIT: &str =
    "set local synchronous_commit = off; commit; select pg_logical_emit_message(true, 'judge', '')";

/// An event that the judge has made.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) id: Uuid,
    pub(crate) aggregate: Uuid,
    pub(crate) version: u32,
    pub(crate) routing_key: &'static str,
    pub(crate) payload: String,
}

/// Larger than what any broker here accepts: RabbitMQ 4 refuses more than 16 MiB, and the private one more than 128 KiB.
pub(crate) const TOO_LARGE: usize = 17 * 1024 * 1024;

/// How long the entrant's command may take to write a statement.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(30);

/// Makes events, each with the next version of its aggregate.
#[derive(Debug, Default)]
pub(crate) struct Events(BTreeMap<Uuid, u32>);

impl Events {
    /// The next event of an aggregate. `padding` bytes make its body larger.
    pub(crate) fn next(&mut self, aggregate: Uuid, routing_key: &'static str, padding: usize) -> Event {
        let version = self.0.entry(aggregate).or_default();
        *version += 1;
        let id = Uuid::now_v7();
        let payload = json!({
            "id": id, "aggregate": aggregate, "version": version, "amount": 12.5,
            "text": "Grüße, 世界 \u{1f600}", "padding": "x".repeat(padding),
        });
        Event { id, aggregate, version: *version, routing_key, payload: payload.to_string() }
    }

    /// The next wanted events, one of each aggregate in turn.
    pub(crate) fn wanted(&mut self, aggregates: &[Uuid], count: usize) -> Vec<Event> {
        aggregates.iter().cycle().take(count).map(|aggregate| self.next(*aggregate, WANTED, 0)).collect()
    }
}

/// Random ids.
pub(crate) fn aggregates(count: usize) -> Vec<Uuid> {
    (0..count).map(|_| Uuid::new_v4()).collect()
}

/// The entrant's outbox, past the fault proxy.
#[derive(Debug)]
pub(crate) struct Outbox {
    table: OutboxTable,
    writer: Option<StatementWriter>,
    url: String,
    connection: Option<PgConnection>,
    /// What was committed, and when.
    pub(crate) committed: Vec<(Event, Instant)>,
    /// Whether a queue wants [`UNWANTED`] events, too.
    pub(crate) all_are_wanted: bool,
}

impl Outbox {
    pub(crate) fn new(table: OutboxTable, writer: Option<StatementWriter>, url: String) -> Self {
        Self { table, writer, url, connection: None, committed: vec![], all_are_wanted: false }
    }

    /// From now on the database is at another URL.
    pub(crate) fn move_to(&mut self, url: String) {
        (self.url, self.connection) = (url, None);
    }

    /// Writes events in one transaction.
    pub(crate) async fn write(&mut self, events: Vec<Event>) -> Result<()> {
        self.write_and(COMMIT, events).await.map(drop)
    }

    /// Writes events in one transaction, and commits as a service does. Returns how long that took.
    pub(crate) async fn write_durably(&mut self, events: Vec<Event>) -> Result<Duration> {
        self.write_and("commit", events).await
    }

    async fn write_and(&mut self, commit: &str, events: Vec<Event>) -> Result<Duration> {
        let mut inserts = Vec::with_capacity(events.len());
        for event in &events {
            inserts.push(self.insert(event).await?);
        }
        let sql = format!("begin; {}; {commit}", inserts.join(";\n"));
        let began = Instant::now();
        self.execute(&sql).await.context("failed to write events")?;
        let took = began.elapsed();
        self.record(events).await?;
        Ok(took)
    }

    /// Writes an event in a transaction that stays open, on another connection.
    pub(crate) async fn begin(&mut self, event: &Event) -> Result<PgConnection> {
        let mut connection = PgConnection::connect(&self.url).await?;
        let sql = format!("begin; {}", self.insert(event).await?);
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut connection)
            .await
            .context("failed to write an event")?;
        Ok(connection)
    }

    /// Commits what [`Outbox::begin`] has written.
    pub(crate) async fn commit(&mut self, mut open: PgConnection, event: Event) -> Result<()> {
        sqlx::raw_sql(COMMIT).execute(&mut open).await.context("failed to commit an event")?;
        self.record(vec![event]).await
    }

    /// Records events that were committed just now, and wakes the relay.
    pub(crate) async fn record(&mut self, events: Vec<Event>) -> Result<()> {
        let now = Instant::now();
        self.committed.extend(events.into_iter().map(|event| (event, now)));
        if let Some(sql) = self.table.after_commit.clone() {
            self.execute(&sql).await.context("failed to wake the relay")?;
        }
        Ok(())
    }

    /// Whether a queue wants it, and the broker accepts it.
    pub(crate) fn is_accepted(&self, event: &Event) -> bool {
        (event.routing_key == WANTED || self.all_are_wanted) && event.payload.len() < TOO_LARGE
    }

    /// The committed events that can be published, with the time of the commit. The later ones of an aggregate wait behind one
    /// that cannot.
    pub(crate) fn publishable(&self) -> impl Iterator<Item = &(Event, Instant)> {
        let mut waiting = HashSet::new();
        self.committed.iter().filter(move |(event, _)| {
            if !self.is_accepted(event) {
                waiting.insert(event.aggregate);
            }
            !waiting.contains(&event.aggregate)
        })
    }

    /// Executes what an operator does after the reason of a refusal is gone, if the entrant says so.
    pub(crate) async fn release(&mut self) -> Result<()> {
        if let Some(sql) = self.table.release.clone() {
            self.execute(&sql).await.context("failed to release the refused events")?;
        }
        Ok(())
    }

    /// The events that the entrant's outbox holds as not published.
    pub(crate) async fn pending(&mut self) -> Result<HashSet<Uuid>> {
        let sql = self.table.pending.clone();
        let rows = self.execute(&sql).await.context("failed to read the pending events")?;
        rows.iter().map(|row| Ok(row.try_get::<String, _>(0)?.parse()?)).collect()
    }

    /// Executes statements as the superuser, and returns their rows.
    pub(crate) async fn execute(&mut self, sql: &str) -> Result<Vec<PgRow>> {
        // A connection that has failed is not used again.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => PgConnection::connect(&self.url).await?,
        };
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
        self.connection = Some(connection);
        Ok(rows)
    }

    async fn insert(&mut self, event: &Event) -> Result<String> {
        if let Some(writer) = &mut self.writer {
            return timeout(STATEMENT_DEADLINE, writer.insert(event)).await.map_err(Into::into).flatten();
        }
        let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
        // The payload last: it may hold what looks like another placeholder.
        let insert = self
            .table
            .insert
            .replace(":id", &literal(&event.id.to_string()))
            .replace(":aggregate", &literal(&event.aggregate.to_string()))
            .replace(":version", &event.version.to_string())
            .replace(":routing_key", &literal(event.routing_key))
            .replace(":payload", &literal(&event.payload));
        Ok(insert)
    }
}

/// An entrant's command that writes insert statements.
#[derive(Debug)]
pub(crate) struct StatementWriter {
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// Killed when this is dropped.
    _process: Child,
}

impl StatementWriter {
    pub(crate) fn start(command: std::process::Command) -> Result<Self> {
        let mut command = Command::from(command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().context("failed to start the entrant's insert_command")?;
        let stdin = process.stdin.take().context("the process has a standard input")?;
        let stdout = process.stdout.take().context("the process has a standard output")?;
        Ok(Self { stdin, lines: BufReader::new(stdout).lines(), _process: process })
    }

    async fn insert(&mut self, event: &Event) -> Result<String> {
        let Event { id, aggregate, version, routing_key, payload } = event;
        let line = json!({
            "id": id, "aggregate": aggregate, "version": version, "routing_key": routing_key, "payload": payload,
        });
        self.stdin.write_all(format!("{line}\n").as_bytes()).await?;
        let line = self.lines.next_line().await?.context("the entrant's insert_command has ended")?;
        ensure!(!line.trim().is_empty(), "the entrant's insert_command wrote an empty line");
        Ok(line)
    }
}
