//! The clock: how fast an entrant drains a backlog, how late events arrive at rising rates, and what an event costs.

use std::{
    future::ready,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, future::try_join_all, stream};
use lapin::{
    BasicProperties, Confirmation, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};
use serde::Serialize;
use testbed::{processor_time, vhost_on};
use tokio::time::{sleep, sleep_until, timeout};
use uuid::Uuid;

use crate::{
    arrivals::Arrivals,
    entrant::Entrant,
    outbox::{Event, Events, WANTED, aggregates},
    stage::{Servers, Stage},
};

/// What is measured in one round.
#[derive(Debug, Clone)]
pub struct Clock {
    /// The backlog that is drained.
    pub events: usize,
    /// Events per second, each tried for [`Clock::for_`] until the entrant does not hold one.
    pub rates: Vec<usize>,
    pub for_: Duration,
}

impl Clock {
    /// The clock whose figures count, and one that only shows that it works.
    pub fn new(smoke: bool) -> Self {
        let (events, highest, seconds) = if smoke { (200, 200, 1) } else { (10_000, 12_800, 5) };
        // Doublings, and a rate between them.
        let doublings = std::iter::successors(Some(100), |rate| Some(rate * 2));
        let rates = doublings.flat_map(|rate| [rate, rate * 3 / 2]).filter(|rate| *rate != 150);
        let rates = rates.take_while(|rate| *rate <= highest).collect();
        Self { events, rates, for_: Duration::from_secs(seconds) }
    }
}

/// The figures of one entrant.
#[derive(Debug, Serialize)]
pub struct Timing {
    pub entrant: String,
    /// Its settings, in a sentence.
    pub settings: String,
    pub rounds: Vec<Round>,
}

/// The figures of one round.
#[derive(Debug, Serialize)]
pub struct Round {
    /// From the first arrival of a backlog's event to the last.
    pub drained_per_second: f64,
    /// Milliseconds of processor time for an event of the backlog.
    pub relay_cpu: f64,
    pub postgres_cpu: f64,
    pub rabbitmq_cpu: f64,
    /// With [`MANY`] aggregates, with ten and with one.
    pub brackets: Vec<Bracket>,
}

/// What an entrant holds with so many aggregates.
#[derive(Debug, Serialize)]
pub struct Bracket {
    pub aggregates: usize,
    pub rates: Vec<Rate>,
    /// The highest rate that it held, and the lowest that it did not. Without the second, the first is a lower bound.
    pub held: Option<usize>,
    pub failed: Option<usize>,
}

/// How late events arrived at one rate.
#[derive(Debug, Serialize)]
pub struct Rate {
    pub per_second: usize,
    /// Milliseconds from when an event's commit was *due* until its arrival: quantiles of the latencies below. A write that begins
    /// late, because those before it took long, is part of them.
    pub p50: f64,
    pub p99: f64,
    /// Whether `p99` is below [`LATE`].
    pub held: bool,
    /// Milliseconds that a write takes, with its commit: the median. A trigger of the entrant is part of it.
    pub write: f64,
    /// How late writes began, in milliseconds: the 99th percentile.
    pub lateness: f64,
    /// Every latency, in milliseconds, in the order of the commits. NaN (null in JSON): it has not arrived.
    pub latencies: Vec<f64>,
}

/// An event that arrives later is late, and the rate is not held.
pub const LATE: Duration = Duration::from_secs(1);
/// A rate of less than fifty a second is a failure of another kind.
const DRAIN_DEADLINE: Duration = Duration::from_secs(240);
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);
/// The writer commits once in this time, so that it is not what is measured.
const TICK: Duration = Duration::from_millis(10);
const TICKS_A_SECOND: usize = 100;
const CHUNK: usize = 500;
/// So many aggregates that their order costs little. With few of them it costs the rate: the next event of an aggregate is sent
/// when the one before is confirmed.
pub const MANY: usize = 1_000;
const ENTRANT_DEADLINE: Duration = Duration::from_secs(1_200);
/// How many messages a connection of the bare publisher has in flight.
const IN_FLIGHT: usize = 500;

/// Measures one round of an entrant. Nothing else may work on the machine.
pub async fn measure(servers: &Servers, entrant: &Entrant, clock: &Clock) -> Result<Round> {
    let mut stage = Stage::set_up(servers, entrant, "clock").await?;
    let measured = timeout(ENTRANT_DEADLINE, time(&mut stage, clock)).await;
    stage.tear_down().await?;
    measured?
}

/// The limit of what is measured: messages per second from a bare publisher into the judge's queue, with so many connections, each
/// with `IN_FLIGHT` unconfirmed messages. They are persistent, mandatory and as large as the events.
pub async fn bare_publisher(servers: &Servers, clock: &Clock, connections: usize) -> Result<f64> {
    const EXCHANGE: &str = "judge.events";
    let broker = servers.rabbitmq.first();
    let vhost = vhost_on(broker.base_url(), broker.api_url()).await?;
    let arrivals = Arrivals::start(&vhost.url(), EXCHANGE, None).await?;
    let mut events = Events::default();
    let events = events.wanted(&aggregates(MANY), clock.events);
    let publish = async |part: &[Event]| -> Result<()> {
        let connection = Connection::connect(&vhost.url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let confirms = stream::iter(part).map(async |event| {
            let properties =
                BasicProperties::default().with_delivery_mode(2).with_message_id(event.id.to_string().into());
            let options = BasicPublishOptions { mandatory: true, ..Default::default() };
            let body = event.payload.as_bytes();
            channel.basic_publish(EXCHANGE.into(), WANTED.into(), options, body, properties).await?.await
        });
        let confirms = confirms.buffered(IN_FLIGHT);
        let all_are_confirmed = confirms
            .try_fold(true, |all, confirm| ready(Ok(all && matches!(confirm, Confirmation::Ack(None)))))
            .await?;
        ensure!(all_are_confirmed, "the bare publisher's messages were refused");
        connection.close(200, "done".into()).await.context("failed to close the bare publisher's connection")
    };
    let parts = events.chunks(clock.events.div_ceil(connections)).map(publish);
    timeout(DRAIN_DEADLINE, try_join_all(parts)).await??;
    let all_have_arrived = async {
        while arrivals.record().first.len() < clock.events {
            sleep(DRAIN_INTERVAL).await;
        }
    };
    timeout(DRAIN_DEADLINE, all_have_arrived).await.context("messages of the bare publisher are missing")?;
    Ok(rate_of(&arrivals, clock.events))
}

async fn time(stage: &mut Stage<'_>, clock: &Clock) -> Result<Round> {
    // It has started and is frozen while the backlog is written: its start is not part of the figures.
    stage.start(1).await?;
    stage.freeze(1)?;
    let mut writer = Writer::new(MANY);
    let mut left = clock.events;
    while left > 0 {
        let count = left.min(CHUNK);
        writer.write(stage, count).await?;
        left -= count;
    }
    stage.outbox.execute("analyze").await?;
    let servers = stage.servers;
    let (postgres, rabbitmq) = (servers.postgres.pid().await, servers.rabbitmq.first().pid().await);
    let spent =
        |pid: Option<u32>| milliseconds(pid.and_then(|pid| processor_time(pid).ok()).unwrap_or_default());
    let relay = stage.pid(1);
    let cpu = || [relay, postgres, rabbitmq].map(spent);
    let before = cpu();
    stage.thaw(1)?;
    // Its table is not read meanwhile: that would take time from it.
    let began = Instant::now();
    while stage.arrivals.record().first.len() < clock.events {
        ensure!(began.elapsed() < DRAIN_DEADLINE, "failed to drain the backlog within {DRAIN_DEADLINE:?}");
        sleep(DRAIN_INTERVAL).await;
    }
    let drained_per_second = rate_of(&stage.arrivals, clock.events);
    ensure!(stage.settle(DRAIN_DEADLINE).await?, "the backlog was published and not marked");
    let after = cpu();
    let each = |part: usize| (after[part] - before[part]) / clock.events as f64;
    let mut brackets = vec![];
    for aggregates in [MANY, 10, 1] {
        let (mut writer, mut rates, mut failed) = (Writer::new(aggregates), vec![], None);
        for per_second in &clock.rates {
            let Some(rate) = hold(stage, &mut writer, *per_second, clock.for_).await? else { break };
            failed = (!rate.held).then_some(*per_second);
            rates.push(rate);
            if failed.is_some() {
                // What is left of it does not belong to the next rate.
                stage.settle(DRAIN_DEADLINE).await?;
                break;
            }
        }
        let held = rates.iter().filter(|rate| rate.held).map(|rate| rate.per_second).max();
        brackets.push(Bracket { aggregates, rates, held, failed });
    }
    Ok(Round {
        drained_per_second,
        relay_cpu: each(0),
        postgres_cpu: each(1),
        rabbitmq_cpu: each(2),
        brackets,
    })
}

/// Messages per second, from the first arrival to the last.
fn rate_of(arrivals: &Arrivals, messages: usize) -> f64 {
    let record = arrivals.record();
    let times = record.all.iter().map(|arrival| arrival.at);
    let took = times.clone().max().zip(times.min()).map(|(last, first)| last.duration_since(first));
    messages as f64 / took.unwrap_or_default().as_secs_f64()
}

/// Writes events of so many aggregates, one of each in turn: also from one write to the next, so that no aggregate gets more
/// than its share of a second.
struct Writer {
    aggregates: Vec<Uuid>,
    next: usize,
}

impl Writer {
    fn new(count: usize) -> Self {
        Self { aggregates: aggregates(count), next: 0 }
    }

    async fn write(&mut self, stage: &mut Stage<'_>, count: usize) -> Result<Duration> {
        let events = stage.events.wanted(&self.turn(count), count);
        stage.outbox.write_durably(events).await
    }

    /// The aggregates of the next events.
    fn turn(&mut self, count: usize) -> Vec<Uuid> {
        let first = self.next;
        self.next = (first + count) % self.aggregates.len();
        self.aggregates.iter().cycle().skip(first).take(count).copied().collect()
    }
}

/// Writes events at a constant rate. `None`: the judge cannot write so fast, and nothing is known about the entrant.
async fn hold(
    stage: &mut Stage<'_>,
    writer: &mut Writer,
    per_second: usize,
    for_: Duration,
) -> Result<Option<Rate>> {
    let (first, began) = (stage.outbox.committed.len(), Instant::now());
    let ticks = u32::try_from(for_.as_millis() / TICK.as_millis())?.max(1);
    let (mut due, mut writes, mut lateness) = (vec![], vec![], vec![]);
    for tick in 1..=ticks {
        let at = began + TICK * tick;
        let until_now = per_second * usize::try_from(tick)? / TICKS_A_SECOND;
        sleep_until(at.into()).await;
        if until_now > due.len() {
            lateness.push(milliseconds(at.elapsed()));
            let took = writer.write(stage, until_now - due.len()).await?;
            writes.push(milliseconds(took));
            due.resize(until_now, at);
        }
    }
    // The entrant can be judged by a rate that was written, and by none that was not.
    if began.elapsed() > for_ + LATE / 2 {
        return Ok(None);
    }
    stage.settle(LATE).await?;
    let latencies: Vec<_> = {
        let record = stage.arrivals.record();
        let committed = stage.outbox.committed.iter().skip(first).zip(due);
        committed
            .map(|((event, _), due)| {
                let at = record.first.get(&event.id).map(|position| record.all[*position].at);
                at.map_or(f64::NAN, |at| milliseconds(at.saturating_duration_since(due)))
            })
            .collect()
    };
    let (p50, p99) = (quantile(&latencies, 50), quantile(&latencies, 99));
    // NaN is not less than anything.
    let held = p99 < milliseconds(LATE);
    let (write, lateness) = (quantile(&writes, 50), quantile(&lateness, 99));
    Ok(Some(Rate { per_second, p50, p99, held, write, lateness, latencies }))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A quantile. NaN is larger than all numbers, and the quantile of no values.
fn quantile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(position).copied().unwrap_or(f64::NAN)
}

#[test]
fn small_writes_give_no_aggregate_more_than_its_share() {
    let mut writer = Writer::new(10);
    let mut written: Vec<_> = (0..5).flat_map(|_| writer.turn(4)).collect();
    written.sort_unstable();
    assert!(written.chunk_by(|one, next| one == next).all(|of_one| of_one.len() == 2), "{written:?}");
}
