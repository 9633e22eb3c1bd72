//! The load of the soak: orders at every instance, of which every other one is cancelled at once at another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use load_tests::{Answer, Load, Outcome};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::http;
use crate::ledger::Ledger;
use crate::load::RunningLoad;

const CANCEL_DEADLINE: Duration = Duration::from_secs(5);

/// A running load.
pub(crate) struct SoakLoad {
    loads: Vec<RunningLoad>,
    /// Ends after the loads.
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
    /// Starts a load on each of these order services, and a task that cancels.
    pub(crate) fn start(urls: Vec<String>, rate: u32, for_: Duration, ledger: &Arc<Ledger>) -> Result<Self> {
        let (accepted, to_cancel) = mpsc::unbounded_channel::<Uuid>();
        let instances = u32::try_from(urls.len()).context("too many instances")?;
        let start = |url: &String| {
            let rate = (rate / instances).max(1);
            let load = Load::new(url.clone(), rate, for_);
            let (record, accepted) = (ledger.recorder(), accepted.clone());
            RunningLoad::run(load, move |outcome: Outcome| {
                if let Answer::Accepted(id) = outcome.answer {
                    // Sending fails only after the task that cancels has ended.
                    let _ = accepted.send(id);
                }
                record(outcome);
            })
        };
        let loads = urls.iter().map(start).collect();
        drop(accepted);
        let cancelled = Arc::new(AtomicU64::new(0));
        let cancelling = tokio::spawn(cancel(http::client()?, urls, to_cancel, cancelled.clone()));
        Ok(Self { loads, cancelling, cancelled })
    }

    /// Cancellations that were answered with 200 so far.
    pub(crate) fn cancelled(&self) -> u64 {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Waits for the end.
    pub(crate) async fn end(self) -> Result<Sent> {
        let (mut attempts, mut acknowledged) = (0, 0);
        for load in self.loads {
            let summary = load.end().await?;
            attempts += summary.sent;
            acknowledged += summary.accepted;
        }
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
    let mut number = 0;
    while let Some(id) = to_cancel.recv().await {
        number += 1;
        if number % 2 == 0 {
            let url = format!("{}/orders/{id}/cancellation", urls[number / 2 % urls.len()]);
            let answer = client.post(url).timeout(CANCEL_DEADLINE).send().await;
            let accepted = answer.is_ok_and(|answer| answer.status() == 200);
            cancelled.fetch_add(u64::from(accepted), Ordering::Relaxed);
        }
    }
}
