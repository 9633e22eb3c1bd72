//! Requests at constant intervals, none of which waits for an earlier one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};

use crate::{
    client::Client,
    order_bodies::{Mix, OrderBodies},
    summary::{Answer, Outcome, Recorder, Summary},
};

/// What to send, how often, and for how long.
#[derive(Debug, Clone)]
pub struct Load {
    /// The order service's address, without a path: `http://127.0.0.1:8080`.
    pub url: String,
    /// Further instances: each gets as many requests as the first.
    pub others: Vec<String>,
    /// Requests per second. Constant: request number `n` is due `n / rate` seconds after the start.
    pub rate: u32,
    /// How long requests become due. The run ends when each of them is answered or past its deadline.
    pub for_: Duration,
    /// How many requests may wait for their answers at once; each has a socket. A request that becomes due beyond that
    /// is not sent, and is counted as shed.
    pub max_in_flight: usize,
    /// Whether each request has a connection of its own. Otherwise a request uses one that is open and free.
    pub connects_each_time: bool,
    /// Selects the orders: see `OrderBodies`.
    pub seed: u64,
    /// The kind of orders.
    pub mix: Mix,
    /// Set it to end the run early: no more requests become due, and the run waits for those that were sent.
    pub enough: Arc<AtomicBool>,
}

impl Load {
    /// A load of good orders that differ from run to run.
    ///
    /// `max_in_flight` is enough for 100 requests a second when every request reaches its deadline.
    pub fn new(url: impl Into<String>, rate: u32, for_: Duration) -> Self {
        Self {
            url: url.into(),
            others: vec![],
            rate,
            for_,
            max_in_flight: 512,
            connects_each_time: false,
            seed: fastrand::u64(..),
            mix: Mix::Good,
            enough: Arc::default(),
        }
    }
}

/// Sends the load and reports each outcome as it happens.
///
/// A request's latency is counted from when it was *due*, not from when it was sent. If the service, or this
/// process, stalls for a second, the requests that were due in that second count as slow. A generator that starts its
/// clock only when it sends would leave them out ("coordinated omission").
///
/// `on_outcome` is called from many tasks at once, also for shed requests, and must not block. Dropping the future
/// ends the run and all its requests; whether their orders exist is then unknown.
///
/// # Errors
/// When the rate is 0 or the URL is invalid. A service that does not answer is no error of the run: it is what the run
/// measures.
pub async fn run(
    load: Load,
    on_outcome: impl Fn(Outcome) + Send + Sync + 'static,
) -> anyhow::Result<Summary> {
    send(load, Box::new(on_outcome)).await
}

/// Compiled in this crate, which is optimized also where its user is not: the load shares the cores with the service.
async fn send(load: Load, on_outcome: Box<dyn Fn(Outcome) + Send + Sync>) -> anyhow::Result<Summary> {
    anyhow::ensure!(load.rate > 0, "failed to send a load of 0 requests per second");
    let urls = std::iter::once(&load.url).chain(&load.others);
    let clients = urls.map(|url| Client::new(url)).collect::<anyhow::Result<Vec<_>>>()?;
    let clients = clients.into_iter().map(|client| client.connecting_each_time(load.connects_each_time));
    let mut clients = clients.collect::<Vec<_>>().into_iter().cycle();
    let mut bodies = OrderBodies::seeded(load.seed).mixed(load.mix);
    let permits = Arc::new(Semaphore::new(load.max_in_flight));
    let recorder = Arc::new(Recorder::new(on_outcome)?);
    // Dropping the set aborts its tasks.
    let mut requests = JoinSet::new();

    let (start, start_by_the_clock) = (Instant::now(), SystemTime::now());
    for number in 0_u64.. {
        let after = Duration::from_secs_f64(number as f64 / f64::from(load.rate));
        if after >= load.for_ || load.enough.load(Ordering::Relaxed) {
            break;
        }
        let (due, due_by_the_clock) = (start + after, start_by_the_clock + after);
        tokio::time::sleep_until(due).await;
        while let Some(done) = requests.try_join_next() {
            done.context("failed to run a request's task")?;
        }
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            recorder.record(number, due_by_the_clock, Duration::ZERO, Answer::Shed);
            continue;
        };
        let (client, body) = (clients.next().context("there is no instance")?, bodies.next_body());
        let recorder = recorder.clone();
        requests.spawn(async move {
            let answer = client.place(body).await;
            let latency = due.elapsed();
            drop(permit);
            recorder.record(number, due_by_the_clock, latency, answer);
        });
    }
    while let Some(done) = requests.join_next().await {
        done.context("failed to run a request's task")?;
    }
    Ok(recorder.summary(start.elapsed()))
}
