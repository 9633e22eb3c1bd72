use std::{collections::HashMap, future::Future, process::ExitCode, time::Duration};

use tokio::{
    signal::unix::{SignalKind, signal},
    task::{Id, JoinError, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::flush_log;

/// How long a stop may take. `docker stop` kills after ten seconds; this leaves time to log what was unfinished.
const STOP_DEADLINE: Duration = Duration::from_secs(9);

/// Runs the tasks of a process. If one ends before the stop, in whatever way, the process ends with an error.
///
/// A service that runs on without its relay would look healthy and publish nothing. A process that has ended is started
/// again by its supervisor (systemd, Compose, Kubernetes).
pub struct Supervisor {
    tasks: JoinSet<anyhow::Result<()>>,
    names: HashMap<Id, &'static str>,
    stop: CancellationToken,
    orderly: bool,
}

impl Supervisor {
    /// `stop` tells the tasks to end; SIGTERM and SIGINT cancel it.
    pub fn new(stop: CancellationToken) -> Self {
        let requested = stop.clone();
        tokio::spawn(async move {
            stop_signal().await;
            requested.cancel();
        });
        Self { tasks: JoinSet::new(), names: HashMap::new(), stop, orderly: true }
    }

    /// Starts a task that runs until the stop.
    pub fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let id = self.tasks.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Like [`spawn`](Self::spawn), for a task that cannot fail.
    pub fn spawn_infallible(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(name, async move {
            task.await;
            Ok(())
        });
    }

    /// Waits for `start` while watching the tasks. `None` if the stop, or the end of a task, came first: then the caller
    /// calls [`run`](Self::run).
    pub async fn run_until_stop<T>(&mut self, start: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            started = start => Some(started),
            () = self.end() => None,
        }
    }

    /// Waits for the stop, or for a task that ends too early. Then stops all tasks, up to the deadline. Exit code 0 means
    /// that the stop was requested and every task ended without an error.
    pub async fn run(mut self) -> ExitCode {
        self.end().await;
        tracing::info!("stopping");
        let drained = timeout(STOP_DEADLINE, async {
            while let Some(ended) = self.tasks.join_next_with_id().await {
                self.orderly &= self.report(ended, false);
            }
        });
        if drained.await.is_err() {
            let unfinished: Vec<_> = self.names.values().collect();
            tracing::error!(
                ?unfinished,
                "stopping by force; unfinished work is safe in the database and the broker"
            );
            flush_log();
            return ExitCode::FAILURE;
        }
        tracing::info!("stopped");
        flush_log();
        if self.orderly { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Returns at the stop, or when a task has ended too early.
    async fn end(&mut self) {
        // `biased`: after the stop, tasks end because of it, which is not too early.
        let early = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            ended = self.tasks.join_next_with_id(), if !self.tasks.is_empty() => ended,
        };
        if let Some(ended) = early {
            self.orderly = false;
            self.report(ended, true);
            self.stop.cancel();
        }
    }

    /// Logs how a task ended. Returns whether it ended as it should.
    fn report(&mut self, ended: Result<(Id, anyhow::Result<()>), JoinError>, early: bool) -> bool {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let task = self.names.remove(&id).unwrap_or("unnamed");
        match ended {
            Ok((_, Ok(()))) if early => tracing::error!(task, "a task ended before the stop"),
            Ok((_, Ok(()))) => return true,
            Ok((_, Err(error))) => tracing::error!(task, error = format!("{error:#}"), "a task failed"),
            Err(error) => tracing::error!(task, %error, "a task panicked"),
        }
        false
    }
}

async fn stop_signal() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return;
    };
    let Ok(mut interrupt) = signal(SignalKind::interrupt()) else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn panicking_task_ends_the_process_with_an_error() {
        let stop = CancellationToken::new();
        let mut supervisor = Supervisor::new(stop.clone());
        supervisor.spawn("bad", async { panic!("on purpose") });
        supervisor.spawn_infallible("good", async move { stop.cancelled().await });
        assert_ne!(supervisor.run().await, ExitCode::SUCCESS);
    }

    #[tokio::test]
    async fn task_that_ends_too_early_stops_the_others_and_fails() {
        let stop = CancellationToken::new();
        let mut supervisor = Supervisor::new(stop.clone());
        supervisor.spawn_infallible("short", async {});
        supervisor.spawn_infallible("long", async move { stop.cancelled().await });
        assert_ne!(supervisor.run().await, ExitCode::SUCCESS);
    }

    #[tokio::test]
    async fn requested_stop_succeeds_however_soon_the_tasks_end() {
        for _ in 0..50 {
            let stop = CancellationToken::new();
            let mut supervisor = Supervisor::new(stop.clone());
            stop.cancel();
            supervisor.spawn_infallible("quick", async {});
            tokio::task::yield_now().await;
            assert_eq!(supervisor.run().await, ExitCode::SUCCESS);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn task_that_does_not_stop_is_given_up_at_the_deadline() {
        let stop = CancellationToken::new();
        let mut supervisor = Supervisor::new(stop.clone());
        supervisor.spawn_infallible("endless", std::future::pending());
        stop.cancel();
        let asked = Instant::now();
        assert_ne!(supervisor.run().await, ExitCode::SUCCESS);
        // The clock advances only while every task waits, so this is no measurement.
        assert_eq!(asked.elapsed().as_secs(), STOP_DEADLINE.as_secs());
    }
}
