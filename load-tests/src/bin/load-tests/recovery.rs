//! Recovery: how an outage's backlog drains while orders keep coming, second by second.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use load_tests::{Answer, Load, Outcome, Summary};
use sqlx::{PgConnection, Row as _};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{
    orders_sql,
    report::{Curve, Figure, Report},
    rig::{Login, Rig},
    setup::Setup,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// How many seconds of orders wait when the order service starts again. May be repeated.
    #[arg(long, default_values_t = [60, 300])]
    outage: Vec<u32>,
    /// Orders per second: those that wait, and those that are placed meanwhile.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
}

impl Options {
    pub(crate) fn longest_duration(&self) -> Duration {
        self.outage.iter().map(|outage| deadline(*outage)).sum()
    }
}

/// How long a backlog may take. A system that cannot do more than the load brings never gets through it.
fn deadline(outage: u32) -> Duration {
    Duration::from_secs(60) + Duration::from_secs(10) * outage
}

const APPLIED_DEADLINE: Duration = Duration::from_secs(120);

/// One part of this many of the time may go into samples. A sample counts what waits, which takes longer the more waits: with half a million
/// open orders, a sample in each second kept one of two cores busy.
const SAMPLES_SHARE: u32 = 20;

/// What is read each second, or less often while a lot waits.
struct Sample {
    second: f64,
    /// Creations that are not published yet.
    unpublished: i64,
    /// Orders that are neither confirmed nor cancelled.
    open: i64,
    /// Orders that were answered with 201 since the start.
    accepted: usize,
    /// Of the orders that were answered in the last second, in milliseconds. `None`: none was.
    post_p99: Option<f64>,
}

impl Sample {
    /// No more orders wait or are open than are placed in a second.
    fn is_at_rest(&self, rate: u32) -> bool {
        self.unpublished.max(self.open) <= i64::from(rate)
    }
}

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let rig = Rig::start(setup).await?;
    let template = rig.place(orders_sql::TEMPLATE_ORDER).await?;
    rig.everything_applied(APPLIED_DEADLINE).await?;
    let (mut measured, mut curves) = (vec![], vec![]);
    for &outage in &options.outage {
        let backlog = outage * options.rate;
        eprintln!("{outage} s of orders at {}/s: {backlog} events wait", options.rate);
        rig.stop_service("orders").await?;
        rig.add_stock(i64::from(backlog)).await?;
        rig.fill_outbox(template, backlog).await?;
        let samples = drain(&rig, options.rate, deadline(outage)).await?;
        rig.everything_applied(APPLIED_DEADLINE).await?;
        ensure_none_cancelled(&rig).await?;
        measured.extend(figures(&samples, outage, options.rate)?);
        curves.push(curve(&samples, outage));
    }
    let notes = vec![
        "the clock starts with the order service's process; orders are placed at the same rate from when it is ready".into(),
        "at rest: no more orders are open than are placed in one second".into(),
        "everything shares the cores: the load, the three services, the payment provider and the servers".into(),
    ];
    Ok(rig.finish("recovery", measured, notes).await?.with_curves(curves))
}

/// Starts the order service and the load, and samples each second until the system is at rest again.
async fn drain(rig: &Rig, rate: u32, deadline: Duration) -> anyhow::Result<Vec<Sample>> {
    let mut auditor = rig.connect(Login::Auditor).await?;
    let start = Instant::now();
    rig.start_service("orders").await?;
    let load = SampledLoad::start(Load::new(rig.orders_url(), rate, deadline));
    let (mut samples, mut accepted) = (Vec::<Sample>::new(), 0);
    loop {
        let began = Instant::now();
        let (unpublished, open) = read(&mut auditor).await?;
        let next_sample = began + (began.elapsed() * SAMPLES_SHARE).max(Duration::from_secs(1));
        let (answered, post_p99) = load.sample();
        accepted += answered;
        samples.push(Sample { second: start.elapsed().as_secs_f64(), unpublished, open, accepted, post_p99 });
        // Not before the load has run for a while: the first second knows nothing.
        if samples.len() > 3 && samples.last().is_some_and(|sample| sample.is_at_rest(rate)) {
            break;
        }
        if start.elapsed() > deadline {
            bail!("{open} orders are open after {deadline:?}: the load is more than this machine can do");
        }
        sleep_until(next_sample).await;
    }
    load.stop().await?;
    Ok(samples)
}

/// Counts creations that are not published and orders that are open. Each has an index that holds nothing else.
async fn read(auditor: &mut PgConnection) -> anyhow::Result<(i64, i64)> {
    let row = sqlx::query(
        "select (select count(*) from orders.outbox where published_at is null and event_type = 'OrderCreated'),
                (select count(*) from orders.orders where status in ('pending', 'reserved', 'paid'))",
    )
    .fetch_one(auditor)
    .await
    .context("failed to count the orders")?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// A cancelled order takes another course, with a refund, so a time with some of them is not comparable.
async fn ensure_none_cancelled(rig: &Rig) -> anyhow::Result<()> {
    let mut auditor = rig.connect(Login::Auditor).await?;
    let cancelled: i64 = sqlx::query_scalar("select count(*) from orders.orders where status = 'cancelled'")
        .fetch_one(&mut auditor)
        .await
        .context("failed to count cancelled orders")?;
    ensure!(
        cancelled == 0,
        "{cancelled} orders were cancelled: if they waited too long, try --set ORDERS_ANSWER_WITHIN=1h"
    );
    Ok(())
}

fn figures(samples: &[Sample], outage: u32, rate: u32) -> anyhow::Result<Vec<Figure>> {
    let first = |done: &dyn Fn(&Sample) -> bool| {
        let found = samples.iter().find(|sample| done(sample));
        found.map(|sample| sample.second).context("the system did not come to rest")
    };
    let named = |what: &str| format!("{outage} s away: {what}");
    let at_rest = first(&|sample| sample.is_at_rest(rate))?;
    let steps = || samples.windows(2).filter_map(|pair| Some(Step::between(pair.first()?, pair.last()?)));
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    Ok(vec![
        Figure::new(
            named("every creation published after"),
            "s",
            vec![first(&|sample| sample.unpublished <= i64::from(rate))?],
        )?,
        Figure::new(named("all orders at rest after"), "s", vec![at_rest])?,
        Figure::new(
            named("published, best second"),
            "events/s",
            vec![most(&mut steps().map(|step| step.published))],
        )?,
        Figure::new(
            named("orders ended, best second"),
            "orders/s",
            vec![most(&mut steps().map(|step| step.ended))],
        )?,
        Figure::new(
            named("POST p99 of the worst second"),
            "ms",
            vec![most(&mut samples.iter().filter_map(|sample| sample.post_p99))],
        )?,
    ])
}

/// What happened between two samples, a second.
struct Step {
    published: f64,
    ended: f64,
}

impl Step {
    fn between(from: &Sample, to: &Sample) -> Self {
        let seconds = to.second - from.second;
        // What was placed and is no longer waiting.
        let done = |waiting: fn(&Sample) -> i64| {
            let placed = (to.accepted - from.accepted) as f64;
            ((waiting(from) - waiting(to)) as f64 + placed) / seconds
        };
        Self { published: done(|sample| sample.unpublished), ended: done(|sample| sample.open) }
    }
}

fn curve(samples: &[Sample], outage: u32) -> Curve {
    let rows = samples.windows(2).filter_map(|pair| {
        let (from, to) = (pair.first()?, pair.last()?);
        let step = Step::between(from, to);
        Some(vec![
            to.second,
            to.unpublished as f64,
            to.open as f64,
            step.published,
            step.ended,
            to.post_p99.unwrap_or(f64::NAN),
        ])
    });
    Curve {
        name: format!("{outage} s away"),
        columns: ["second", "unpublished", "open", "published/s", "ended/s", "POST p99 ms"],
        rows: rows.collect(),
    }
}

/// A load at a constant rate whose latencies are read while it runs. Ends with its value, also when a benchmark fails.
struct SampledLoad {
    running: JoinSet<anyhow::Result<Summary>>,
    enough: Arc<AtomicBool>,
    /// How long each order took that was accepted since the last look.
    took: Arc<Mutex<Vec<Duration>>>,
}

impl SampledLoad {
    fn start(load: Load) -> Self {
        let (enough, took) = (load.enough.clone(), Arc::<Mutex<Vec<Duration>>>::default());
        let record = {
            let took = took.clone();
            move |outcome: Outcome| {
                if let (Answer::Accepted(_), Ok(time)) =
                    (&outcome.answer, outcome.finished.duration_since(outcome.due))
                {
                    took.lock().unwrap_or_else(PoisonError::into_inner).push(time);
                }
            }
        };
        Self { running: JoinSet::from_iter([load_tests::run(load, record)]), enough, took }
    }

    /// How many orders were accepted since the last look, and their p99 in milliseconds. `None`: there was none.
    fn sample(&self) -> (usize, Option<f64>) {
        let mut took = std::mem::take(&mut *self.took.lock().unwrap_or_else(PoisonError::into_inner));
        took.sort();
        let p99 = took.get(took.len() * 99 / 100).map(|took| took.as_secs_f64() * 1e3);
        (took.len(), p99)
    }

    /// Sends nothing more, and waits for the outstanding answers.
    ///
    /// # Errors
    /// When an order was not accepted.
    async fn stop(mut self) -> anyhow::Result<()> {
        self.enough.store(true, Ordering::Relaxed);
        self.running.join_next().await.context("no load ran")???.all_accepted().map(drop)
    }
}
