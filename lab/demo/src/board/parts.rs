//! The parts of the running system: whether each works, and the services' metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::timeout;

use crate::part::SERVICES;
use crate::running_system::RunningSystem;

/// How long a part may take to answer. A frozen one does not.
const ANSWER_DEADLINE: Duration = Duration::from_millis(900);

/// The parts that are no services. Of services the metrics are read.
const OTHERS: [&str; 3] = ["provider", "broker", "database"];

/// The metrics that the page shows. All others stay where they are.
const SHOWN: [&str; 13] = [
    "broker_connected",
    "broker_queue_ready",
    "http_request_seconds_bucket",
    "http_request_seconds_count",
    "inbox_applied_total",
    "inbox_applying_seconds",
    "inbox_dead_letters",
    "inbox_duplicates_total",
    "outbox_lane_held",
    "outbox_oldest_pending_age_seconds",
    "outbox_parked",
    "outbox_published_total",
    "payments_pending",
];

/// Whether a part works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PartState {
    Up,
    /// It has no process.
    Down,
    /// It has a process and does not answer.
    Frozen,
    Unknown,
}

/// `orders`, `inventory`, `billing`, `provider`, `broker` and `database`.
pub(crate) type Parts = BTreeMap<&'static str, PartState>;

/// Each service's metrics, summed over labels that the page does not show.
pub(crate) type Metrics = BTreeMap<&'static str, Option<BTreeMap<String, f64>>>;

/// Reads all parts at the same time.
pub(crate) async fn read(system: &RunningSystem) -> (Parts, Metrics) {
    let pages = join_all(SERVICES.map(|service| async move {
        let page = timeout(ANSWER_DEADLINE, system.metrics(service)).await.ok().and_then(Result::ok);
        (service, state(system, service, page.is_some()).await, page.map(|page| shown(&page)))
    }));
    let others = join_all(OTHERS.map(|part| async move {
        let answers = system.answers(part, ANSWER_DEADLINE).await;
        (part, state(system, part, answers).await)
    }));
    let (pages, others) = tokio::join!(pages, others);
    let (mut parts, mut metrics) = (Parts::from_iter(others), Metrics::new());
    for (service, state, page) in pages {
        parts.insert(service, state);
        metrics.insert(service, page);
    }
    (parts, metrics)
}

/// A part that answers is up. Of one that does not, the process says more.
async fn state(system: &RunningSystem, part: &'static str, answers: bool) -> PartState {
    if answers {
        return PartState::Up;
    }
    match timeout(ANSWER_DEADLINE, system.pid(part)).await {
        Ok(Ok(Some(_))) => PartState::Frozen,
        Ok(Ok(None)) => PartState::Down,
        Ok(Err(_)) | Err(_) => PartState::Unknown,
    }
}

/// Whether nothing waits in any service's queue, and nothing is being applied. What is unknown is not idle.
pub(crate) fn consumers_are_idle(metrics: &Metrics) -> bool {
    metrics.values().all(|metrics| {
        metrics.as_ref().is_some_and(|metrics| {
            metrics.get("broker_queue_ready") == Some(&0.0)
                // It is not there before the first message.
                && metrics.get("inbox_applying_seconds").is_none_or(|seconds| *seconds == 0.0)
        })
    })
}

/// The shown metrics of a page, added up over all labels but those that the page needs.
fn shown(page: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        if !SHOWN.contains(&name) {
            continue;
        }
        let kept = ["status", "le", "lane", "role"].map(|label| label_value(labels, label));
        let key = kept.into_iter().flatten().fold(name.to_owned(), |key, value| format!("{key}:{value}"));
        // NaN is not in JSON: `null` there, unknown here.
        let value: f64 = value.parse().unwrap_or(f64::NAN);
        *sums.entry(key).or_insert(0.0) += value;
    }
    sums
}

fn label_value<'a>(labels: &'a str, label: &str) -> Option<&'a str> {
    // Values have no commas: they come from closed sets.
    let labels = labels.split(',').filter_map(|pair| pair.split_once("=\""));
    labels.filter(|(name, _)| *name == label).find_map(|(_, value)| value.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_and_the_shown_labels_are_kept() {
        let page = "outbox_lane_held{lane=\"3\"} 1\n# TYPE inbox_applied_total counter\ninbox_applied_total{event_type=\"A\"} 3\n\
                    inbox_applied_total{event_type=\"B\"} 4\nhttp_request_seconds_bucket{status=\"201\",le=\"0.1\"} 5\n\
                    outbox_parked NaN\nprocess_start_time 7\n";
        let shown = shown(page);
        assert_eq!((shown["inbox_applied_total"], shown["http_request_seconds_bucket:201:0.1"]), (7.0, 5.0));
        assert!(shown["outbox_parked"].is_nan());
        assert_eq!(shown["outbox_lane_held:3"], 1.0);
        assert_eq!(shown.len(), 4);
    }

    #[test]
    fn a_consumer_whose_queue_is_unknown_is_not_idle() {
        let idle = |ready: Option<f64>| {
            let ready = ready.map(|ready| ("broker_queue_ready".to_owned(), ready));
            let applying = ("inbox_applying_seconds".to_owned(), 0.0);
            let orders = BTreeMap::from_iter(ready.into_iter().chain([applying]));
            consumers_are_idle(&Metrics::from([("orders", Some(orders))]))
        };
        assert!(idle(Some(0.0)));
        assert!(!idle(Some(f64::NAN)) && !idle(Some(1.0)) && !idle(None));
        assert!(!consumers_are_idle(&Metrics::from([("orders", None)])));
    }
}
