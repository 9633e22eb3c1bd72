//! What the two kinds of relay cost and take beside an order's way: at rest, after an outage of the broker, when the process that
//! holds the slot dies or freezes, and with a backlog.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use sqlx::{Connection as _, PgConnection};

use crate::{
    backlog,
    bare_publisher::BarePublisher,
    relay::{arrived, drain},
    report::Rounds,
    rig::{GENERATOR, RELAYS, Rig, SERVICES, Setup, log_position},
};

/// Long enough for some processor time of a process that does nothing.
const REST: Duration = Duration::from_secs(30);

/// Orders a second while the broker is away.
const OUTAGE_RATE: u32 = 100;

/// A frozen process keeps its slot for ten seconds.
const TAKE_OVER_DEADLINE: Duration = Duration::from_secs(60);

pub(crate) const NOTES: [&str; 3] = [
    "outage: counted from the start of the broker's process, and each has a consumer for each queue",
    "take-over: of two order services one holds the slot; the event is written by the other when the first has just been killed, \
     or frozen at rest (one that freezes in the middle of a step also keeps its lanes, for 30 s)",
    "backlog: consumers are stopped, and the log relay reads it from the log; processor time with the start of the process",
];

/// Measures both kinds in so many rounds, and the outage once.
pub(crate) async fn measure(
    rig: &mut Rig,
    setup: &Setup,
    number: u32,
    outage: Duration,
    rounds: &mut Rounds,
) -> Result<()> {
    for round in 1..=number {
        for relay in RELAYS {
            eprintln!("at rest, and without a broker, {relay}, round {round} of {number}");
            rig.use_relay(relay, 1).await?;
            rig.warm_up().await?;
            for (process, milliseconds) in at_rest(rig, setup.pause(REST)).await? {
                rounds.add(format!("at rest: processor time, {process}, {relay}"), "ms/s", milliseconds);
            }
            if round == 1 {
                let [first, all] = without_broker(rig, outage).await?;
                rounds.add(format!("outage of {outage:?}: first event published after, {relay}"), "s", first);
                rounds.add(format!("outage of {outage:?}: all events published after, {relay}"), "s", all);
            }
            eprintln!("take-over, {relay}, round {round} of {number}");
            rig.use_relay(relay, 2).await?;
            let [killed, frozen] = take_over(rig, relay).await?;
            rounds.add(format!("take-over: event published after a kill, {relay}"), "s", killed);
            rounds.add(format!("take-over: event published after a freeze, {relay}"), "s", frozen);
        }
    }
    drains(rig, setup, number, rounds).await
}

/// Measures the processor time of each process a second, in milliseconds, while nothing happens.
async fn at_rest(rig: &Rig, for_: Duration) -> Result<BTreeMap<String, f64>> {
    let before = rig.processor_times().await?;
    tokio::time::sleep(for_).await;
    let mut spent = rig.milliseconds_since(&before).await?;
    spent.remove(GENERATOR);
    spent.values_mut().for_each(|spent| *spent /= for_.as_secs_f64());
    Ok(spent)
}

/// Stops the broker while orders are placed. Returns the seconds from its start until their first event is published, and all.
async fn without_broker(rig: &Rig, outage: Duration) -> Result<[f64; 2]> {
    let mut auditor = PgConnection::connect(&rig.urls.of("auditor")).await?;
    rig.rabbitmq.stop().await?;
    rig.load(OUTAGE_RATE, outage).await?;
    let back: f64 = sqlx::query_scalar("select extract(epoch from clock_timestamp())::float8")
        .fetch_one(&mut auditor)
        .await?;
    rig.rabbitmq.start().await?;
    rig.everything_applied().await?;
    let published = sqlx::query_as(
        "select extract(epoch from min(published_at))::float8 - $1, extract(epoch from max(published_at))::float8 - $1
         from orders.outbox where created_at < to_timestamp($1) and published_at >= to_timestamp($1)",
    );
    let (first, all): (f64, f64) = published.bind(back).fetch_one(&mut auditor).await?;
    Ok([first, all])
}

/// Returns how many seconds an event waits when the relay that would have published it has been killed, and when it is frozen.
async fn take_over(rig: &Rig, relay: &str) -> Result<[f64; 2]> {
    let [first, second] = ["orders", "orders-2"];
    // Their first connections are not a part of the wait.
    for process in [first, second] {
        waits(rig, process).await?;
    }
    rig.stop_services(&[second]).await?;
    if relay == "log" {
        rig.log_is_read().await?;
    }
    rig.start_again(&[second]).await?;
    rig.system.kill(first).await?;
    let killed = waits(rig, second).await?;
    rig.start_again(&[first]).await?;
    rig.system.pause(second)?;
    let frozen = waits(rig, first).await;
    rig.system.resume(second)?;
    Ok([killed, frozen?])
}

/// Places an order at this process. Returns how many seconds its event waits.
async fn waits(rig: &Rig, process: &str) -> Result<f64> {
    let mut auditor = PgConnection::connect(&rig.urls.of("auditor")).await?;
    let order = rig.place_at(process).await?;
    testbed::eventually("the event to be published", TAKE_OVER_DEADLINE, async || {
        let waited = sqlx::query_scalar(
            "select extract(epoch from published_at - created_at)::float8 from orders.outbox
             where aggregate_id = $1 and aggregate_version = 1 and published_at is not null",
        );
        Ok(waited.bind(order).fetch_optional(&mut auditor).await?)
    })
    .await
}

/// Lets each kind of relay publish a backlog, in turns.
async fn drains(rig: &mut Rig, setup: &Setup, number: u32, rounds: &mut Rounds) -> Result<()> {
    let events = if setup.smoke { 3_000 } else { 50_000 };
    let template = rig.place().await?;
    rig.everything_applied().await?;
    let bare = BarePublisher::connect(&rig.rabbitmq.url()).await?;
    let mut database = PgConnection::connect(&rig.urls.of("orders")).await?;
    for round in 1..=number {
        for relay in RELAYS {
            eprintln!("a backlog of {events} events, {relay}, round {round} of {number}");
            rig.use_relay(relay, 1).await?;
            if relay == "log" {
                rig.log_is_read().await?;
            }
            rig.stop_services(&SERVICES).await?;
            backlog::fill(&mut database, template, events).await?;
            bare.empty_queues().await?;
            let log_before = log_position(&mut database).await?;
            let before = rig.processor_times().await?;
            let (per_second, _) = drain(rig, &mut database, events).await?;
            let spent = rig.milliseconds_since(&before).await?;
            let log = log_position(&mut database).await? - log_before;
            rounds.add(format!("backlog: published, {relay}"), "events/s", per_second);
            for (title, process) in [("the relay's process", "orders"), ("PostgreSQL", "PostgreSQL")] {
                let spent = spent.get(process).copied().unwrap_or(f64::NAN) * 1e3 / f64::from(events);
                rounds.add(format!("backlog: processor time of an event, {title}, {relay}"), "µs", spent);
            }
            rounds.add(format!("backlog: log of an event's mark, {relay}"), "B", log / f64::from(events));
            rig.stop_services(&["orders"]).await?;
            arrived(&bare, events).await?;
            backlog::cancel_orders(&mut database).await?;
        }
    }
    bare.close().await
}
