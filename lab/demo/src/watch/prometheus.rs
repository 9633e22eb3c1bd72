//! A real Prometheus that scrapes a system and evaluates the rules of `lab/observe`, and a real Alertmanager that it tells.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
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

/// A series of a range query.
#[derive(Deserialize)]
pub(crate) struct Series {
    #[serde(rename = "metric")]
    pub(crate) labels: BTreeMap<String, String>,
    values: Vec<(f64, String)>,
}

impl Series {
    /// The points that are known, in seconds since 1970. What is NaN is left out.
    pub(crate) fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.values.iter().filter_map(|(time, value)| {
            let value: f64 = value.parse().ok()?;
            value.is_finite().then_some((*time, value))
        })
    }
}

/// An alert, as Prometheus shows it, or Alertmanager, which has its state elsewhere.
#[derive(Deserialize)]
struct Alert {
    labels: AlertLabels,
    /// `pending`: its expression is true, and its delay is not over. Then `firing`.
    #[serde(default)]
    state: String,
    #[serde(default)]
    status: AlertStatus,
}

/// Alertmanager's.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AlertStatus {
    inhibited_by: Vec<String>,
}

#[derive(Deserialize)]
struct AlertLabels {
    alertname: String,
}

impl Prometheus {
    /// Starts both with the configuration of `lab/observe`, in which the addresses of each job's instances replace the names
    /// in the Compose network. Returns when all of them were scraped.
    pub(crate) async fn start(
        choice: Choice,
        rules: &str,
        interval: Duration,
        jobs: &[(&str, Vec<&str>)],
        terminal: &Terminal,
    ) -> Result<Self> {
        let folder = paths::home().join("watch/prometheus");
        // The series of an earlier run.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let (address, alertmanager) =
            (format!("127.0.0.1:{}", free_port()?), format!("127.0.0.1:{}", free_port()?));
        std::fs::write(folder.join("alerts.yaml"), rules)?;
        std::fs::write(folder.join("prometheus.yaml"), configuration(interval, jobs, &alertmanager)?)?;
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
        let instances: usize = jobs.iter().map(|(_, addresses)| addresses.len()).sum();
        let scraped = format!("count(up == 1) == {instances}");
        eventually("Prometheus to scrape all services", START_DEADLINE, async || {
            let found: Vec<Value> = prometheus.get("query", &[("query", &scraped)], "result").await?;
            Ok((!found.is_empty()).then_some(()))
        })
        .await
        .with_context(|| scraping.log_tail())?;
        let [_, alerting] = &prometheus._processes;
        eventually("Alertmanager", START_DEADLINE, async || prometheus.received_alerts().await.map(Some))
            .await
            .with_context(|| alerting.log_tail())?;
        Ok(prometheus)
    }

    /// The alerts that are pending or firing, by name, and whether they fire. One that fires for any series counts as firing.
    pub(crate) async fn alerts(&self) -> Result<BTreeMap<String, bool>> {
        let alerts: Vec<Alert> = self.get("alerts", &[], "alerts").await?;
        let mut fires = BTreeMap::new();
        for Alert { labels, state, .. } in alerts {
            *fires.entry(labels.alertname).or_default() |= state == "firing";
        }
        Ok(fires)
    }

    /// The names of the alerts that Alertmanager has, and whether it inhibits them.
    pub(crate) async fn received_alerts(&self) -> Result<Vec<(String, bool)>> {
        let url = format!("{}/api/v2/alerts", self.alertmanager_url);
        let received: Vec<Alert> = http::client()?.get(url).send().await?.error_for_status()?.json().await?;
        let name = |alert: Alert| (alert.labels.alertname, !alert.status.inhibited_by.is_empty());
        Ok(received.into_iter().map(name).collect())
    }

    /// The values of an expression between two times, in seconds since 1970.
    pub(crate) async fn query_range(
        &self,
        expression: &str,
        from: f64,
        to: f64,
        step: f64,
    ) -> Result<Vec<Series>> {
        let (from, to, step) = (from.to_string(), to.to_string(), step.to_string());
        let parameters = [("query", expression), ("start", &from), ("end", &to), ("step", &step)];
        self.get("query_range", &parameters, "result").await
    }

    /// Reads a list of the HTTP API, which is in this field of the answer's data.
    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        parameters: &[(&str, &str)],
        field: &str,
    ) -> Result<Vec<T>> {
        let url = reqwest::Url::parse_with_params(&format!("{}/api/v1/{path}", self.url), parameters)?;
        let response = http::client()?.get(url).send().await?;
        let (status, body) = (response.status(), response.text().await?);
        ensure!(status.is_success(), "Prometheus answered {status}: {body}");
        let mut answer: Value = serde_json::from_str(&body)?;
        Ok(serde_json::from_value(answer["data"][field].take())?)
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

fn configuration(interval: Duration, jobs: &[(&str, Vec<&str>)], alertmanager: &str) -> Result<String> {
    let mut text = include_str!("../../../observe/prometheus.yaml").to_owned();
    for what in ["scrape_interval", "evaluation_interval"] {
        text = replace(&text, &format!("{what}: 5s"), &format!("{what}: {}s", interval.as_secs()))?;
    }
    for (job, addresses) in jobs {
        let job = format!("dns_sd_configs: [{{ names: [{job}], ");
        let end = text.split_once(&job).and_then(|(_, rest)| rest.lines().next()).unwrap_or_default();
        let found = format!("{job}{end}");
        let addresses: Vec<_> = addresses.iter().map(|url| url.trim_start_matches("http://")).collect();
        text = replace(&text, &found, &format!("static_configs: [{{ targets: {addresses:?} }}]"))?;
    }
    replace(&text, "alertmanager:9093", alertmanager)
}

/// A text that is no longer there would leave Prometheus without a target.
fn replace(text: &str, from: &str, to: &str) -> Result<String> {
    ensure!(text.contains(from), "lab/observe/prometheus.yaml has no {from:?}");
    Ok(text.replace(from, to))
}
