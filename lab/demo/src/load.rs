//! Loads that run in the background.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use load_tests::{Load, Outcome, Saturation, Summary};
use tokio::task::JoinHandle;

/// A load with an end of its own. Dropping it aborts it.
#[derive(Debug)]
pub(crate) struct RunningLoad(JoinHandle<Result<Summary>>);

impl RunningLoad {
    /// Starts a load with a constant rate.
    pub(crate) fn run(load: Load, on_outcome: impl Fn(Outcome) + Send + Sync + 'static) -> Self {
        Self(tokio::spawn(load_tests::run(load, on_outcome)))
    }

    /// Starts clients that send their next order as soon as the last one is answered.
    pub(crate) fn saturate(
        load: Saturation,
        on_outcome: impl Fn(Outcome) + Clone + Send + Sync + 'static,
    ) -> Self {
        Self(tokio::spawn(load_tests::saturate(load, on_outcome)))
    }

    /// Waits for its end.
    pub(crate) async fn end(mut self) -> Result<Summary> {
        (&mut self.0).await.context("the load generator panicked")?
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A load that runs until it is stopped: how long kills and starts take is not known beforehand. Dropping it aborts it.
#[derive(Debug)]
pub struct StoppableLoad {
    load: RunningLoad,
    enough: Arc<AtomicBool>,
}

impl StoppableLoad {
    /// Starts `load`, whose own duration no longer counts.
    pub(crate) fn run(load: Load, on_outcome: impl Fn(Outcome) + Send + Sync + 'static) -> Self {
        let enough = load.enough.clone();
        let load = Load { for_: Duration::MAX, ..load };
        Self { load: RunningLoad::run(load, on_outcome), enough }
    }

    /// Sends nothing more, and waits for the outstanding answers.
    pub async fn stop(self) -> Result<Summary> {
        self.enough.store(true, Ordering::Relaxed);
        self.load.end().await
    }
}
