//! As many requests as the service can answer on a fixed number of connections.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use tokio::{task::JoinSet, time::Instant};

use crate::{
    client::Client,
    order_bodies::OrderBodies,
    summary::{Answer, Outcome, Recorder, Summary},
};

/// How many connections, and for how long.
#[derive(Debug, Clone)]
pub struct Saturation {
    /// The order service's address, without a path: `http://127.0.0.1:8080`.
    pub url: String,
    /// Workers, each with one connection and one request on it at a time.
    pub connections: u32,
    /// How long new requests are sent.
    pub for_: Duration,
    /// Selects the orders: see `OrderBodies`.
    pub seed: u64,
}

/// How long a worker waits after a request failed.
///
/// Without it, workers would connect in a tight loop while a service is down, and the count of failures would say how
/// fast they do so, not how long the service was down.
const PAUSE_AFTER_A_FAILURE: Duration = Duration::from_millis(50);

/// Sends each connection's next request as soon as its last one is answered.
///
/// The rate is the result. A service that stalls gets fewer requests, so these latencies are *not* what customers
/// see at any given rate: use [`run`](crate::run) for that. `on_outcome` is called from many tasks at once.
///
/// # Errors
/// When there are no connections or the URL is invalid.
pub async fn saturate(
    load: Saturation,
    on_outcome: impl Fn(Outcome) + Send + Sync + 'static,
) -> anyhow::Result<Summary> {
    anyhow::ensure!(load.connections > 0, "failed to send a load on 0 connections");
    let recorder = Arc::new(Recorder::new(on_outcome)?);
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for number in 0..load.connections {
        let bodies = OrderBodies::seeded(load.seed.wrapping_add(number.into()));
        // A client for each worker, which has one request at a time: so it has one connection.
        let client = Client::new(&load.url)?;
        workers.spawn(work(client, bodies, start + load.for_, recorder.clone()));
    }
    while let Some(done) = workers.join_next().await {
        done.context("failed to run a worker")?;
    }
    Ok(recorder.summary(start.elapsed()))
}

async fn work(
    client: Client,
    mut bodies: OrderBodies,
    until: Instant,
    recorder: Arc<Recorder<impl Fn(Outcome)>>,
) {
    for number in 0_u64.. {
        if Instant::now() >= until {
            break;
        }
        let (sent, sent_by_the_clock) = (Instant::now(), SystemTime::now());
        let answer = client.place(bodies.next_body()).await;
        let latency = sent.elapsed();
        if matches!(answer, Answer::Failed(_)) {
            tokio::time::sleep(PAUSE_AFTER_A_FAILURE).await;
        }
        recorder.record(number, sent_by_the_clock, latency, answer);
    }
}
