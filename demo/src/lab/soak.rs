//! Everything at once, for as long as you like: four order services, two of each consumer, orders that are cancelled
//! the moment they are accepted, by another instance, and something killed every few seconds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use load_tests::{Answer, Load};
use testbed::Instances;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep},
};
use uuid::Uuid;

use super::{PATIENCE, Setup, Stage, Tap, tap::Published};
use crate::audit::Audit;

/// What to do, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// How long.
    pub for_: Duration,
    /// Orders a second, over all instances.
    pub rate: u32,
    /// Who is killed when: the same seed kills the same processes at the same times.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Soaked {
    /// The conservation sum at the end.
    pub audit: Audit,
    /// What the broker was given.
    pub published: Published,
    /// How many processes were killed.
    pub kills: u32,
    /// Cancellations that were answered with 200.
    pub cancelled: u64,
}

/// The pause between two kills, in milliseconds.
const PAUSE: std::ops::Range<u64> = 1_500..5_000;

impl Soak {
    /// Runs it on a system of its own. `tell` is given a line now and then.
    ///
    /// # Errors
    /// When the system cannot be set up, or does not come to rest. What it has done wrong is no error, but in what is
    /// returned.
    pub async fn run(self, tell: impl Fn(String)) -> Result<Soaked> {
        let vhost = testbed::vhost().await?;
        let instances = Instances { orders: 4, inventory: 2, billing: 2 };
        let setup = Setup { instances, ..Setup::default() };
        let stage = Stage::ready(&vhost.url(), setup).await?;
        let mut tap = Tap::on(&vhost).await?;
        let (loads, cancelling, cancelled) = self.load(&stage)?;

        let mut random = fastrand::Rng::with_seed(self.seed);
        let names: Vec<_> = stage.system.names().map(str::to_owned).collect();
        let (end, began) = (Instant::now() + self.for_, Instant::now());
        let (mut kills, mut told) = (0, Instant::now());
        while Instant::now() < end {
            let victim = &names[random.usize(..names.len())];
            stage.system.kill(victim).await?;
            kills += 1;
            stage.system.start_again(victim).await?;
            let published = tap.drain().await?;
            if told.elapsed() > Duration::from_secs(15) {
                told = Instant::now();
                tell(format!(
                    "  {:5.0} s  {} orders, {} cancelled, {} messages of which {} copies, {} out of order, {kills} killed",
                    began.elapsed().as_secs_f64(),
                    stage.accepted(),
                    cancelled.load(Ordering::Relaxed),
                    published.messages,
                    published.copies,
                    published.out_of_order.len(),
                ));
            }
            sleep(Duration::from_millis(random.u64(PAUSE))).await;
        }
        for load in loads {
            load.await?.context("the load generator failed")?;
        }
        cancelling.await?;
        stage.revive().await?;
        let audit = at_rest(&stage).await?;
        let published = tap.drain().await?.clone();
        Ok(Soaked { audit, published, kills, cancelled: cancelled.load(Ordering::Relaxed) })
    }

    /// Starts the load on all instances, and somebody who cancels every second order at once.
    #[expect(clippy::type_complexity, reason = "three handles, taken apart where they are used")]
    fn load(
        self,
        stage: &Stage,
    ) -> Result<(Vec<JoinHandle<Result<load_tests::Summary>>>, JoinHandle<()>, Arc<AtomicU64>)> {
        let urls: Vec<_> = stage.system.names().filter(|name| name.starts_with("orders")).collect();
        let urls = urls
            .into_iter()
            .map(|name| Ok(stage.system.url(name)?.to_owned()))
            .collect::<Result<Vec<_>>>()?;
        let (accepted, mut to_cancel) = mpsc::unbounded_channel::<Uuid>();
        let mut loads = vec![];
        for url in &urls {
            let rate = (self.rate / 4).max(1);
            let load = Load::new(url.clone(), rate, self.for_);
            let (note, accepted) = (stage.ledger(), accepted.clone());
            loads.push(tokio::spawn(load_tests::run(load, move |outcome| {
                if let Answer::Accepted(id) = outcome.answer {
                    note(id);
                    // A closed channel means that nobody cancels any more.
                    let _ = accepted.send(id);
                }
            })));
        }
        drop(accepted);
        let cancelled = Arc::new(AtomicU64::new(0));
        let (client, count) = (stage.client.clone(), cancelled.clone());
        let cancelling = tokio::spawn(async move {
            let mut number = 0;
            while let Some(id) = to_cancel.recv().await {
                number += 1;
                if number % 2 == 0 {
                    let url = format!("{}/orders/{id}/cancellation", urls[number / 2 % urls.len()]);
                    let answer = client.post(url).timeout(Duration::from_secs(5)).send().await;
                    count.fetch_add(
                        u64::from(answer.is_ok_and(|answer| answer.status() == 200)),
                        Ordering::Relaxed,
                    );
                }
            }
        });
        Ok((loads, cancelling, cancelled))
    }
}

/// The sum, once nothing moves any more, or once it is clear that it will not hold.
async fn at_rest(stage: &Stage) -> Result<Audit> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let audit = stage.audit().await?;
        if audit.at_rest() || audit.beyond_hope() {
            return Ok(audit);
        }
        ensure!(Instant::now() < deadline, "not at rest after {PATIENCE:?}: {audit:?}");
        sleep(Duration::from_millis(500)).await;
    }
}
