//! The load of the soak: orders at every instance, of which about half are cancelled at once, at any of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use load_tests::{Answer, Load, Outcome, Summary};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::http;
use crate::ledger::Ledger;
use crate::load::RunningLoad;

const CANCEL_DEADLINE: Duration = Duration::from_secs(5);

/// A running load.
pub(crate) struct SoakLoad {
    load: RunningLoad,
    /// Ends after the load.
    cancelling: JoinHandle<()>,
    cancelled: Arc<AtomicU64>,
}

/// What the clients have sent, and what they were answered.
pub(crate) struct Sent {
    pub(crate) attempts: u64,
    pub(crate) acknowledged: u64,
    /// Cancellations that were answered with 200.
    pub(crate) cancelled: u64,
}

impl SoakLoad {
    /// Starts a load on these order services, and a task that cancels.
    pub(crate) fn start(urls: Vec<String>, rate: u32, ledger: &Arc<Ledger>) -> Result<Self> {
        let (accepted, to_cancel) = mpsc::unbounded_channel::<Uuid>();
        let (first, others) = urls.split_first().context("there is no order service")?;
        let load = Load::new(first, rate, Duration::MAX);
        let max_in_flight = load.max_in_flight * urls.len();
        let load = Load { others: others.to_vec(), max_in_flight, ..load };
        let record = ledger.recorder();
        let load = RunningLoad::start(load, move |outcome: Outcome| {
            if let Answer::Accepted(id) = outcome.answer {
                // Sending fails only after the task that cancels has ended.
                let _ = accepted.send(id);
            }
            record(outcome);
        });
        let cancelled = Arc::new(AtomicU64::new(0));
        let cancelling = tokio::spawn(cancel(http::client()?, urls, to_cancel, cancelled.clone()));
        Ok(Self { load, cancelling, cancelled })
    }

    /// Cancellations that were answered with 200 so far.
    pub(crate) fn cancelled(&self) -> u64 {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Ends the load, and waits for the cancellations.
    pub(crate) async fn stop(self) -> Result<Sent> {
        let Summary { sent: attempts, accepted: acknowledged, .. } = self.load.stop().await?;
        self.cancelling.await?;
        Ok(Sent { attempts, acknowledged, cancelled: self.cancelled.load(Ordering::Relaxed) })
    }
}

async fn cancel(
    client: reqwest::Client,
    urls: Vec<String>,
    mut to_cancel: mpsc::UnboundedReceiver<Uuid>,
    cancelled: Arc<AtomicU64>,
) {
    // At random: the load goes to one instance after the other, and any rule would cancel at some of them only.
    while let Some(id) = to_cancel.recv().await {
        if fastrand::bool() {
            let url = format!("{}/orders/{id}/cancellation", urls[fastrand::usize(..urls.len())]);
            let answer = client.post(url).timeout(CANCEL_DEADLINE).send().await;
            let accepted = answer.is_ok_and(|answer| answer.status() == 200);
            cancelled.fetch_add(u64::from(accepted), Ordering::Relaxed);
        }
    }
}
