//! Far more orders than the service can accept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use load_tests::{Answer, Load, Mix, Outcome, Saturation, Summary};
use tokio::time::{Instant, sleep};

use super::drill_run::DrillRun;

/// Connections of the closed loop that measures what the service can accept.
const CONNECTIONS: u32 = 32;
/// How long that takes, and how long each overload lasts.
const SPAN: Duration = Duration::from_secs(5);
/// The most orders a second that are offered: above that this would measure the load generator.
const MAX_RATE: u32 = 5_000;

/// The share of the capacity that is still accepted, and completed. Measured: 0.6 to 1.7.
const LEAST_SHARE: f64 = 0.5;
/// How many events are published for each order that is accepted meanwhile. Two or three are written: with fewer the backlog grows
/// as long as the overload lasts. Measured: 1.9 to 4.4; with requests that wait for an hour, 0.6 to 1.3.
const LEAST_PUBLISHED: f64 = 1.6;
/// How late the slowest answer is, in seconds: before its client gives up. Measured: 0.2 to 2.2.
const LATEST_ANSWER: f64 = 4.0;

/// Clients that send so many times the capacity.
struct Crowd {
    times: u32,
    connects_each_time: bool,
}

/// Not ten times with new connections: on two cores these alone take all the processor time, in this process and in the kernel.
const CROWDS: [Crowd; 4] = [
    Crowd { times: 2, connects_each_time: true },
    Crowd { times: 5, connects_each_time: true },
    Crowd { times: 5, connects_each_time: false },
    Crowd { times: 10, connects_each_time: false },
];

/// What the system does without an overload.
struct Capacity {
    /// Orders that a closed loop of [`CONNECTIONS`] gets accepted a second.
    accepted: f64,
    /// Orders that are confirmed or cancelled a second meanwhile. Fewer: the service accepts more for some seconds than the relay
    /// and the consumers can go on with.
    completed: f64,
}

impl Crowd {
    /// How many clients wait for an answer at the same time.
    fn clients(&self, capacity: &Capacity) -> usize {
        // Each waits until those before it are answered, the last of them for less time than its client has.
        // Two thousand at most: it fits.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let most = (4.0 * capacity.completed).clamp(200.0, 2_000.0) as usize;
        if self.connects_each_time { most } else { 200 }
    }
}

/// Measures what the system does, offers several times that, and checks what happens to each order.
pub(super) async fn overload(run: &DrillRun<'_>) -> Result<()> {
    run.stop_load().await?;
    let saturation = Saturation {
        url: run.system.orders_url().to_owned(),
        connections: CONNECTIONS,
        for_: 2 * SPAN,
        seed: run.seed,
    };
    let (completed_before, began) = (completed(run).await?, Instant::now());
    let saturated = load_tests::saturate(saturation, run.ledger.recorder()).await?;
    run.may_exist(saturated.refused_in_all() + saturated.failed);
    let accepted = saturated.accepted_per_second();
    let completed = completed_since(run, completed_before, began).await?;
    run.phase(
        "capacity",
        format!(
            "from {CONNECTIONS} connections {accepted:.0} orders/s are accepted, and {completed:.0} completed"
        ),
    );
    ensure!(completed > 1.0, "the system completes {completed:.1} orders/s: nothing can be overloaded");

    let capacity = Capacity { accepted, completed };
    let (published_before, mut accepted) = (published(run).await?, 0);
    for crowd in &CROWDS {
        accepted += offer(run, crowd, &capacity).await?.accepted;
    }
    let published = published(run).await? - published_before;
    run.promised(
        format!("in all: {published:.0} events published, {accepted} orders accepted"),
        published >= LEAST_PUBLISHED * accepted as f64,
    );
    // From here on as before: the report is about this load, and none of it may be refused.
    sleep(Duration::from_secs(2)).await;
    run.start_load()?;
    Ok(())
}

/// How many events the order service has published.
async fn published(run: &DrillRun<'_>) -> Result<f64> {
    run.system.metric("orders", "outbox_published_total").await
}

/// How many orders are confirmed or cancelled.
async fn completed(run: &DrillRun<'_>) -> Result<f64> {
    let count = "select count(*)::text from orders.orders where status in ('confirmed', 'cancelled')";
    Ok(run.system.read(count).await?.parse()?)
}

/// How many orders were confirmed or cancelled each second since then.
async fn completed_since(run: &DrillRun<'_>, before: f64, then: Instant) -> Result<f64> {
    Ok((completed(run).await? - before) / then.elapsed().as_secs_f64())
}

async fn offer(run: &DrillRun<'_>, crowd: &Crowd, capacity: &Capacity) -> Result<Summary> {
    let &Crowd { times, connects_each_time } = crowd;
    let clients = crowd.clients(capacity);
    // A rate of some thousands at most: it fits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rate = ((capacity.accepted * f64::from(times)) as u32).min(MAX_RATE);
    let how = if connects_each_time { "connect for each order" } else { "keep their connections" };
    run.phase("overload", format!("{clients} clients, which {how}, offer {rate} orders/s"));
    let load = Load {
        mix: Mix::Real,
        seed: run.seed.wrapping_add(times.into()),
        max_in_flight: clients,
        connects_each_time,
        ..Load::new(run.system.orders_url(), rate, SPAN)
    };
    let completed_before = completed(run).await?;
    let by_second = Arc::new(Mutex::new(BTreeMap::<u64, u64>::new()));
    let (counts, record, then) = (by_second.clone(), run.ledger.recorder(), Instant::now());
    let summary = load_tests::run(load, move |outcome: Outcome| {
        if let Answer::Accepted(_) = outcome.answer {
            let second = then.elapsed().as_secs();
            *counts.lock().unwrap_or_else(PoisonError::into_inner).entry(second).or_default() += 1;
        }
        record(outcome);
    })
    .await?;
    let completed = completed_since(run, completed_before, then).await?;
    let by_second = by_second.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let what = format!("{:.1} × the capacity, clients {how}", f64::from(rate) / capacity.accepted);
    run.may_exist(summary.refused_in_all() + summary.failed);
    judge(run, &what, capacity, &by_second, completed, &summary);
    Ok(summary)
}

fn judge(
    run: &DrillRun<'_>,
    what: &str,
    capacity: &Capacity,
    by_second: &BTreeMap<u64, u64>,
    completed: f64,
    summary: &Summary,
) {
    // The first second fills the queue, and what is answered after the end was offered before it.
    let seconds: Vec<_> =
        (1..SPAN.as_secs()).map(|second| by_second.get(&second).copied().unwrap_or(0)).collect();
    let accepted = seconds.iter().sum::<u64>() as f64 / seconds.len() as f64;
    for (verb, rate) in [("accepted", accepted), ("completed", completed)] {
        let share = rate / capacity.completed;
        run.promised(
            format!("{what}: {rate:.0} orders/s {verb}, {share:.2} of the capacity"),
            share >= LEAST_SHARE,
        );
    }
    let others: Vec<_> = summary.refused.keys().filter(|status| **status != 503).collect();
    run.promised(
        format!(
            "{what}: {} refused with 503, {others:?} otherwise, {} not sent because all clients waited, {} not answered {:?}",
            summary.refused_in_all(),
            summary.shed,
            summary.failed,
            summary.failures
        ),
        others.is_empty() && summary.failed == 0,
    );
    let slowest = summary.latency.map_or(f64::NAN, |latency| latency.max.as_secs_f64());
    run.promised(format!("{what}: the slowest answer took {slowest:.2} s"), slowest <= LATEST_ANSWER);
    run.injected(format!("{what}: some were refused"), summary.refused_in_all() > 0);
}
