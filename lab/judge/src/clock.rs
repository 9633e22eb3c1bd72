//! The clock: how fast an entrant drains a backlog, how late events arrive at rising rates, and what an event costs.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use testbed::processor_time;
use tokio::time::{sleep_until, timeout};
use uuid::Uuid;

use crate::{
    entrant::Entrant,
    outbox::aggregates,
    stage::{Servers, Stage},
};

/// What is measured.
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
        let (events, highest, seconds) = if smoke { (200, 200, 1) } else { (10_000, 12_800, 10) };
        let rates = std::iter::successors(Some(100), |rate| Some(rate * 2));
        let rates = rates.take_while(|rate| *rate <= highest).collect();
        Self { events, rates, for_: Duration::from_secs(seconds) }
    }
}

/// The figures of one entrant.
#[derive(Debug, Serialize)]
pub struct Timing {
    pub entrant: String,
    pub about: String,
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
    /// Milliseconds from the answer to the commit until the arrival: quantiles of the latencies below.
    pub p50: f64,
    pub p99: f64,
    /// Whether `p99` is below [`LATE`].
    pub held: bool,
    /// Every latency, in milliseconds, in the order of the commits. NaN (null in JSON): it has not arrived.
    pub latencies: Vec<f64>,
}

/// An event that arrives later is late, and the rate is not held.
pub const LATE: Duration = Duration::from_secs(1);
/// A rate of less than fifty a second is a failure of another kind.
const DRAIN_DEADLINE: Duration = Duration::from_secs(240);
/// The writer commits once in this time, so that it is not what is measured.
const TICK: Duration = Duration::from_millis(10);
const TICKS_A_SECOND: usize = 100;
const CHUNK: usize = 500;
/// So many aggregates that their order costs little. With few of them it costs the rate: the next event of an aggregate is sent
/// when the one before is confirmed.
pub const MANY: usize = 1_000;
const ENTRANT_DEADLINE: Duration = Duration::from_secs(1_200);

/// Measures an entrant. Nothing else may work on the machine.
pub async fn measure(servers: &Servers, entrant: &Entrant, clock: &Clock) -> Result<Timing> {
    let mut stage = Stage::set_up(servers, entrant, "clock").await?;
    let measured = timeout(ENTRANT_DEADLINE, time(&mut stage, entrant, clock)).await;
    stage.tear_down().await?;
    measured?
}

async fn time(stage: &mut Stage<'_>, entrant: &Entrant, clock: &Clock) -> Result<Timing> {
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
    let milliseconds = |pid: Option<u32>| {
        let spent = pid.and_then(|pid| processor_time(pid).ok());
        spent.unwrap_or_default().as_secs_f64() * 1e3
    };
    let cpu = |relay| [relay, postgres, rabbitmq].map(milliseconds);
    let before = cpu(None);
    stage.start(1).await?;
    ensure!(stage.settle(DRAIN_DEADLINE).await?, "failed to drain the backlog within {DRAIN_DEADLINE:?}");
    let after = cpu(stage.pid(1));
    let each = |part: usize| (after[part] - before[part]) / clock.events as f64;
    let drained_per_second = {
        let record = stage.arrivals.record();
        let times = record.all.iter().map(|arrival| arrival.at);
        let took = times.clone().max().zip(times.min()).map(|(last, first)| last.duration_since(first));
        clock.events as f64 / took.unwrap_or_default().as_secs_f64()
    };
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
    Ok(Timing {
        entrant: entrant.name.clone(),
        about: entrant.about.clone(),
        drained_per_second,
        relay_cpu: each(0),
        postgres_cpu: each(1),
        rabbitmq_cpu: each(2),
        brackets,
    })
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

    async fn write(&mut self, stage: &mut Stage<'_>, count: usize) -> Result<()> {
        stage.write(&self.turn(count), count).await.map(drop)
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
    let mut written = 0;
    for tick in 1..=ticks {
        let due = per_second * usize::try_from(tick)? / TICKS_A_SECOND;
        sleep_until((began + TICK * tick).into()).await;
        if due > written {
            writer.write(stage, due - written).await?;
            written = due;
        }
    }
    // The entrant can be judged by a rate that was written, and by none that was not.
    if began.elapsed() > for_ + LATE / 2 {
        return Ok(None);
    }
    stage.settle(LATE).await?;
    let latencies: Vec<_> = {
        let record = stage.arrivals.record();
        let committed = stage.outbox.committed.iter().skip(first);
        committed
            .map(|(event, committed)| {
                let at = record.first.get(&event.id).map(|position| record.all[*position].at);
                at.map_or(f64::NAN, |at| at.saturating_duration_since(*committed).as_secs_f64() * 1e3)
            })
            .collect()
    };
    let mut sorted = latencies.clone();
    sorted.sort_by(f64::total_cmp);
    // NaN is sorted behind all numbers.
    let quantile = |percent: usize| sorted.get((sorted.len() * percent / 100).min(sorted.len() - 1)).copied();
    let (p50, p99) = (quantile(50).unwrap_or(f64::NAN), quantile(99).unwrap_or(f64::NAN));
    // NaN is not less than anything.
    let held = p99 < LATE.as_secs_f64() * 1e3;
    Ok(Some(Rate { per_second, p50, p99, held, latencies }))
}

#[test]
fn small_writes_give_no_aggregate_more_than_its_share() {
    let mut writer = Writer::new(10);
    let mut written: Vec<_> = (0..5).flat_map(|_| writer.turn(4)).collect();
    written.sort_unstable();
    assert!(written.chunk_by(|one, next| one == next).all(|of_one| of_one.len() == 2), "{written:?}");
}
