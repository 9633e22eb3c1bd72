//! Reads the running system again and again, and tells every open page.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::ledger;
use crate::running_system::RunningSystem;
use crate::target::Target;

use super::faults::Faults;
use super::load::BoardLoad;
use super::snapshot::{PartState, Snapshot, Summary};

/// How often the page is told.
const INTERVAL: Duration = Duration::from_millis(500);

/// How long a part may take to answer. A frozen one does not.
const ANSWER_DEADLINE: Duration = Duration::from_millis(900);

/// The pause after a reconciliation is so many times as long as it took: with a million orders it takes seconds, and it should
/// cost the database next to nothing.
const PAUSE: u32 = 30;

const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const RECONCILE_DEADLINE: Duration = Duration::from_secs(20);

/// The services, whose metrics are read, and the other parts.
pub(crate) const SERVICES: [&str; 3] = ["orders", "inventory", "billing"];
const OTHERS: [&str; 3] = ["provider", "broker", "database"];

/// The metrics that the page shows. All others stay where they are.
const SHOWN: [&str; 16] = [
    "outbox_pending",
    "outbox_oldest_pending_age_seconds",
    "outbox_parked",
    "outbox_published_total",
    "inbox_applied_total",
    "inbox_duplicates_total",
    "inbox_dead_letters",
    "inbox_applying_seconds",
    "broker_queue_ready",
    "broker_connected",
    "http_request_seconds_count",
    "http_request_seconds_bucket",
    "orders_open",
    "orders_oldest_open_seconds",
    "payments_pending",
    "provider_answers_total",
];

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Tells `pages` what is there, until it is dropped.
pub(crate) async fn collect(
    system: &RunningSystem,
    faults: &Faults,
    load: &BoardLoad,
    pages: watch::Sender<Arc<str>>,
) {
    let (reconciled, latest) = watch::channel((None, None));
    let reconciling = reconcile(system, reconciled);
    let telling = async {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let (parts, metrics) = read(system).await;
            let (reconciliation, unreadable_since) = latest.borrow().clone();
            let snapshot = Snapshot {
                at: now(),
                parts,
                metrics,
                reconciliation,
                unreadable_since,
                load: load.rate(),
                can_act: system.can_act(),
                fault: faults.state(),
            };
            if let Ok(json) = serde_json::to_string(&snapshot) {
                pages.send_replace(json.into());
            }
        }
    };
    tokio::join!(reconciling, telling);
}

type Reconciled = (Option<Summary>, Option<u64>);

async fn reconcile(system: &RunningSystem, latest: watch::Sender<Reconciled>) {
    loop {
        let began = Instant::now();
        let read = timeout(RECONCILE_DEADLINE, summary(system)).await.map_err(Into::into).flatten();
        let took = began.elapsed();
        latest.send_modify(|(last, since)| match read {
            Ok(summary) => (*last, *since) = (Some(summary), None),
            // The last numbers are no longer shown: nothing is known about them.
            Err(_) => (*last, *since) = (None, Some(since.unwrap_or_else(now))),
        });
        sleep((took * PAUSE).max(SHORTEST_PAUSE)).await;
    }
}

async fn summary(system: &RunningSystem) -> Result<Summary> {
    let began = Instant::now();
    let acknowledged = ledger::read(&system.ledger_path().await?)?;
    let read = system.reconcile(&acknowledged).await?;
    let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Summary::new(&read, now(), took))
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
        let kept = ["status", "le", "role", "outcome"].map(|label| label_value(labels, label));
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
        let page = "broker_connected{role=\"consumer\"} 1\n# TYPE inbox_applied_total counter\ninbox_applied_total{event_type=\"A\"} 3\n\
                    inbox_applied_total{event_type=\"B\"} 4\nhttp_request_seconds_bucket{status=\"201\",le=\"0.1\"} 5\n\
                    outbox_pending NaN\nprocess_start_time 7\n";
        let shown = shown(page);
        assert_eq!((shown["inbox_applied_total"], shown["http_request_seconds_bucket:201:0.1"]), (7.0, 5.0));
        assert!(shown["outbox_pending"].is_nan());
        assert_eq!(shown["broker_connected:consumer"], 1.0);
        assert_eq!(shown.len(), 4);
    }
}
