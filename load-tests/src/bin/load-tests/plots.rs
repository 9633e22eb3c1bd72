//! Pictures of what was measured: SVG without a background, in colours that can be told apart on white and on black.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use plotters::prelude::*;
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
const TEXT: RGBColor = RGBColor(125, 133, 144);
const COLOURS: [RGBColor; 7] = [
    RGBColor(59, 130, 246),
    RGBColor(240, 136, 62),
    RGBColor(46, 160, 67),
    RGBColor(163, 113, 247),
    RGBColor(248, 81, 73),
    RGBColor(27, 158, 158),
    RGBColor(212, 160, 23),
];

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
    let loads: Vec<(&str, Vec<(&str, f64)>)> = by_load(report)
        .into_iter()
        .map(|(load, values)| (load, values.into_iter().filter(|(what, _)| *what != "everything").collect()))
        .collect();
    let highest =
        loads.iter().map(|(_, parts)| parts.iter().map(|(_, value)| value).sum()).fold(0.0, f64::max);
    let names: Vec<&str> = loads.iter().map(|(load, _)| *load).collect();
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    let mut chart = columns(&root, "Processor time of an order (ms)", names.len(), 0.0, highest * 1.05)?;
    let mut colours: BTreeMap<&str, RGBColor> = BTreeMap::new();
    for (index, (_, parts)) in loads.iter().enumerate() {
        let mut below = 0.0;
        for (process, value) in parts {
            let next = COLOURS[colours.len() % COLOURS.len()];
            let is_new = !colours.contains_key(process);
            let colour = *colours.entry(process).or_insert(next);
            let left = index as f64 + 0.2;
            let bar = Rectangle::new([(left, below), (left + 0.6, below + value)], colour.filled());
            let series = chart.draw_series(std::iter::once(bar))?;
            if is_new {
                series.label((*process).to_owned()).legend(move |(x, y)| swatch(x, y, colour));
            }
            below += value;
        }
    }
    // Orders are dearest at the lowest rate, which is on the left.
    finish_columns(&root, &mut chart, &names, SeriesLabelPosition::UpperRight)
}

/// Milliseconds from the commit, one group of columns for each rate.
fn latency(report: &Measured, path: &Path) -> Result<()> {
    let drawn = [
        "commit → published, p50",
        "commit → published, p99",
        "commit → confirmed, p50",
        "commit → confirmed, p99",
    ];
    let loads = by_load(report);
    let loads: Vec<_> = loads.iter().filter(|(load, _)| load.ends_with("/s")).collect();
    let value =
        |values: &[(&str, f64)], what| values.iter().find(|(name, _)| *name == what).map(|(_, value)| *value);
    let all =
        || loads.iter().flat_map(|(_, values)| drawn.iter().filter_map(move |what| value(values, *what)));
    let highest = all().fold(0.0, f64::max);
    let names: Vec<&str> = loads.iter().map(|(load, _)| *load).collect();
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    let mut chart = columns(&root, "Milliseconds after the commit", names.len(), 0.0, highest * 1.05)?;
    for (part, what) in drawn.into_iter().enumerate() {
        let colour = COLOURS[part];
        let bars = loads.iter().enumerate().filter_map(|(index, (_, values))| {
            let left = index as f64 + 0.12 + 0.19 * part as f64;
            Some(Rectangle::new([(left, 0.0), (left + 0.17, value(values, what)?)], colour.filled()))
        });
        chart.draw_series(bars)?.label(what).legend(move |(x, y)| swatch(x, y, colour));
    }
    // The longest times are those of the highest rate, on the right.
    finish_columns(&root, &mut chart, &names, SeriesLabelPosition::UpperLeft)
}

/// Above: what waits. Below: what is done each second.
fn recovery(curve: &MeasuredCurve, path: &Path) -> Result<()> {
    let above = ("What waits", ["unpublished", "open"].as_slice());
    let below = ("What is done each second", ["published/s", "ended/s"].as_slice());
    over_time(curve, path, [above, below])
}

/// Two charts, one below the other, with the same seconds: each a title and the columns of its lines.
fn over_time(curve: &MeasuredCurve, path: &Path, charts: [(&str, &[&str]); 2]) -> Result<()> {
    let root = SVGBackend::new(path, (SIZE.0, 2 * SIZE.1 - 80)).into_drawing_area();
    let (above, below) = root.split_vertically(SIZE.1 - 40);
    for (area, (title, drawn)) in [&above, &below].into_iter().zip(charts) {
        let lines: Vec<(&str, Vec<(f64, f64)>)> =
            drawn.iter().map(|name| (*name, points(curve, name))).collect();
        let all = || lines.iter().flat_map(|(_, points)| points);
        let right = all().map(|(second, _)| *second).fold(1.0, f64::max);
        let top = all().map(|(_, value)| *value).fold(1.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{title} ({})", curve.name), ("sans-serif", 16, &TEXT))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..right, 0.0..top * 1.05)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(TEXT.mix(0.3))
            .light_line_style(TRANSPARENT)
            .axis_style(TEXT)
            .label_style(("sans-serif", 12, &TEXT))
            .x_desc("seconds since the start")
            .draw()?;
        for (index, (name, points)) in lines.into_iter().enumerate() {
            let colour = COLOURS[index];
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| swatch(x, y, colour));
        }
        legend(&mut chart, SeriesLabelPosition::UpperRight)?;
    }
    Ok(root.present()?)
}

/// The points of a column that are known.
fn points(curve: &MeasuredCurve, name: &str) -> Vec<(f64, f64)> {
    let column = curve.columns.iter().position(|column| column == name);
    let point = |row: &Vec<Option<f64>>| Some(((*row.first()?)?, (*row.get(column?)?)?));
    curve.rows.iter().filter_map(point).collect()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a> = ChartContext<
    'a,
    SVGBackend<'a>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

/// A chart of `count` columns, each one wide.
fn columns<'a>(root: &Area<'a>, title: &str, count: usize, from: f64, to: f64) -> Result<Chart<'a>> {
    let mut chart = ChartBuilder::on(root)
        .caption(title, ("sans-serif", 16, &TEXT))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..count as f64, from..to)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .bold_line_style(TEXT.mix(0.3))
        .light_line_style(TRANSPARENT)
        .axis_style(TEXT)
        .label_style(("sans-serif", 12, &TEXT))
        .draw()?;
    Ok(chart)
}

/// Writes the names below the columns, and what their colours mean.
fn finish_columns<'a>(
    root: &Area<'a>,
    chart: &mut Chart<'a>,
    names: &[&str],
    legend_at: SeriesLabelPosition,
) -> Result<()> {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    let style = ("sans-serif", 12, &TEXT).into_text_style(root).pos(Pos::new(HPos::Center, VPos::Top));
    for (index, name) in names.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(index as f64 + 0.5, 0.0));
        root.draw(&Text::new((*name).to_owned(), (x, y + 8), style.clone()))?;
    }
    legend(chart, legend_at)?;
    Ok(root.present()?)
}

fn legend<'a>(chart: &mut Chart<'a>, position: SeriesLabelPosition) -> Result<()> {
    chart
        .configure_series_labels()
        .position(position)
        .label_font(("sans-serif", 12, &TEXT))
        .border_style(TRANSPARENT)
        .draw()?;
    Ok(())
}

fn swatch(x: i32, y: i32, colour: RGBColor) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled())
}
