//! A load at a constant rate whose latencies are read while it runs.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use load_tests::{Answer, Load, Outcome, Summary, run};
use tokio::task::JoinSet;

/// Ends with its value, also when a benchmark fails.
pub(crate) struct SampledLoad {
    running: JoinSet<anyhow::Result<Summary>>,
    enough: Arc<AtomicBool>,
    /// How long each order took that was accepted since the last look.
    took: Arc<Mutex<Vec<Duration>>>,
}

impl SampledLoad {
    pub(crate) fn start(load: Load) -> Self {
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
        Self { running: JoinSet::from_iter([run(load, record)]), enough, took }
    }

    /// How many orders were accepted since the last look, and their p99 in milliseconds. `None`: there was none.
    pub(crate) fn sample(&self) -> (usize, Option<f64>) {
        let mut took = std::mem::take(&mut *self.took.lock().unwrap_or_else(PoisonError::into_inner));
        took.sort();
        let p99 = took.get(took.len() * 99 / 100).map(|took| took.as_secs_f64() * 1e3);
        (took.len(), p99)
    }

    /// Sends nothing more, and waits for the outstanding answers.
    ///
    /// # Errors
    /// When an order was not accepted.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.enough.store(true, Ordering::Relaxed);
        let summary = self.running.join_next().await.context("no load ran")???;
        ensure!(
            summary.accepted == summary.sent && summary.shed == 0,
            "failed to place orders: {summary} {:?}",
            summary.failures
        );
        Ok(())
    }
}
