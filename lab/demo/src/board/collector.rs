//! Reads the running system again and again, and tells every open page.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::running_system::RunningSystem;
use crate::target::Target;

use super::faults::Faults;
use super::load::BoardLoad;
use super::recording::Recorder;
use super::snapshot::{PartState, Snapshot, Summary};
use super::steps::Steps;
use super::twin::Twin;

/// How often the page is told.
const INTERVAL: Duration = Duration::from_millis(500);

/// How long a part may take to answer. A frozen one does not.
const ANSWER_DEADLINE: Duration = Duration::from_millis(900);

/// The pause after a reconciliation is so many times as long as it took: with a million orders it takes seconds, and it should
/// cost the database little.
const PAUSE: u32 = 30;

const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
/// What is on top of the page must not be older than this, whatever it costs.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const RECONCILE_DEADLINE: Duration = Duration::from_secs(20);

/// The services, whose metrics are read, and the other parts.
pub(crate) const SERVICES: [&str; 3] = ["orders", "inventory", "billing"];
const OTHERS: [&str; 3] = ["provider", "broker", "database"];

/// The metrics that the page shows. All others stay where they are.
const SHOWN: [&str; 14] = [
    "outbox_pending",
    "outbox_oldest_pending_age_seconds",
    "outbox_parked",
    "outbox_published_total",
    "outbox_lane_held",
    "inbox_applied_total",
    "inbox_duplicates_total",
    "inbox_dead_letters",
    "inbox_applying_seconds",
    "broker_queue_ready",
    "http_request_seconds_count",
    "http_request_seconds_bucket",
    "orders_open",
    "payments_pending",
];

/// For so long no consumer may have anything to do before an effect that is missing counts as lost: the queues' depths are up
/// to five seconds old.
const IDLE_FOR: Duration = Duration::from_secs(7);

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What the collector reads besides the running system.
pub(crate) struct Sources {
    pub(crate) faults: Arc<Faults>,
    pub(crate) twin: Arc<Twin>,
    pub(crate) steps: Arc<Steps>,
    pub(crate) load: Arc<BoardLoad>,
    pub(crate) recorder: Arc<Recorder>,
}

/// Tells `pages` what is there, until it is dropped.
pub(crate) async fn collect(system: &RunningSystem, sources: &Sources, pages: watch::Sender<Arc<str>>) {
    let (idle, is_idle) = watch::channel(false);
    let (reconciled, latest) = watch::channel(Reconciled::default());
    let reconciling = reconcile(system, &sources.load, &is_idle, reconciled);
    let telling = async {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut busy_at = Instant::now();
        loop {
            tick.tick().await;
            let (parts, metrics) = read(system).await;
            if !SERVICES.iter().all(|service| consumer_is_idle(metrics[service].as_ref())) {
                busy_at = Instant::now();
            }
            idle.send_replace(busy_at.elapsed() > IDLE_FOR);
            let reconciled = latest.borrow().clone();
            let snapshot = Snapshot {
                at: now(),
                parts,
                metrics,
                reconciliation: reconciled.summary,
                unreadable_since: reconciled.unreadable_since,
                unreadable_because: reconciled.unreadable_because,
                load: sources.load.rate(),
                can_act: system.can_act(),
                has_processes: system.has_processes(),
                fault: sources.faults.state(),
                twin: sources.twin.state(),
                steps: sources.steps.state(),
            };
            if let Ok(json) = serde_json::to_string(&snapshot) {
                let json: Arc<str> = json.into();
                sources.recorder.keep(json.clone());
                pages.send_replace(json);
            }
        }
    };
    tokio::join!(reconciling, telling);
}

/// Whether nothing waits in a service's queue, and nothing is being applied. What is unknown is not idle.
fn consumer_is_idle(metrics: Option<&BTreeMap<String, f64>>) -> bool {
    let Some(metrics) = metrics else { return false };
    // The second is not there before the first message.
    metrics.get("broker_queue_ready") == Some(&0.0)
        && metrics.get("inbox_applying_seconds").is_none_or(|seconds| *seconds == 0.0)
}

#[derive(Clone, Default)]
struct Reconciled {
    summary: Option<Summary>,
    unreadable_since: Option<u64>,
    unreadable_because: Option<String>,
}

async fn reconcile(
    system: &RunningSystem,
    load: &BoardLoad,
    is_idle: &watch::Receiver<bool>,
    latest: watch::Sender<Reconciled>,
) {
    let mut usual = Duration::MAX;
    loop {
        let began = Instant::now();
        let idle = *is_idle.borrow();
        let reading = async { system.reconcile(&load.ledger().acknowledged()?).await };
        let read = timeout(RECONCILE_DEADLINE, reading).await.map_err(Into::into).flatten();
        let took = began.elapsed();
        // One that was slow because the database was frozen says nothing about the next.
        usual = took.min(usual.saturating_mul(2));
        let mut pause = (usual * PAUSE).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        latest.send_modify(|latest| match read {
            Ok(read) => {
                let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                let summary = Some(Summary::new(&read, idle, now(), milliseconds));
                *latest = Reconciled { summary, ..Reconciled::default() };
            }
            // The last numbers are no longer shown: nothing is known about them.
            Err(error) => {
                pause = SHORTEST_PAUSE;
                latest.summary = None;
                latest.unreadable_since.get_or_insert_with(now);
                latest.unreadable_because = Some(format!("{error:#}"));
            }
        });
        sleep(pause).await;
    }
}

type Parts = BTreeMap<&'static str, PartState>;
type Metrics = BTreeMap<&'static str, Option<BTreeMap<String, f64>>>;

async fn read(system: &RunningSystem) -> (Parts, Metrics) {
    let pages = SERVICES.map(|service| async move {
        (service, timeout(ANSWER_DEADLINE, system.metrics(service)).await.ok().and_then(Result::ok))
    });
    let answers = OTHERS.map(|part| async move {
        let answers = match part.parse() {
            Ok(target) => system.answers(&target, ANSWER_DEADLINE).await,
            Err(_) => false,
        };
        (part, answers)
    });
    let (pages, answers) =
        tokio::join!(futures_util::future::join_all(pages), futures_util::future::join_all(answers));
    let (mut parts, mut metrics) = (Parts::new(), Metrics::new());
    for (service, page) in pages {
        parts.insert(service, state(system, service, page.is_some()).await);
        metrics.insert(service, page.map(|page| shown(&page)));
    }
    for (part, answers) in answers {
        parts.insert(part, state(system, part, answers).await);
    }
    (parts, metrics)
}

/// A part that answers is up. Of one that does not, the process says more.
async fn state(system: &RunningSystem, part: &'static str, answers: bool) -> PartState {
    if answers {
        return PartState::Up;
    }
    let Ok(target) = part.parse::<Target>() else { return PartState::Unknown };
    match timeout(ANSWER_DEADLINE, system.pid(&target)).await {
        Ok(Ok(Some(_))) => PartState::Frozen,
        Ok(Ok(None)) => PartState::Down,
        Ok(Err(_)) | Err(_) => PartState::Unknown,
    }
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
        let kept = ["status", "le", "lane"].map(|label| label_value(labels, label));
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
                    outbox_pending NaN\nprocess_start_time 7\n";
        let shown = shown(page);
        assert_eq!((shown["inbox_applied_total"], shown["http_request_seconds_bucket:201:0.1"]), (7.0, 5.0));
        assert!(shown["outbox_pending"].is_nan());
        assert_eq!(shown["outbox_lane_held:3"], 1.0);
        assert_eq!(shown.len(), 4);
    }

    #[test]
    fn a_consumer_whose_queue_is_unknown_is_not_idle() {
        let metrics = |ready: f64| {
            BTreeMap::from([
                ("broker_queue_ready".to_owned(), ready),
                ("inbox_applying_seconds".to_owned(), 0.0),
            ])
        };
        assert!(consumer_is_idle(Some(&metrics(0.0))));
        assert!(!consumer_is_idle(Some(&metrics(f64::NAN))) && !consumer_is_idle(Some(&metrics(1.0))));
        assert!(!consumer_is_idle(None) && !consumer_is_idle(Some(&BTreeMap::new())));
    }
}
