//! What happens to PostgreSQL and to the sessions of its clients.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use fault_proxy::{Direction, Effect, Fault as ProxyFault};
use load_tests::Saturation;
use serde_json::json;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::at_end::{nothing_is_set_aside, orders_were_refused};
use super::broker::PENDING;
use super::client::RetriedOrder;
use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use super::felt::{
    Felt,
    Figure::{Metric, Refused, Sql},
    Limit::{Count, Seconds},
};
use super::report::Refusals;
use crate::fault::{Fault, REFUSED_MARKS};
use crate::http;
use crate::lab::CONDITION_DEADLINE;
use crate::own_system::OwnSystem;
use crate::part::{BROKER, DATABASE};

pub(super) static DRILLS: [Drill; 11] = [
    Drill {
        name: "database-kill",
        teaches: "A 201 is sent after the commit, never before: what was acknowledged survives a crash of the database.",
        question: "Which orders may a client rely on: those with a 201, those with a 503, those without an answer?",
        claim: "While PostgreSQL is down no order is accepted, and refused orders have no effect anywhere. Orders that \
                were accepted before and after keep their promises.",
        outage: Duration::from_secs(20),
        faults: &[Fault::Kill(DATABASE)],
        felt: &[Felt::NoneAccepted],
        ..REFUSED
    },
    Drill {
        name: "database-freeze",
        teaches: "Every wait has a deadline. A request that waits forever holds a connection that others need.",
        question: "PostgreSQL is stopped with SIGSTOP. What do clients see, and when?",
        claim: "While PostgreSQL is frozen, orders are refused after a deadline and not left waiting. It recovers by \
                itself, and what was acknowledged is there.",
        outage: Duration::from_secs(15),
        faults: &[Fault::Freeze(DATABASE)],
        felt: &[Felt::Lasts],
        ..REFUSED
    },
    Drill {
        name: "servers-killed",
        teaches: "Servers come back in any order. Each service opens its connections again by itself, and none waits for another service.",
        question: "PostgreSQL and RabbitMQ are killed at the same moment. What is left of an order that was just acknowledged?",
        claim: "When the processes of both servers die at once, what was acknowledged survives. It is published and applied \
                once after they run again.",
        faults: &[Fault::Kill(BROKER), Fault::Kill(DATABASE)],
        felt: &[Felt::NoneAccepted],
        ..REFUSED
    },
    Drill {
        name: "sessions-terminated",
        teaches: "Connections of a pool end at any time. Each use must expect it.",
        question: "Every session of every service is terminated, again and again. Who needs a restart?",
        claim: "Terminated sessions are opened again by themselves. What was acknowledged is there, once.",
        outage: Duration::from_secs(2),
        faults: &[Fault::TerminateSessions],
        times: 5,
        felt: &[Felt::Lasts],
        refusals: Refusals::AreExpected,
        ..ROW
    },
    Drill {
        name: "commit-answer-lost",
        teaches: "A connection that breaks during a commit leaves no way to know its outcome. An idempotency key makes \
                  the retry safe.",
        question: "The commit happened, and its answer was lost. The client gets an error and tries again: one order \
                   or two?",
        claim: "A client that retries with its Idempotency-Key gets the first answer, and there is one order for each \
                key.",
        outage: Duration::ZERO,
        system: Subject::Proxied,
        steps: Some(|run| Box::pin(lose_answers(run))),
        ..ROW
    },
    Drill {
        name: "database-unreachable-for-one",
        teaches: "A consumer without its database must not use up the attempts of its messages: a temporary failure \
                  sets nothing aside.",
        question: "Inventory's database is away for ten seconds, and its messages keep coming. Which of them are lost?",
        claim: "While inventory's database is away, nothing is set aside and no attempt is used up. Inventory catches \
                up by itself.",
        system: Subject::Proxied,
        faults: &[Fault::network(
            "cut all connections of inventory to PostgreSQL, and refuse new ones",
            &["inventory-database"],
            Effect::Cut,
            Direction::Both,
        )],
        felt: &[
            Felt::Grows(
                Count(0.0),
                Refused("inventory-database"),
                "{} connections of inventory were refused",
            ),
            Felt::Accepted,
        ],
        at_end: &[nothing_is_set_aside],
        ..ROW
    },
    Drill {
        name: "pool-exhausted",
        teaches: "A bounded pool with a deadline turns a stuck table into a quick 503 instead of a queue without end.",
        question: "A careless migration locks the table of orders for some seconds. Does the service still answer \
                   anything?",
        claim: "While every connection waits for a lock, further orders are refused within seconds, the service \
                answers its other pages, and it recovers by itself.",
        outage: Duration::from_secs(8),
        faults: &[Fault::Session {
            what: "locked the table orders.orders",
            sql: "begin; lock table orders.orders in access exclusive mode; select pg_sleep({}); commit",
        }],
        felt: &[Felt::Grows(
            Count(0.0),
            Metric("orders", "http_request_seconds_count{route=\"POST /orders\",status=\"503\"}"),
            "{} orders were refused with 503; the metrics page answers",
        )],
        refusals: Refusals::AreExpected,
        ..ROW
    },
    Drill {
        name: "old-snapshot",
        teaches: "A forgotten transaction holds back vacuum for the whole database: dead index entries pile up where \
                  the relay reads.",
        question: "A report runs for a long time in one transaction. Why could the relay become slower and slower?",
        claim: "While an old snapshot keeps every dead row, orders are accepted and published without a backlog.",
        outage: Duration::from_secs(15),
        faults: &[Fault::Session {
            what: "a transaction holds a snapshot",
            sql: "begin isolation level repeatable read; select count(*) from orders.outbox; select pg_sleep({}); commit",
        }],
        felt: &[
            Felt::More(
                Count(500.0),
                Sql("select coalesce(max(age(backend_xmin)), 0)::text from pg_stat_activity
                     where query like '%pg_sleep%' and pid <> pg_backend_pid()"),
                "the snapshot is {} transactions old",
            ),
            Felt::Accepted,
            Felt::AtMost(
                Seconds(2.0),
                Metric("orders", "outbox_pending"),
                "{} events were waiting at the end of the snapshot",
            ),
        ],
        ..ROW
    },
    Drill {
        name: "marks-fail",
        teaches: "What cannot be recorded as done will be done again. Before the next attempt, try whether it can be \
                  recorded.",
        question: "RabbitMQ confirms, and the database refuses every mark \"published\". How often is each event sent?",
        claim: "While no event can be marked as published, orders are accepted, and the relays send at most two \
                seconds' worth of copies. Then everything arrives once.",
        system: Subject::Own(OwnSystem::default),
        faults: &[REFUSED_MARKS],
        felt: &[PENDING, Felt::Accepted],
        at_end: &[|run, ended| {
            let (copies, most) = (ended.duplicates_dropped.inventory, u64::from(2 * run.rate));
            run.promised(
                format!("inventory has dropped {} copies, of at most {most}", copies.unwrap_or_default()),
                copies.is_some_and(|copies| copies <= most),
            );
        }],
        ..ROW
    },
    Drill {
        name: "commits-hang",
        teaches: "A database that answers reads may still accept no write. Health must ask for what the service \
                  needs.",
        question: "The only synchronous standby vanishes: reads are answered, and no commit returns. What do clients \
                   and health say?",
        claim: "While commits wait for a standby, no order is acknowledged, and `/readyz` answers 503 after the first. \
                Then everything ends, and no promise is broken.",
        outage: Duration::from_secs(8),
        system: Subject::Own(OwnSystem::default),
        steps: Some(|run| Box::pin(hang_commits(run))),
        ..REFUSED
    },
    Drill {
        name: "commit-contention",
        teaches: "A NOTIFY in the order's own transaction takes one lock for the whole server until the commit is on \
                  disk.",
        question: "64 clients place orders at the same time. How many of their commits wait for each other?",
        claim: "Orders that are placed at the same time do not queue up for each other's commits.",
        outage: LOAD_TIME,
        steps: Some(|run| Box::pin(sample_commits(run))),
        refusals: Refusals::AreExpected,
        ..ROW
    },
];

const ROW: Drill = Drill { group: Group::Database, ..Drill::ROW };

/// Without the database no order is accepted.
const REFUSED: Drill = Drill { refusals: Refusals::AreExpected, at_end: &[orders_were_refused], ..ROW };

/// How many clients lose the answer to their commit, and how long each waits before it tries again.
const ORDERS: usize = 20;
const ATTEMPT: Duration = Duration::from_secs(5);

/// More than the service has connections to its database.
const CLIENTS: u32 = 64;
const LOAD_TIME: Duration = Duration::from_secs(8);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// Counts the sessions that wait for the lock that PostgreSQL takes for a commit that notifies. There is one such lock
/// for the whole server, so it belongs to no database and to no object.
const QUEUE: &str = "select count(*)::text from pg_locks
    where not granted and locktype = 'object' and database = 0 and classid = 'pg_database'::regclass and objid = 0";

/// The sessions in which the services notify each other use the lock too, seldom: a few of them can meet.
const LONGEST_ALLOWED_QUEUE: u32 = 3;
/// With containers each sample starts a client, on a busy machine.
const MIN_SAMPLES: u32 = 3;
/// The faster the disk, the shorter a queue lasts, and the fewer samples show it. One alone proves nothing.
const MIN_QUEUES: u32 = 2;

/// The key is a parameter of the one statement that writes an order. The proxy resets the connection once it has
/// forwarded that: the server commits, and its answer goes nowhere.
async fn lose_answers(run: &DrillRun<'_>) -> Result<()> {
    let (route, proxies) = ("orders-database", run.system.proxies()?);
    let customer = Uuid::new_v4();
    let resets_before = proxies.stats(route).await?.resets;
    let (mut errors, mut replayed) = (0, 0);
    run.phase(
        "outage",
        format!("{ORDERS} clients lose the answer to their commit, and retry with their key"),
    );
    for _ in 0..ORDERS {
        let order = RetriedOrder::new(run, customer);
        let effect = Effect::ResetOnPattern { pattern: order.key.clone().into_bytes(), forward: true };
        let fault = ProxyFault::new(effect, Direction::TowardUpstream, Duration::from_secs(30)).times(1);
        proxies.set(route, fault).await?;
        errors += usize::from(order.place(ATTEMPT).await?.is_none());
        let answer = order.place_until(CONDITION_DEADLINE, ATTEMPT).await?;
        let answer = answer.context("an order was not answered")?;
        replayed += usize::from(answer.is_repeated);
        proxies.clear(route).await?;
    }
    let resets = proxies.stats(route).await?.resets - resets_before;
    run.injected(
        format!("{resets} connections were reset after the commit was sent; clients saw {errors} errors"),
        resets >= ORDERS as u64 && errors >= ORDERS,
    );
    run.injected(format!("{replayed} retries got the answer of an order that existed already"), replayed > 0);
    let exist = run.orders_of(customer).await?;
    run.promised(format!("{exist} orders exist for {ORDERS} keys"), exist == ORDERS);
    Ok(())
}

async fn hang_commits(run: &DrillRun<'_>) -> Result<()> {
    run.stop_load().await?;
    run.settled().await?;
    let hanging = run.inject(&Fault::HangCommits).await?;
    let from = SystemTime::now();
    let order = json!({ "customerId": Uuid::new_v4(), "lines": [{ "sku": "TEA-001", "quantity": 1 }] });
    let order = http::place(http::order_request(run.system.orders_url(), &order)?);
    // Under load all connections would be in use, and health would notice that.
    let unready = run.until_promised("/readyz answers 503 while one commit waits", async || {
        Ok(run.system.health("orders").await?.0 == 503)
    });
    let (order, ()) = tokio::join!(order, unready);
    run.start_load()?;
    sleep(run.outage).await;
    let acknowledged = run.accepted_since(from) + u64::from(order.is_ok());
    run.may_exist(1);
    run.repair(hanging).await?;
    run.promised(format!("{acknowledged} orders were acknowledged meanwhile"), acknowledged == 0);
    Ok(())
}

/// Sends as many orders as the service can accept, and samples which sessions wait for each other meanwhile.
async fn sample_commits(run: &DrillRun<'_>) -> Result<()> {
    run.stop_load().await?;
    run.phase("saturate", format!("{CLIENTS} clients, each of which sends its next order at once"));
    let url = run.system.orders_url().to_owned();
    let saturation = Saturation { url, connections: CLIENTS, for_: LOAD_TIME, seed: run.seed };
    let (mut samples, mut queues, mut longest) = (0_u32, 0_u32, 0_u32);
    let sampling = async {
        let end = Instant::now() + LOAD_TIME;
        while Instant::now() < end {
            let queue: u32 = run.system.number(QUEUE).await?;
            samples += 1;
            queues += u32::from(queue > LONGEST_ALLOWED_QUEUE);
            longest = longest.max(queue);
            sleep(SAMPLE_INTERVAL).await;
        }
        Ok(())
    };
    let load = load_tests::saturate(saturation, run.ledger.recorder());
    let (summary, ()) = tokio::try_join!(load, sampling)?;
    let (accepted, rate) = (summary.accepted, summary.accepted_per_second());
    run.use_summary(summary);
    run.promised(format!("{accepted} orders accepted, {rate:.0} per second"), accepted > u64::from(CLIENTS));
    run.injected(
        format!("a queue for the lock of notifying commits in {queues} of {samples} samples; the longest: {longest}"),
        samples >= MIN_SAMPLES,
    );
    run.promised(
        format!("at most {LONGEST_ALLOWED_QUEUE} commits wait for each other, but for {queues} of {samples} samples"),
        queues < MIN_QUEUES,
    );
    Ok(())
}
