//! A load that runs in the background.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, Result};
use load_tests::{Load, Outcome, Summary};
use tokio::task::JoinHandle;

/// A load that runs until it is stopped: how long kills and starts take is not known beforehand. Dropping it aborts it.
#[derive(Debug)]
pub struct RunningLoad {
    task: JoinHandle<Result<Summary>>,
    enough: Arc<AtomicBool>,
}

impl RunningLoad {
    /// Starts a load with a constant rate.
    pub(crate) fn start(load: Load, on_outcome: impl Fn(Outcome) + Send + Sync + 'static) -> Self {
        let enough = load.enough.clone();
        Self { task: tokio::spawn(load_tests::run(load, on_outcome)), enough }
    }

    /// Sends nothing more, and waits for the outstanding answers.
    pub async fn stop(&mut self) -> Result<Summary> {
        self.enough.store(true, Ordering::Relaxed);
        (&mut self.task).await.context("the load generator panicked")?
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        self.task.abort();
    }
}
