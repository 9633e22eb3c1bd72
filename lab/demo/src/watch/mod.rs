//! Watches a system with a real Prometheus: the dashboard's queries, the alerts in a calm system, and each alert under a
//! fault that fires it.

mod cases;
mod chart;
mod dashboard;
mod prometheus;
mod rules;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::choice::Choice;
use crate::lab::Setup;
use crate::load::RunningLoad;
use crate::own_system::OwnSystem;
use crate::paths;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;

use cases::{CASES, Case};
use prometheus::Prometheus;

/// How a system is watched.
#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// Divide all delays, windows and thresholds of the alerts by twenty: four minutes.
    #[arg(long)]
    pub(crate) fast: bool,
    /// How long the system is left alone first; no alert may fire meanwhile.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    calm: Duration,
    /// Inject only the fault that fires this alert.
    #[arg(long, value_name = "ALERT")]
    only: Option<String>,
    /// Orders per second.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
}

/// What was seen.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Watched {
    /// Alerts that fired in a calm system.
    pub(crate) false_alarms: Vec<String>,
    pub(crate) fired: Vec<Fired>,
    /// Panels of the dashboard without data.
    pub(crate) empty_panels: Vec<String>,
    /// Queries of the dashboard that had data.
    pub(crate) queries: usize,
    /// Panels whose values did not change in all that time.
    pub(crate) constant_panels: Vec<String>,
}

/// An alert under the fault that is meant to fire it.
#[derive(Debug, Serialize)]
pub(crate) struct Fired {
    pub(crate) alert: &'static str,
    pub(crate) fault: &'static str,
    /// Seconds from the fault until its rule is expected to fire, and until when it may.
    pub(crate) stated: f64,
    pub(crate) at_the_latest: f64,
    /// Whether Alertmanager is to inhibit it, because another alert of the case explains it.
    pub(crate) inhibited: bool,
    /// Seconds until it fired, and until Alertmanager had it, inhibited or not as is expected. `None`: not in that time.
    pub(crate) after: Option<f64>,
    pub(crate) received_after: Option<f64>,
}

/// How much later than stated an alert may fire: the interval of scraping and of evaluating, and a busy machine.
const TOLERANCE: Duration = Duration::from_secs(60);
const TOLERANCE_WHEN_FAST: Duration = Duration::from_secs(30);

/// It shows that alerts are evaluated.
const ALWAYS_FIRES: &str = "Watchdog";

/// How long a fault lasts that fires no alert.
const HOLD: Duration = Duration::from_secs(15);

const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How long the alerts of a case may take to end before it begins: the longest window, and some.
const INACTIVE_DEADLINE: Duration = Duration::from_secs(600);

/// How long a calm system runs before the dashboard's queries are evaluated: the windows of `rate` must fill.
const WARM_UP: Duration = Duration::from_secs(20);

impl Watch {
    /// Starts a system for it and watches. `None`: interrupted.
    pub(crate) async fn run(&self, choice: Choice, terminal: &Terminal) -> Result<Option<Watched>> {
        let fires = |case: &&Case| match &self.only {
            Some(alert) => case.alerts.iter().any(|expected| expected.alert == alert),
            None => true,
        };
        let cases: Vec<_> = CASES.iter().filter(fires).collect();
        ensure!(!cases.is_empty(), "failed to choose a fault: no fault fires that alert");
        // Shorter than a case with the provider away lasts, longer than all others.
        let limit = Duration::from_secs(180 / self.scale());
        let setup = Setup::default().with("ORDERS_ANSWER_WITHIN", format!("{}s", limit.as_secs()));
        // Of two order services one is killed.
        let setup = setup.with_instances(2, 1, 1);
        let own = OwnSystem::from(setup);
        let logs = paths::home().join("watch/logs");
        let work = async |system: &RunningSystem| self.watch(system, &cases, choice, terminal).await;
        RunningSystem::with_own(choice, own, logs, terminal, work).await
    }

    async fn watch(
        &self,
        system: &RunningSystem,
        cases: &[&'static Case],
        choice: Choice,
        terminal: &Terminal,
    ) -> Result<Watched> {
        let rules = rules::rules(self.scale())?;
        let delays = rules::delays(&rules)?;
        let interval = Duration::from_secs(if self.fast { 1 } else { 5 });
        let addresses = system.addresses()?;
        let jobs = [
            ("orders", vec![addresses.orders_url.as_str(), system.url("orders-2")?]),
            ("inventory", vec![addresses.inventory_url.as_str()]),
            ("billing", vec![addresses.billing_url.as_str()]),
            // The broker of this machine publishes no metrics.
            ("rabbitmq", vec![]),
        ];
        let prometheus = Prometheus::start(choice, &rules, interval, &jobs, terminal).await?;
        let load = load_tests::Load::new(system.orders_url(), self.rate, Duration::MAX);
        let mut load = RunningLoad::start(load, system.ledger().await?.recorder());
        let began = dashboard::now();

        let mut watched = Watched::default();
        terminal.print(format!("{} orders a second, and nothing else, for {:?} …", self.rate, self.calm));
        sleep(WARM_UP.min(self.calm)).await;
        (watched.queries, watched.empty_panels) = dashboard::evaluate(&prometheus).await?;
        watched.false_alarms = self.stay_calm(&prometheus, terminal).await?;
        for case in cases {
            watched.fired.extend(self.try_case(case, system, &prometheus, &delays, terminal).await?);
        }
        let constant = dashboard::draw(&prometheus, began).await?;
        if self.only.is_none() {
            watched.constant_panels = constant;
        }
        load.stop().await?;
        Ok(watched)
    }

    /// By how much delays, windows and thresholds of the rules are divided.
    pub(crate) fn scale(&self) -> u64 {
        if self.fast { 20 } else { 1 }
    }

    fn tolerance(&self) -> Duration {
        if self.fast { TOLERANCE_WHEN_FAST } else { TOLERANCE }
    }

    async fn stay_calm(&self, prometheus: &Prometheus, terminal: &Terminal) -> Result<Vec<String>> {
        let end = Instant::now() + self.calm;
        let mut false_alarms = vec![];
        while Instant::now() < end {
            for (alert, fires) in prometheus.alerts().await? {
                if fires && alert != ALWAYS_FIRES && !false_alarms.contains(&alert) {
                    terminal.print(format!("  {alert} fires in a calm system"));
                    false_alarms.push(alert);
                }
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(false_alarms)
    }

    /// Injects the fault of a case, waits for its alerts, and repairs.
    async fn try_case(
        &self,
        case: &'static Case,
        system: &RunningSystem,
        prometheus: &Prometheus,
        delays: &BTreeMap<String, Duration>,
        terminal: &Terminal,
    ) -> Result<Vec<Fired>> {
        self.await_inactive(case, prometheus).await?;
        terminal.print(format!("{} …", case.what));
        let began = Instant::now();
        let mut injected = vec![];
        for fault in case.faults {
            let fault = fault.inject(system).await;
            injected.push(fault.with_context(|| format!("failed to inject: {}", case.what))?);
        }
        if case.alerts.is_empty() {
            sleep(HOLD).await;
        }
        let mut fired: Vec<Fired> = vec![];
        for expected in case.alerts {
            let delay =
                delays.get(expected.alert).with_context(|| format!("there is no rule {}", expected.alert))?;
            let stated = expected.true_after as f64 / self.scale() as f64 + delay.as_secs_f64();
            fired.push(Fired {
                alert: expected.alert,
                fault: case.what,
                stated,
                inhibited: expected.inhibited,
                at_the_latest: stated + self.tolerance().as_secs_f64(),
                after: None,
                received_after: None,
            });
        }
        let latest = fired.iter().map(|fired| fired.stated).fold(0.0, f64::max);
        let deadline = began + Duration::from_secs_f64(latest) + self.tolerance();
        while fired.iter().any(|fired| fired.received_after.is_none()) && Instant::now() < deadline {
            let (alerts, received) = (prometheus.alerts().await?, prometheus.received_alerts().await?);
            let after = began.elapsed().as_secs_f64();
            for fired in fired.iter_mut().filter(|fired| fired.after.is_none()) {
                if alerts.get(fired.alert) == Some(&true) {
                    terminal.print(format!(
                        "  {} after {after:.0} s (stated: {:.0} s)",
                        fired.alert, fired.stated
                    ));
                    fired.after = Some(after);
                }
            }
            // All at the same time: an alert that is not inhibited yet shows nothing.
            for fired in &mut fired {
                let as_expected = |(alert, inhibited): &(String, bool)| {
                    alert == fired.alert && *inhibited == fired.inhibited
                };
                fired.received_after =
                    received.iter().any(as_expected).then(|| fired.received_after.unwrap_or(after));
            }
            sleep(POLL_INTERVAL).await;
        }
        for missing in fired.iter().filter(|fired| fired.after.is_none()) {
            let active: Vec<_> = prometheus.alerts().await?.into_keys().collect();
            terminal.print(format!("  {} did not fire; active are: {}", missing.alert, active.join(", ")));
        }
        for injected in injected.into_iter().rev() {
            let repaired = injected.repair(system).await;
            repaired.with_context(|| format!("failed to repair: {}", case.what))?;
        }
        Ok(fired)
    }

    /// An alert that is still firing from an earlier fault would say nothing about this one.
    async fn await_inactive(&self, case: &Case, prometheus: &Prometheus) -> Result<()> {
        testbed::eventually("the alerts to end", INACTIVE_DEADLINE, async || {
            let alerts = prometheus.alerts().await?;
            let names = case.alerts.iter().map(|expected| expected.alert);
            let active: Vec<_> = names.filter(|name| alerts.contains_key(*name)).collect();
            ensure!(active.is_empty(), "{} active", active.join(", "));
            Ok(Some(()))
        })
        .await
    }
}

impl Fired {
    /// What is wrong: it must fire in time, and Alertmanager must receive it.
    fn problem(&self) -> Option<String> {
        let Self { alert, fault, at_the_latest, inhibited, .. } = self;
        match (self.after, self.received_after) {
            (None, _) => Some(format!("{alert} did not fire: {fault}")),
            (Some(after), _) if after > *at_the_latest => {
                Some(format!("{alert} fired after {after:.0} s, later than {at_the_latest:.0} s: {fault}"))
            }
            (_, None) => Some(format!("Alertmanager has no {alert} with inhibited={inhibited}: {fault}")),
            _ => None,
        }
    }
}

impl Watched {
    /// Everything that is not as it should be.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems: Vec<_> = self.fired.iter().filter_map(Fired::problem).collect();
        problems.extend(self.false_alarms.iter().map(|alert| format!("{alert} fired in a calm system")));
        problems.extend(self.empty_panels.iter().map(|panel| format!("no data: {panel}")));
        problems.extend(self.constant_panels.iter().map(|panel| format!("it never changes: {panel}")));
        problems
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The watched system polls, and its operators leave the broker alone. The drills of the log relay and the tests of
    /// `rabbitmq` look at the metrics of these rules, and promtool evaluates them.
    const NOT_WATCHED: [&str; 12] = [
        ALWAYS_FIRES,
        "BrokerDiskFull",
        "BrokerMemoryAlarm",
        "ConnectionsFull",
        "LogRelayHalted",
        "LogSlotLags",
        "LogSlotNearlyLost",
        "QueueRecreated",
        // After an hour.
        "SnapshotOld",
        "TelemetryDropped",
        "UnroutableNotReturned",
        "VolumeNearlyFull",
    ];

    #[test]
    fn every_rule_has_a_fault_that_fires_it() -> Result<()> {
        let mut rules: BTreeSet<String> = rules::delays(&rules::rules(1)?)?.into_keys().collect();
        for alert in NOT_WATCHED {
            assert!(rules.remove(alert), "no rule {alert}");
        }
        let fired = CASES.iter().flat_map(|case| case.alerts).map(|expected| expected.alert.to_owned());
        assert_eq!(rules, fired.collect::<BTreeSet<_>>());
        Ok(())
    }
}
