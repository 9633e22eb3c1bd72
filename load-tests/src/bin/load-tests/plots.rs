//! Pictures of what was measured.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use load_tests::charts::{Bar, draw_columns, draw_lines};
use plotters::prelude::{IntoDrawingArea as _, SVGBackend, SeriesLabelPosition};
use serde::Deserialize;

/// A benchmark's JSON, as far as it is drawn.
#[derive(Debug, Deserialize)]
pub(crate) struct Measured {
    benchmark: String,
    figures: Vec<MeasuredFigure>,
    #[serde(default)]
    curves: Vec<MeasuredCurve>,
}

#[derive(Debug, Deserialize)]
struct MeasuredFigure {
    name: String,
    median: f64,
}

#[derive(Debug, Deserialize)]
struct MeasuredCurve {
    name: String,
    columns: Vec<String>,
    /// What is unknown is null.
    rows: Vec<Vec<Option<f64>>>,
}

const SIZE: (u32, u32) = (760, 380);

/// Draws what the reports have, and returns the paths of the pictures.
pub(crate) fn draw(measured: &[Measured], directory: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("failed to create {}", directory.display()))?;
    let mut drawn = vec![];
    let mut to = |name: &str, draw: &dyn Fn(&Path) -> Result<()>| -> Result<()> {
        let path = directory.join(name).with_extension("svg");
        draw(&path).with_context(|| format!("failed to draw {}", path.display()))?;
        drawn.push(path);
        Ok(())
    };
    for report in measured {
        match report.benchmark.as_str() {
            "cost" => to("cost", &|path| cost(report, path))?,
            "latency" => to("latency", &|path| latency(report, path))?,
            "recovery" => {
                for curve in &report.curves {
                    let name = format!("recovery-{}", curve.name.replace(' ', "-"));
                    to(&name, &|path| recovery(curve, path))?;
                }
            }
            _ => {}
        }
    }
    Ok(drawn)
}

/// Splits `600/s: PostgreSQL` into the load and what was measured at it. In the order of the report.
fn by_load(report: &Measured) -> Vec<(&str, Vec<(&str, f64)>)> {
    let mut loads: Vec<(&str, Vec<(&str, f64)>)> = vec![];
    for figure in &report.figures {
        let Some((load, what)) = figure.name.split_once(": ") else { continue };
        match loads.iter_mut().find(|(known, _)| *known == load) {
            Some((_, values)) => values.push((what, figure.median)),
            None => loads.push((load, vec![(what, figure.median)])),
        }
    }
    loads
}

/// Processor time of an order, one column for each load, one part for each process.
fn cost(report: &Measured, path: &Path) -> Result<()> {
    let loads = by_load(report);
    let mut bars = vec![];
    for (index, (_, parts)) in loads.iter().enumerate() {
        let (left, mut below) = (index as f64 + 0.2, 0.0);
        for (process, value) in parts.iter().filter(|(what, _)| *what != "everything") {
            bars.push((*process, [(left, below), (left + 0.6, below + value)]));
            below += value;
        }
    }
    // Orders are dearest at the lowest rate, which is on the left.
    columns(path, "Processor time of an order (ms)", &loads, &bars, SeriesLabelPosition::UpperRight)
}

/// Milliseconds from the commit, one group of columns for each rate.
fn latency(report: &Measured, path: &Path) -> Result<()> {
    let drawn = [
        "commit → published, p50",
        "commit → published, p99",
        "commit → confirmed, p50",
        "commit → confirmed, p99",
    ];
    let mut loads = by_load(report);
    loads.retain(|(load, _)| load.ends_with("/s"));
    let mut bars = vec![];
    for (part, what) in drawn.into_iter().enumerate() {
        for (index, (_, values)) in loads.iter().enumerate() {
            let left = index as f64 + 0.12 + 0.19 * part as f64;
            let found = values.iter().find(|(name, _)| *name == what);
            bars.extend(found.map(|(_, value)| (what, [(left, 0.0), (left + 0.17, *value)])));
        }
    }
    // The highest rate has the longest times, on the right.
    columns(path, "Milliseconds after the commit", &loads, &bars, SeriesLabelPosition::UpperLeft)
}

/// Two charts with the same seconds. Above: what waits. Below: what is done each second.
fn recovery(curve: &MeasuredCurve, path: &Path) -> Result<()> {
    let root = SVGBackend::new(path, (SIZE.0, 2 * SIZE.1 - 80)).into_drawing_area();
    let (above, below) = root.split_vertically(SIZE.1 - 40);
    for (area, title, drawn) in [
        (&above, "What waits", ["unpublished", "open"]),
        (&below, "What is done each second", ["published/s", "ended/s"]),
    ] {
        let lines = drawn.map(|name| (name.to_owned(), points(curve, name))).into();
        let title = format!("{title} ({})", curve.name);
        draw_lines(area, &title, lines, SeriesLabelPosition::UpperRight)?;
    }
    Ok(root.present()?)
}

fn columns(
    path: &Path,
    title: &str,
    loads: &[(&str, Vec<(&str, f64)>)],
    bars: &[Bar<'_>],
    legend_at: SeriesLabelPosition,
) -> Result<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    let names: Vec<&str> = loads.iter().map(|(load, _)| *load).collect();
    draw_columns(&root, title, &names, bars, legend_at)?;
    Ok(root.present()?)
}

/// The points of a column that are known.
fn points(curve: &MeasuredCurve, name: &str) -> Vec<(f64, f64)> {
    let column = curve.columns.iter().position(|column| column == name);
    let point = |row: &Vec<Option<f64>>| Some(((*row.first()?)?, (*row.get(column?)?)?));
    curve.rows.iter().filter_map(point).collect()
}
