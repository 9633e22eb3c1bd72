//! The dashboard's panels: whether they have data, whether it moves, and a picture of it.

use std::path::PathBuf;
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
    fn expression(&self) -> String {
        self.expr.replace("$__rate_interval", RATE_WINDOW)
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
            let series = prometheus.query_range(&target.expression(), now() - RECENT, now(), 1.0).await;
            let series =
                series.with_context(|| format!("failed to evaluate a query of {:?}", panel.title))?;
            if series.iter().any(|series| !series.points.is_empty()) {
                with_data += 1;
            } else {
                empty.push(format!("{}: {}", panel.title, target.expr));
            }
        }
    }
    Ok((with_data, empty))
}

/// The panels in which no series has changed since `began`.
pub(super) async fn constant(prometheus: &Prometheus, began: f64) -> Result<Vec<String>> {
    let mut constant = vec![];
    for panel in panels()? {
        let mut moved = false;
        for target in &panel.targets {
            for series in all(prometheus, target, began).await? {
                let mut values = series.points.iter().map(|(_, value)| *value);
                let first = values.next();
                moved |= values.any(|value| Some(value) != first);
            }
        }
        if !moved {
            constant.push(panel.title);
        }
    }
    Ok(constant)
}

async fn all(prometheus: &Prometheus, target: &Target, began: f64) -> Result<Vec<Series>> {
    let step = ((now() - began) / POINTS).max(1.0);
    prometheus.query_range(&target.expression(), began, now(), step).await
}

/// Draws all panels since `began` into one page, and returns its path.
pub(super) async fn draw(prometheus: &Prometheus, began: f64) -> Result<PathBuf> {
    let mut page = String::from(PAGE);
    for panel in panels()? {
        let mut lines = vec![];
        for target in &panel.targets {
            for series in all(prometheus, target, began).await? {
                let points = series.points.iter().map(|(time, value)| (time - began, *value)).collect();
                lines.push((target.legend(&series), points));
            }
        }
        page.push_str(&chart::draw(&panel.title, lines)?);
    }
    let path = paths::home().join("watch/dashboard.html");
    std::fs::write(&path, page).with_context(|| format!("failed to write {}", path.display()))?;
    Ok(path)
}

/// Readable in light and in dark.
const PAGE: &str = "<!doctype html><meta charset=utf-8><title>The dashboard's panels</title>
<style>:root { color-scheme: light dark } body { font-family: sans-serif; display: flex; flex-wrap: wrap }</style>
";
