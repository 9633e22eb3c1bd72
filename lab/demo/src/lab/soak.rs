//! The soak: four order services, two of each consumer, orders that another instance cancels at once, and a process
//! that is killed every few seconds.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use load_tests::{Load, Summary};
use testbed::Instances;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep},
};
use uuid::Uuid;

use super::{
    stage::{CONDITION_DEADLINE, Setup, Stage},
    tap::{Published, Tap},
};
use crate::reconciliation::{Ending, Reconciliation, Wait, settle};

const ORDER_SERVICES: u32 = 4;
/// The pause between two kills, in milliseconds.
const PAUSE: Range<u64> = 1_500..5_000;
const REPORT_INTERVAL: Duration = Duration::from_secs(15);
const CANCEL_DEADLINE: Duration = Duration::from_secs(5);

/// A soak.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// How long the load lasts.
    pub for_: Duration,
    /// Orders per second, over all instances.
    pub rate: u32,
    /// The same seed kills the same processes at the same times.
    pub seed: u64,
}

#[derive(Clone, Debug)]
pub struct SoakResult {
    /// At the end.
    pub reconciliation: Reconciliation,
    /// What the broker received.
    pub published: Published,
    /// How many processes were killed.
    pub kills: u32,
    /// Cancellations that were answered with 200.
    pub cancelled: u64,
}

impl Soak {
    /// Starts a system for it, and passes a line to `print` now and then.
    ///
    /// # Errors
    /// When the system cannot be set up, or something is still pending long after the last kill. What is wrong is not
    /// an error, but part of the result.
    pub async fn run(self, print: impl Fn(String)) -> Result<SoakResult> {
        let vhost = testbed::vhost().await?;
        let instances = Instances { orders: ORDER_SERVICES as usize, inventory: 2, billing: 2 };
        let setup = Setup { instances, ..Setup::default() };
        let stage = Stage::ready(&vhost.url(), setup).await?;
        let mut tap = Tap::on(&vhost).await?;
        let SoakLoad { loads, cancelling, cancelled } = self.load(&stage)?;

        let mut random = fastrand::Rng::with_seed(self.seed);
        let names: Vec<_> = stage.system.names().map(str::to_owned).collect();
        let (end, began) = (Instant::now() + self.for_, Instant::now());
        let (mut kills, mut printed) = (0, Instant::now());
        while Instant::now() < end {
            let process = &names[random.usize(..names.len())];
            stage.system.kill(process).await?;
            kills += 1;
            stage.system.start_again(process).await?;
            let published = tap.drain().await?;
            if printed.elapsed() > REPORT_INTERVAL {
                printed = Instant::now();
                print(format!(
                    "  {:5.0} s  {} orders, {} cancelled, {} messages ({} copies, {} out of order), {kills} killed",
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
        let wait = Wait::until_decided(CONDITION_DEADLINE);
        let settled = settle(wait, async || stage.reconcile().await).await?;
        let reconciliation = settled.reconciliation;
        ensure!(settled.ending != Ending::DeadlinePassed, "still in progress: {reconciliation:?}");
        let published = tap.drain().await?.clone();
        Ok(SoakResult { reconciliation, published, kills, cancelled: cancelled.load(Ordering::Relaxed) })
    }

    /// Starts a load on each order service, and a task that cancels every other order at once.
    fn load(self, stage: &Stage) -> Result<SoakLoad> {
        let names = stage.system.names().filter(|name| name.starts_with("orders"));
        let urls = names.map(|name| Ok(stage.system.url(name)?.to_owned())).collect::<Result<Vec<_>>>()?;
        let (accepted, mut to_cancel) = mpsc::unbounded_channel::<Uuid>();
        let start = |url: &String| {
            let load = Load::new(url.clone(), (self.rate / ORDER_SERVICES).max(1), self.for_);
            let accepted = accepted.clone();
            // Sending fails only after the task that cancels has ended.
            let recorder = stage.recorder(move |id| _ = accepted.send(id));
            tokio::spawn(load_tests::run(load, recorder))
        };
        let loads = urls.iter().map(start).collect();
        drop(accepted);
        let cancelled = Arc::new(AtomicU64::new(0));
        let (client, count) = (stage.client.clone(), cancelled.clone());
        let cancelling = tokio::spawn(async move {
            let mut number = 0;
            while let Some(id) = to_cancel.recv().await {
                number += 1;
                if number % 2 == 0 {
                    let url = format!("{}/orders/{id}/cancellation", urls[number / 2 % urls.len()]);
                    let answer = client.post(url).timeout(CANCEL_DEADLINE).send().await;
                    let accepted = answer.is_ok_and(|answer| answer.status() == 200);
                    count.fetch_add(u64::from(accepted), Ordering::Relaxed);
                }
            }
        });
        Ok(SoakLoad { loads, cancelling, cancelled })
    }
}

struct SoakLoad {
    loads: Vec<JoinHandle<Result<Summary>>>,
    /// Ends after the loads.
    cancelling: JoinHandle<()>,
    /// Cancellations that were answered with 200 so far.
    cancelled: Arc<AtomicU64>,
}
