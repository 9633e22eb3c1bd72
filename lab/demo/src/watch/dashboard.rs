//! The dashboard's panels: whether they have data, whether it moves, and a picture of it.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::paths;

use super::{
    chart,
    prometheus::{Prometheus, Series},
};

const DASHBOARD: &str = include_str!("../../../observe/grafana/dashboard.json");

/// What Grafana puts in place of its variable, which depends on the zoom there.
const RATE_WINDOW: &str = "15s";

/// The most points of a picture.
const POINTS: f64 = 300.0;

/// How far back a panel is evaluated, in seconds.
const RECENT: f64 = 30.0;

#[derive(Deserialize)]
struct Dashboard {
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
struct Panel {
    title: String,
    /// Rows have none.
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Target {
    expr: String,
    legend_format: String,
}

impl Target {
    /// Evaluates the query from this time until now, once a second, or less often if it would be more points.
    async fn read(&self, prometheus: &Prometheus, from: f64) -> Result<Vec<Series>> {
        let expression = self.expr.replace("$__rate_interval", RATE_WINDOW);
        let step = ((now() - from) / POINTS).max(1.0);
        prometheus.query_range(&expression, from, now(), step).await
    }

    /// The name of a series, as Grafana fills it in.
    fn legend(&self, series: &Series) -> String {
        let mut legend = self.legend_format.clone();
        for (name, value) in &series.labels {
            legend = legend.replace(&format!("{{{{{name}}}}}"), value);
        }
        // Where there is nothing to count, a query returns one series without labels.
        if series.labels.is_empty() && legend.contains("{{") { "none".to_owned() } else { legend }
    }
}

fn panels() -> Result<Vec<Panel>> {
    let dashboard: Dashboard = serde_json::from_str(DASHBOARD).context("failed to read the dashboard")?;
    Ok(dashboard.panels.into_iter().filter(|panel| !panel.targets.is_empty()).collect())
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Evaluates every query. Returns how many had data, and those that had none, or only NaN.
pub(super) async fn evaluate(prometheus: &Prometheus) -> Result<(usize, Vec<String>)> {
    let (mut with_data, mut empty) = (0, vec![]);
    for panel in panels()? {
        for target in &panel.targets {
            let series = target.read(prometheus, now() - RECENT).await;
            let series =
                series.with_context(|| format!("failed to evaluate a query of {:?}", panel.title))?;
            if series.iter().any(|series| series.points().next().is_some()) {
                with_data += 1;
            } else {
                empty.push(format!("{}: {}", panel.title, target.expr));
            }
        }
    }
    Ok((with_data, empty))
}

/// Draws all panels since `began` into one page. Returns those in which no series has changed.
pub(super) async fn draw(prometheus: &Prometheus, began: f64) -> Result<Vec<String>> {
    let (mut page, mut constant) = (String::from(PAGE), vec![]);
    for panel in panels()? {
        let mut lines = vec![];
        for target in &panel.targets {
            for series in target.read(prometheus, began).await? {
                let points: Vec<_> = series.points().map(|(time, value)| (time - began, value)).collect();
                lines.push((target.legend(&series), points));
            }
        }
        let is_flat =
            |(_, points): &(String, Vec<(f64, f64)>)| points.windows(2).all(|two| two[0].1 == two[1].1);
        if lines.iter().all(is_flat) {
            constant.push(panel.title.clone());
        }
        page.push_str(&chart::draw(&panel.title, lines)?);
    }
    let path = paths::home().join("watch/dashboard.html");
    std::fs::write(&path, page).with_context(|| format!("failed to write {}", path.display()))?;
    Ok(constant)
}

/// Readable in light and in dark.
const PAGE: &str = "<!doctype html><meta charset=utf-8><title>The dashboard's panels</title>
<style>:root { color-scheme: light dark } body { font-family: sans-serif; display: flex; flex-wrap: wrap }</style>
";
