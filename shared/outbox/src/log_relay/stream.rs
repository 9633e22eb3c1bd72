//! The committed events of the write-ahead log, in the order of their commits, and how far the log may be forgotten.

use std::{
    collections::VecDeque,
    future::pending,
    time::{Duration, SystemTime},
};

use database::ServerLogin;
use futures_util::FutureExt as _;
use pgwire_replication::{Lsn, PgWireError, ReplicationClient, ReplicationConfig, ReplicationEvent};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::{SlotState, pgoutput::Columns};
use messaging::{ClaimedEvent, Error};

const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// When the server ends a connection whose client does not answer: the slot of a frozen process is free after it. The
/// server asks at half of it, so a client that hears nothing for longer has lost the server.
const SESSION_OPTIONS: &str = "-c wal_sender_timeout=10s";
const MAX_SILENCE: Duration = Duration::from_secs(15);

/// How soon the server is told what may be forgotten. After a restart it sends again what it was not told.
const ACKNOWLEDGE_INTERVAL: Duration = Duration::from_secs(1);

/// Longer than the server is ever silent: it asks, and this client only answers.
const NO_OWN_PING: Duration = Duration::from_secs(3600);

/// The messages that are received ahead. When they are full the server waits, however long the transaction is. As many events
/// may wait here for others' locks.
const RECEIVED_AHEAD: usize = 1000;

/// 2000-01-01, from which PostgreSQL counts.
const POSTGRES_EPOCH: Duration = Duration::from_secs(946_684_800);

/// `seq` and `event_id`. Either alone may be another event's, after the table was restored in place or an event inserted again.
pub(super) type EventKey = (i64, Uuid);

pub(super) fn key(event: &ClaimedEvent) -> EventKey {
    (event.seq, event.message.id)
}

/// Holds the slot: no other relay reads from it while this lives.
pub struct LogStream {
    client: ReplicationClient,
    /// Host and port.
    server: (String, u16),
    columns: Columns,
    /// The transaction whose rows are being received.
    transaction: Option<Transaction>,
    entries: VecDeque<Entry>,
    events: usize,
    heard: Instant,
    /// Why it has ended.
    failure: Option<Error>,
}

#[derive(Clone, Copy)]
struct Transaction {
    id: u32,
    committed_at: SystemTime,
}

enum Entry {
    /// With the id of its transaction.
    Event(ClaimedEvent, u32),
    /// The log may be forgotten up to here when all entries before are done.
    Position(Lsn),
}

impl LogStream {
    /// Connects and reads from where the slot was acknowledged. It fails if another relay holds the slot.
    pub(super) async fn open(server: ServerLogin, slot: &SlotState) -> Result<Self, Error> {
        let ServerLogin { host, port, user, password, database } = server;
        let publication = slot.publication.as_str();
        let address = (host.clone(), port);
        let config = ReplicationConfig::new(host, user, password, database, &slot.slot, publication)
            .with_port(port)
            .with_options(SESSION_OPTIONS)
            .with_application_name("log relay")
            .with_status_interval(ACKNOWLEDGE_INTERVAL)
            .with_wakeup_interval(NO_OWN_PING)
            .with_buffer_size(RECEIVED_AHEAD);
        let failed = |error| Error::new("failed to open the log", error);
        let mut stream = Self {
            client: ReplicationClient::connect_gated(config).await.map_err(failed)?,
            server: address,
            columns: Columns::default(),
            transaction: None,
            entries: VecDeque::new(),
            events: 0,
            heard: Instant::now(),
            failure: None,
        };
        let client = &mut stream.client;
        let starting = async {
            let server = client.identify_system().await?;
            client.start().await?;
            client.wait_started().await?;
            Ok::<_, PgWireError>(server.system_id)
        };
        let server = timeout(CONNECT_DEADLINE, starting).await;
        let server =
            server.map_err(|_| Error::new("failed to open the log", "the database does not answer"))?;
        // The pool has found another server since the state was read. A promoted standby has the same identifier, and is known by
        // the slot that it lacks.
        if server.map_err(failed)? != slot.system_identifier {
            return Err(Error::new("failed to open the log", "the slot belongs to another server"));
        }
        Ok(stream)
    }

    /// Lets the next [`receive`](Self::receive) fail.
    pub(super) fn end(&mut self, reason: &'static str) {
        self.failure = Some(Error::new("failed to read the log", reason));
    }

    /// Whether it reads from this server. After a fail-over the log of the old one says nothing of the new one's table.
    pub(super) fn is_from(&self, server: &ServerLogin) -> bool {
        self.server.0 == server.host && self.server.1 == server.port
    }

    /// Waits for a message, also while events wait that a claim has kept. [`receive`](Self::receive) returns its failure.
    pub(super) async fn wait(&mut self) {
        if self.events >= RECEIVED_AHEAD {
            return pending().await;
        }
        if self.failure.is_none() {
            let received = self.client.recv().await;
            self.accept(received);
        }
    }

    /// Takes what has arrived, until there are so many events. After a failure the stream is of no use: another relay may hold
    /// the slot, and publish what this one has received.
    pub(super) async fn receive(&mut self, limit: usize) -> Result<(), Error> {
        while self.failure.is_none() && (self.events < limit || !self.client.is_running()) {
            let received = match self.client.recv().now_or_never() {
                Some(received) => received,
                None if self.client.is_running() => break,
                // It has ended meanwhile, and says why at once.
                None => self.client.recv().await,
            };
            self.accept(received);
        }
        if self.heard.elapsed() > MAX_SILENCE {
            self.end("the database does not answer");
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// The first events that have arrived, at most `limit`, each with the id of its transaction.
    pub(super) fn first(&self, limit: usize) -> Vec<(&ClaimedEvent, u32)> {
        let events = self.entries.iter().filter_map(|entry| match entry {
            Entry::Event(event, transaction) => Some((event, *transaction)),
            Entry::Position(_) => None,
        });
        events.take(limit).collect()
    }

    /// Whether more events have arrived than these.
    pub(super) fn has_more_than(&self, events: usize) -> bool {
        self.events > events
    }

    /// Removes events that need not be read again, and acknowledges what is before the first that remains.
    pub(super) fn done(&mut self, is_done: impl Fn(EventKey) -> bool) {
        self.entries.retain(|entry| match entry {
            Entry::Event(event, _) => !is_done(key(event)),
            Entry::Position(_) => true,
        });
        self.events = self.entries.iter().filter(|entry| matches!(entry, Entry::Event(..))).count();
        while let Some(Entry::Position(position)) = self.entries.front() {
            self.client.update_applied_lsn(*position);
            self.entries.pop_front();
        }
    }

    fn accept(&mut self, received: Result<Option<ReplicationEvent>, PgWireError>) {
        self.heard = Instant::now();
        let failed =
            |cause: Box<dyn std::error::Error + Send + Sync>| Error::new("failed to read the log", cause);
        match received {
            Ok(Some(ReplicationEvent::Begin { xid, commit_time_micros, .. })) => {
                let since = Duration::from_micros(commit_time_micros.try_into().unwrap_or_default());
                let committed_at = SystemTime::UNIX_EPOCH + POSTGRES_EPOCH + since;
                self.transaction = Some(Transaction { id: xid, committed_at });
            }
            Ok(Some(ReplicationEvent::XLogData { data, .. })) => {
                let committed_at =
                    self.transaction.map_or(SystemTime::UNIX_EPOCH, |begun| begun.committed_at);
                match (self.columns.read(&data, committed_at), self.transaction) {
                    (Ok(Some(event)), Some(transaction)) => {
                        self.events += 1;
                        self.entries.push_back(Entry::Event(event, transaction.id));
                    }
                    (Ok(Some(_)), None) => {
                        self.failure = Some(failed("a row is outside of a transaction".into()));
                    }
                    (Ok(None), _) => {}
                    // It would be sent again forever. The claim from the table publishes the event.
                    (Err(unreadable), _) => tracing::error!(%unreadable, "passed a message of the log"),
                }
            }
            Ok(Some(ReplicationEvent::Commit { end_lsn, .. })) => {
                self.transaction = None;
                self.position(end_lsn);
            }
            // Of a database in which others write and this outbox does not: without it the server would keep all of their log.
            // Within a transaction it is no position to go on from.
            Ok(Some(ReplicationEvent::KeepAlive { wal_end, .. })) if self.transaction.is_none() => {
                self.position(wal_end);
            }
            Ok(Some(_)) => {}
            Ok(None) => self.failure = Some(failed("the database has ended the connection".into())),
            Err(error) => self.failure = Some(failed(error.into())),
        }
    }

    fn position(&mut self, position: Lsn) {
        match self.entries.back_mut() {
            None => self.client.update_applied_lsn(position),
            Some(Entry::Position(last)) => *last = position,
            Some(Entry::Event(..)) => self.entries.push_back(Entry::Position(position)),
        }
    }
}

impl Drop for LogStream {
    /// The client would finish in the background, and might wait for a silent server for minutes.
    fn drop(&mut self) {
        self.client.abort();
    }
}
