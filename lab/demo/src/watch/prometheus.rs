//! A real Prometheus that scrapes a system and evaluates the rules of `lab/observe`, and a real Alertmanager that it tells.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use testbed::guard::GuardedProcess;
use testbed::{eventually, free_port};

use crate::choice::Choice;
use crate::http;
use crate::paths;
use crate::terminal::Terminal;

/// The programs, and the packages of Debian and Ubuntu that they are in.
const PROMETHEUS: &str = "prometheus";
const ALERTMANAGER: &str = "prometheus-alertmanager";

const START_DEADLINE: Duration = Duration::from_secs(60);

/// Both run until it is dropped.
#[derive(Debug)]
pub(crate) struct Prometheus {
    url: String,
    alertmanager_url: String,
    _processes: [GuardedProcess; 2],
}

/// The state of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AlertState {
    /// Its expression is true, and its delay is not over.
    Pending,
    Firing,
}

/// A series of a range query: its labels, and the points that are known, in seconds since 1970.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) points: Vec<(f64, f64)>,
}

#[derive(Deserialize)]
struct Answer<T> {
    data: T,
}

#[derive(Deserialize)]
struct Alerts {
    alerts: Vec<Alert>,
}

#[derive(Deserialize)]
struct Alert {
    labels: BTreeMap<String, String>,
    state: AlertState,
}

/// An alert, as Alertmanager shows it.
#[derive(Deserialize)]
struct Received {
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct QueryResult {
    result: Vec<QuerySeries>,
}

#[derive(Deserialize)]
struct QuerySeries {
    metric: BTreeMap<String, String>,
    #[serde(default)]
    values: Vec<(f64, String)>,
}

impl Prometheus {
    /// Starts both with the configuration of `lab/observe`, in which `targets` replace the services' names in the Compose
    /// network. Returns when all of them were scraped.
    pub(crate) async fn start(
        choice: Choice,
        rules: &str,
        interval: Duration,
        targets: &[(&str, &str)],
        terminal: &Terminal,
    ) -> Result<Self> {
        let folder = paths::home().join("watch/prometheus");
        // The series of an earlier run.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let (address, alertmanager) =
            (format!("127.0.0.1:{}", free_port()?), format!("127.0.0.1:{}", free_port()?));
        let mut targets = targets.to_vec();
        targets.push(("alertmanager:9093", &alertmanager));
        std::fs::write(folder.join("alerts.yaml"), rules)?;
        std::fs::write(folder.join("prometheus.yaml"), configuration(interval, &targets)?)?;
        std::fs::write(folder.join("alertmanager.yaml"), include_str!("../../../observe/alertmanager.yaml"))?;

        let mut command = Command::new(program(ALERTMANAGER, choice, terminal).await?);
        command.args([
            "--config.file=alertmanager.yaml",
            "--storage.path=alertmanager",
            // Without its cluster: it would listen on every address of this machine.
            "--cluster.listen-address=",
            &format!("--web.listen-address={alertmanager}"),
        ]);
        let alerting = start(command, &folder, "alertmanager.log")?;
        let mut command = Command::new(program(PROMETHEUS, choice, terminal).await?);
        command.args([
            "--config.file=prometheus.yaml",
            "--storage.tsdb.path=data",
            &format!("--web.listen-address={address}"),
        ]);
        let scraping = start(command, &folder, "prometheus.log")?;
        let prometheus = Self {
            url: format!("http://{address}"),
            alertmanager_url: format!("http://{alertmanager}"),
            _processes: [scraping, alerting],
        };
        let [scraping, _] = &prometheus._processes;
        let scraped = format!("count(up == 1) == {}", targets.len() - 1);
        eventually("Prometheus to scrape all services", START_DEADLINE, async || {
            Ok((!prometheus.query(&scraped).await?.is_empty()).then_some(()))
        })
        .await
        .with_context(|| scraping.log_tail())?;
        let [_, alerting] = &prometheus._processes;
        eventually("Alertmanager", START_DEADLINE, async || prometheus.received_alerts().await.map(Some))
            .await
            .with_context(|| alerting.log_tail())?;
        Ok(prometheus)
    }

    /// The alerts that are pending or firing, by name. One that fires for any series counts as firing.
    pub(crate) async fn alerts(&self) -> Result<BTreeMap<String, AlertState>> {
        let alerts: Alerts = self.get("alerts", &[]).await?;
        let mut states = BTreeMap::new();
        for Alert { mut labels, state } in alerts.alerts {
            let name = labels.remove("alertname").context("an alert has no name")?;
            let known = states.entry(name).or_insert(state);
            if state == AlertState::Firing {
                *known = state;
            }
        }
        Ok(states)
    }

    /// The names of the alerts that Alertmanager has, also of those that it inhibits.
    pub(crate) async fn received_alerts(&self) -> Result<Vec<String>> {
        let url = format!("{}/api/v2/alerts", self.alertmanager_url);
        let received: Vec<Received> =
            http::client()?.get(url).send().await?.error_for_status()?.json().await?;
        Ok(received.into_iter().filter_map(|mut alert| alert.labels.remove("alertname")).collect())
    }

    /// The labels of the series that an expression has now.
    pub(crate) async fn query(&self, expression: &str) -> Result<Vec<BTreeMap<String, String>>> {
        let found: QueryResult = self.get("query", &[("query", expression)]).await?;
        Ok(found.result.into_iter().map(|series| series.metric).collect())
    }

    /// The values of an expression between two times, in seconds since 1970. What is NaN is left out.
    pub(crate) async fn query_range(
        &self,
        expression: &str,
        from: f64,
        to: f64,
        step: f64,
    ) -> Result<Vec<Series>> {
        let (from, to, step) = (from.to_string(), to.to_string(), step.to_string());
        let parameters = [("query", expression), ("start", &from), ("end", &to), ("step", &step)];
        let found: QueryResult = self.get("query_range", &parameters).await?;
        let series = found.result.into_iter().map(|QuerySeries { metric, values }| {
            let known = |(time, value): (f64, String)| {
                let value: f64 = value.parse().ok()?;
                value.is_finite().then_some((time, value))
            };
            Series { labels: metric, points: values.into_iter().filter_map(known).collect() }
        });
        Ok(series.collect())
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, parameters: &[(&str, &str)]) -> Result<T> {
        let url = reqwest::Url::parse_with_params(&format!("{}/api/v1/{path}", self.url), parameters)?;
        let response = http::client()?.get(url).send().await?;
        let (status, body) = (response.status(), response.text().await?);
        ensure!(status.is_success(), "Prometheus answered {status}: {body}");
        let answer: Answer<T> = serde_json::from_str(&body)?;
        Ok(answer.data)
    }
}

/// Finds a program in the search path, or installs the package of the same name.
async fn program(name: &str, choice: Choice, terminal: &Terminal) -> Result<PathBuf> {
    let find = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
        found.with_context(|| format!("{name} is not installed: `apt-get install -y {name}`"))
    };
    match find() {
        Ok(found) => Ok(found),
        Err(missing) => {
            choice.install(name, missing, terminal).await?;
            find()
        }
    }
}

fn start(mut command: Command, folder: &Path, log: &str) -> Result<GuardedProcess> {
    command.current_dir(folder);
    GuardedProcess::spawn(&command, &folder.join(log))
}

fn configuration(interval: Duration, targets: &[(&str, &str)]) -> Result<String> {
    let mut text = include_str!("../../../observe/prometheus.yaml").to_owned();
    for what in ["scrape_interval", "evaluation_interval"] {
        text = replace(&text, &format!("{what}: 5s"), &format!("{what}: {}s", interval.as_secs()))?;
    }
    for (in_compose, here) in targets {
        text = replace(&text, in_compose, here.trim_start_matches("http://"))?;
    }
    Ok(text)
}

/// A text that is no longer there would leave Prometheus without a target.
fn replace(text: &str, from: &str, to: &str) -> Result<String> {
    ensure!(text.contains(from), "lab/observe/prometheus.yaml has no {from:?}");
    Ok(text.replace(from, to))
}
