//! What no service's records show: messages in the broker's queues, and parts that are not ready.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use testbed::longer;
use tokio::time::timeout;

use super::{Access, RunningSystem};
use crate::metrics;
use crate::part::SERVICES;
use crate::reconciliation::Transit;

/// How long a part may take to answer, with containers through `docker exec`; [longer] on a slow machine. A frozen one does not.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// With containers, a program in the broker's container reads the queues. It starts an Erlang VM.
const QUEUES_DEADLINE: Duration = Duration::from_secs(30);

impl RunningSystem {
    /// Reads the queues, and asks every process for an answer.
    pub(crate) async fn transit(&self) -> Transit {
        let names = self.service_processes();
        let pages = join_all(names.iter().map(async |name| {
            let page = timeout(longer(ANSWER_DEADLINE), self.metrics(name)).await;
            (name, page.map_err(Into::into).flatten())
        }));
        let provider = self.answers("provider", longer(ANSWER_DEADLINE));
        let (pages, provider_answers) = tokio::join!(pages, provider);
        let queued =
            timeout(longer(QUEUES_DEADLINE), self.queued(&pages)).await.map_err(Into::into).flatten();
        // One that answers and has not connected again is no excuse: the broker is there, so it breaks its promise.
        let silent = pages.iter().find(|(_, page)| page.is_err());
        let not_ready = silent
            .map(|(name, _)| format!("{name} does not answer"))
            .or_else(|| (!provider_answers).then(|| "the payment provider does not answer".to_owned()))
            .or_else(|| queued.as_ref().err().map(|error| format!("RabbitMQ is not ready: {error:#}")));
        Transit { queued: queued.ok(), not_ready }
    }

    /// The names of the services' processes that must answer. An instance may have been stopped for good, if another one runs.
    fn service_processes(&self) -> Vec<String> {
        let Access::Local(system) = &self.access else { return SERVICES.map(str::to_owned).into() };
        let processes = &system.processes;
        let of_service = |service: &str| {
            let all: Vec<_> = processes.names().filter(|name| name.starts_with(service)).collect();
            let running: Vec<_> = all.iter().filter(|name| processes.pid(name).is_some()).copied().collect();
            let must_answer = if running.is_empty() { all } else { running };
            must_answer.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        SERVICES.into_iter().flat_map(of_service).collect()
    }

    /// How many messages are in the services' queues and in their queues of dead letters.
    async fn queued(&self, pages: &[(&String, Result<String>)]) -> Result<u64> {
        match &self.access {
            Access::Local(_) | Access::Remote(_) => self.broker_api()?.queued().await,
            Access::Containers(compose) => compose.queued().await,
            // Its broker has no address for operators.
            Access::Network(_) => pages
                .iter()
                .map(|(_, page)| held_and_ready(page.as_ref().ok()?))
                .sum::<Option<u64>>()
                .context("the services do not know their queues"),
        }
    }
}

/// What a service knows about its queues: messages that are ready, dead letters that wait in the broker, and one for a group that
/// is being applied. A service that has not reached the broker knows nothing.
fn held_and_ready(page: &str) -> Option<u64> {
    // Unknown is NaN, which is no whole number.
    page.contains("\nbroker_queue_ready{").then_some(())?;
    let ready: u64 = metrics::sum(page, "broker_queue_ready").ok()?;
    let dead: u64 = metrics::sum(page, "inbox_unsaved_dead_letters").ok()?;
    let applying: f64 = metrics::sum(page, "inbox_applying_seconds").ok()?;
    applying.is_finite().then(|| ready + dead + u64::from(applying > 0.0))
}
