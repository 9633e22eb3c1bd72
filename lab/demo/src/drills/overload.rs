//! Far more orders than the service can accept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use load_tests::{Answer, Load, Mix, Outcome, Saturation, Summary};
use tokio::time::sleep;

use super::drill_run::DrillRun;

/// Connections of the closed loop that measures what the service can accept.
const CONNECTIONS: u32 = 32;
/// How long that takes, and how long each overload lasts.
const SPAN: Duration = Duration::from_secs(5);
/// The most orders a second that are offered: above that this would measure the load generator.
const MAX_RATE: u32 = 5_000;

/// The share of the capacity that is still accepted. Measured: 0.60 to 1.8.
const LEAST_GOODPUT: f64 = 0.5;
/// How late the slowest answer is, in seconds. Measured: 0.6 to 1.4; with new connections at five times the capacity, clients of a
/// slow machine waited five seconds in vain.
const LATEST_ANSWER: f64 = 2.5;
/// How many events wait at the end, in seconds of what is accepted. Measured: 0.2 to 1.7, and on a slow machine up to 19.
const MOST_PENDING: f64 = 2.0;

/// Clients that send so many times the capacity.
struct Crowd {
    times: u32,
    clients: usize,
    connects_each_time: bool,
}

/// Not ten times with new connections: on two cores these alone take all the processor time, in this process and in the kernel.
const CROWDS: [Crowd; 4] = [
    Crowd { times: 2, clients: 2_000, connects_each_time: true },
    Crowd { times: 5, clients: 2_000, connects_each_time: true },
    Crowd { times: 5, clients: 200, connects_each_time: false },
    Crowd { times: 10, clients: 200, connects_each_time: false },
];

/// Measures what the service accepts, offers several times that, and checks what happens to each order.
pub(super) async fn overload(run: &DrillRun<'_>) -> Result<()> {
    run.stop_load().await?;
    let saturation = Saturation {
        url: run.system.orders_url().to_owned(),
        connections: CONNECTIONS,
        for_: SPAN,
        seed: run.seed,
    };
    let capacity = load_tests::saturate(saturation, run.ledger.recorder()).await?.accepted_per_second();
    run.phase("capacity", format!("{capacity:.0} orders/s are accepted from {CONNECTIONS} connections"));
    ensure!(capacity > 1.0, "the service accepts {capacity:.1} orders/s: nothing can be overloaded");
    for crowd in &CROWDS {
        offer(run, crowd, capacity).await?;
    }
    // From here on as before: the report is about this load, and none of it may be refused.
    sleep(SPAN.min(Duration::from_secs(2))).await;
    run.start_load();
    Ok(())
}

async fn offer(run: &DrillRun<'_>, crowd: &Crowd, capacity: f64) -> Result<()> {
    let &Crowd { times, clients, connects_each_time } = crowd;
    // A rate of some thousands at most: it fits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rate = ((capacity * f64::from(times)) as u32).min(MAX_RATE);
    let how = if connects_each_time { "connect for each order" } else { "keep their connections" };
    run.phase("overload", format!("{clients} clients, which {how}, offer {rate} orders/s"));
    let load = Load {
        mix: Mix::Real,
        seed: run.seed.wrapping_add(times.into()),
        max_in_flight: clients,
        connects_each_time,
        ..Load::new(run.system.orders_url(), rate, SPAN)
    };
    let by_second = Arc::new(Mutex::new(BTreeMap::<u64, u64>::new()));
    let (counts, record, began) = (by_second.clone(), run.ledger.recorder(), SystemTime::now());
    let summary = load_tests::run(load, move |outcome: Outcome| {
        if let Answer::Accepted(_) = outcome.answer {
            let second = outcome.finished.duration_since(began).unwrap_or_default().as_secs();
            *counts.lock().unwrap_or_else(PoisonError::into_inner).entry(second).or_default() += 1;
        }
        record(outcome);
    })
    .await?;
    let pending = run.system.metric("orders", "outbox_pending").await?;
    let by_second = by_second.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let offered = f64::from(rate) / capacity;
    judge(
        run,
        &format!("{offered:.1} × the capacity, clients {how}"),
        capacity,
        &by_second,
        &summary,
        pending,
    );
    Ok(())
}

fn judge(
    run: &DrillRun<'_>,
    what: &str,
    capacity: f64,
    by_second: &BTreeMap<u64, u64>,
    summary: &Summary,
    pending: f64,
) {
    // The first second fills the queue, and what is answered after the end was offered before it.
    let seconds: Vec<_> =
        (1..SPAN.as_secs()).map(|second| by_second.get(&second).copied().unwrap_or(0)).collect();
    let accepted = seconds.iter().sum::<u64>() as f64 / seconds.len() as f64;
    let share = accepted / capacity;
    run.claim(
        format!("{what}: {accepted:.0} orders/s accepted, {share:.2} of the capacity ({seconds:?})"),
        share >= LEAST_GOODPUT,
    );
    let others: Vec<_> = summary.refused.keys().filter(|status| **status != 503).collect();
    run.claim(
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
    run.claim(format!("{what}: the slowest answer took {slowest:.2} s"), slowest <= LATEST_ANSWER);
    run.claim(
        format!("{what}: {pending:.0} events are pending at its end"),
        pending <= (MOST_PENDING * capacity).max(100.0),
    );
    run.require(format!("{what}: some were refused"), summary.refused_in_all() > 0);
}
