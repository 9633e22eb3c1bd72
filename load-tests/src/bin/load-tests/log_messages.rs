//! Events without a table: each is a message in the write-ahead log (`pg_logical_emit_message`), in the order's transaction. What
//! one costs, and how soon the broker confirms it, beside an event in the outbox that the log relay publishes.
//!
//! The product has no such path. The reader here is the least that keeps the relay's promise: publish what has arrived, await
//! the confirms, then acknowledge the log.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::FutureExt as _;
use pgwire_replication::{Lsn, ReplicationClient, ReplicationConfig, ReplicationEvent};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use crate::{
    backlog::{self, EventIn},
    bare_publisher::{BarePublisher, IN_FLIGHT, Message},
    cpu_time::{CpuTimes, GENERATOR},
    pgbench,
    report::{Figure, Rounds},
    rig::{Login, Rig, SERVICES, log_position},
};

pub(crate) const NOTES: [&str; 2] = [
    "by pgbench: it writes an order with its event, and nobody wakes a relay, so the polling relay is not among these; consumers \
     are stopped; of a message both ends are the machine's clock, from the commit record to the confirm",
    "an event in the outbox costs a mark, too: its log is in the figures of the backlog",
];

/// Where the events of a measurement are.
const SOURCES: [(EventIn, &str); 2] =
    [(EventIn::Outbox, "outbox read from the log"), (EventIn::LogMessage, "message in the log")];

/// The connections of pgbench.
const WRITERS: u32 = 16;

/// Orders that one connection writes while their log is measured. The first of them are not counted: they open new pages.
const WRITES: u32 = 500;
const FIRST_WRITES: u32 = 50;

const PUBLISHED_DEADLINE: Duration = Duration::from_secs(60);

/// 2000-01-01, from which PostgreSQL counts.
const POSTGRES_EPOCH: Duration = Duration::from_secs(946_684_800);

/// Measures both sources in turns, in so many rounds: at each rate, and as fast as orders can be written without a relay.
pub(crate) async fn measure(
    rig: &mut Rig,
    number: u32,
    rates: &[u32],
    for_: Duration,
) -> Result<Vec<Figure>> {
    let mut rounds = Rounds::default();
    // It creates the publication, without which PostgreSQL decodes nothing.
    rig.use_relay("log", 1).await?;
    rig.warm_up().await?;
    let template = rig.place().await?;
    rig.everything_applied().await?;
    rig.stop_services(&SERVICES).await?;
    let writer = Writer { url: rig.database_url(Login::Orders), template, for_ };
    let bare = BarePublisher::connect(&rig.amqp_url()).await?;
    let mut database = rig.connect(Login::Orders).await?;
    for round in 1..=number {
        eprintln!("events as messages of the log, round {round} of {number}");
        for rate in rates {
            for (event, source) in SOURCES {
                let name = |figure: &str| format!("{rate}/s by pgbench: {figure}, {source}");
                let (before, in_outbox) = (orders(&mut database).await?, event == EventIn::Outbox);
                if in_outbox {
                    pass_messages(rig).await?;
                    rig.system.start_again("orders").await?;
                    rig.log_is_read().await?;
                }
                let processes = rig.processes().await;
                let cpu_before = CpuTimes::read(&processes)?;
                let mut milliseconds = match in_outbox {
                    true => through_outbox(&writer, *rate, &mut database).await?,
                    false => through_messages(rig, &writer, *rate, &bare).await?,
                };
                let spent = CpuTimes::read(&processes)?.since(&cpu_before);
                if in_outbox {
                    rig.stop_services(&["orders"]).await?;
                }
                bare.empty_queues().await?;
                backlog::cancel_orders(&mut database).await?;
                let written = orders(&mut database).await? - before;
                let published = milliseconds.len();
                ensure!(
                    i64::try_from(published)? == written,
                    "{published} events were published, of {written}"
                );
                milliseconds.sort_by(f64::total_cmp);
                for (part, quantile) in [(50, "p50"), (99, "p99")] {
                    let at = milliseconds.get(published * part / 100).copied().unwrap_or(f64::NAN);
                    rounds.add(name(&format!("commit → confirmed by the broker, {quantile}")), "ms", at);
                }
                let relay = if in_outbox { "orders" } else { GENERATOR };
                for (title, process) in [("the relay's process", relay), ("PostgreSQL", "PostgreSQL")] {
                    let spent = spent.get(process).copied().unwrap_or(f64::NAN) / written as f64;
                    rounds.add(name(&format!("processor time of an event, {title}")), "ms", spent);
                }
            }
        }
    }
    // Last, because nobody publishes these events.
    for _ in 1..=number {
        let mut without_event = 0.0;
        for (event, source) in [(EventIn::Nothing, "no event")].into_iter().chain(SOURCES) {
            let rate = writer.write(event, None).await?;
            rounds.add(format!("orders written by {WRITERS} connections, {source}"), "tx/s", rate);
            let log = log_of_an_order(&mut database, template, event).await?;
            match event {
                EventIn::Nothing => without_event = log,
                _ => rounds.add(
                    format!("log of an event when it is written, {source}"),
                    "B",
                    log - without_event,
                ),
            }
        }
    }
    bare.close().await?;
    rounds.into_figures()
}

/// Lets the order service's slot pass the messages, which its relay would read.
async fn pass_messages(rig: &Rig) -> Result<()> {
    testbed::eventually("the slot to be free", PUBLISHED_DEADLINE, async || {
        let pass =
            "select pg_replication_slot_advance(slot, pg_current_wal_lsn()) from orders.outbox_log_slot";
        rig.administer(pass).await.map(Some)
    })
    .await
}

async fn orders(database: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar("select count(*) from orders").fetch_one(database).await
}

/// Orders with their events, written by pgbench.
struct Writer {
    url: String,
    /// The order of which all are copies.
    template: Uuid,
    for_: Duration,
}

impl Writer {
    /// At a rate, or as fast as answers come. Returns the transactions a second.
    async fn write(&self, event: EventIn, rate: Option<u32>) -> Result<f64> {
        let order = format!("'{}'", self.template);
        let statement = backlog::statement(event).replace("$1", &order).replace("$2", "1");
        pgbench::run(&self.url, WRITERS, rate, &statement, self.for_).await
    }
}

/// The order service's relay publishes the events. Returns how many milliseconds after it was written each was marked.
async fn through_outbox(writer: &Writer, rate: u32, database: &mut PgConnection) -> Result<Vec<f64>> {
    let last: i64 = sqlx::query_scalar("select max(seq) from outbox").fetch_one(&mut *database).await?;
    writer.write(EventIn::Outbox, Some(rate)).await?;
    testbed::eventually("the events to be published", PUBLISHED_DEADLINE, async || {
        let pending = sqlx::query_scalar("select exists (select from outbox where published_at is null)");
        let pending: bool = pending.fetch_one(&mut *database).await?;
        Ok((!pending).then_some(()))
    })
    .await?;
    let took =
        "select (extract(epoch from published_at - created_at) * 1000)::float8 from outbox where seq > $1";
    Ok(sqlx::query_scalar(took).bind(last).fetch_all(database).await?)
}

/// A reader in this process publishes the events. Returns how many milliseconds after its commit each was confirmed.
async fn through_messages(rig: &Rig, writer: &Writer, rate: u32, bare: &BarePublisher) -> Result<Vec<f64>> {
    rig.administer("select pg_create_logical_replication_slot('load_tests', 'pgoutput')").await?;
    let mut client = open(&rig.database_url(Login::Admin)).await?;
    let writing = async {
        writer.write(EventIn::LogMessage, Some(rate)).await?;
        rig.administer("select pg_logical_emit_message(true, 'end', '')").await
    };
    let published = tokio::try_join!(publish_messages(&mut client, bare), writing);
    client.shutdown().await.context("failed to end the replication")?;
    testbed::eventually("the slot to be dropped", PUBLISHED_DEADLINE, async || {
        rig.administer("select pg_drop_replication_slot('load_tests')").await.map(Some)
    })
    .await?;
    Ok(published?.0)
}

async fn open(url: &str) -> Result<ReplicationClient> {
    let url = reqwest::Url::parse(url)?;
    let host = url.host_str().unwrap_or_default();
    let (password, database) = (url.password().unwrap_or_default(), url.path().trim_start_matches('/'));
    let config =
        ReplicationConfig::new(host, url.username(), password, database, "load_tests", "orders_outbox")
            .with_port(url.port().unwrap_or(5432));
    ReplicationClient::connect(config).await.context("failed to open the log")
}

/// Publishes the messages of the log up to the last: what has arrived together, and acknowledges it. Returns how many
/// milliseconds after its commit each was confirmed.
async fn publish_messages(client: &mut ReplicationClient, bare: &BarePublisher) -> Result<Vec<f64>> {
    let (mut took, mut committed_at, mut position) = (vec![], SystemTime::UNIX_EPOCH, None::<Lsn>);
    let (mut commits, mut messages, mut ended) = (vec![], vec![], false);
    while !ended {
        let next = tokio::time::timeout(PUBLISHED_DEADLINE, client.recv()).await;
        let mut next = Some(next.context("failed to read the log: it is silent")?);
        while let Some(event) = next {
            match event?.context("failed to read the log: it has ended")? {
                ReplicationEvent::Begin { commit_time_micros, .. } => {
                    let since = Duration::from_micros(commit_time_micros.try_into()?);
                    committed_at = SystemTime::UNIX_EPOCH + POSTGRES_EPOCH + since;
                }
                ReplicationEvent::Message { prefix, .. } if prefix == "end" => ended = true,
                ReplicationEvent::Message { prefix, content, .. } => {
                    let Some((id, _headers)) = prefix.split_at_checked(36) else {
                        bail!("no event: {prefix}")
                    };
                    commits.push(committed_at);
                    messages.push(Message { id: id.to_owned(), body: content.into() });
                }
                ReplicationEvent::Commit { end_lsn, .. } => position = Some(end_lsn),
                _ => {}
            }
            next = if messages.len() < IN_FLIGHT { client.recv().now_or_never() } else { None };
        }
        bare.publish(&messages).await?;
        messages.clear();
        let confirmed_at = SystemTime::now();
        for committed_at in commits.drain(..) {
            took.push(confirmed_at.duration_since(committed_at)?.as_secs_f64() * 1e3);
        }
        if let Some(position) = position {
            client.update_applied_lsn(position);
        }
    }
    Ok(took)
}

/// Measures the log that one order takes, in bytes.
async fn log_of_an_order(database: &mut PgConnection, template: Uuid, event: EventIn) -> Result<f64> {
    let statement = backlog::statement(event);
    let mut before = 0.0;
    for number in 0..FIRST_WRITES + WRITES {
        if number == FIRST_WRITES {
            before = log_position(database).await?;
        }
        let write = sqlx::query(AssertSqlSafe(statement.as_str())).bind(template).bind(1_i64);
        write.execute(&mut *database).await?;
    }
    Ok((log_position(database).await? - before) / f64::from(WRITES))
}
