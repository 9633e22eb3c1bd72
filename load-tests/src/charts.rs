//! Charts as SVG without a background, in colours that can be told apart on white and on black.

use anyhow::Result;
use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

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

/// Where a chart is drawn.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The series that a bar belongs to, and its lower left and upper right corner.
pub type Bar<'a> = (&'a str, [(f64, f64); 2]);

/// Draws lines over seconds: each has a name and its points.
///
/// # Errors
/// When the chart cannot be drawn.
pub fn draw_lines(
    area: &Area<'_>,
    title: &str,
    lines: Vec<(String, Vec<(f64, f64)>)>,
    legend_at: SeriesLabelPosition,
) -> Result<()> {
    let all = || lines.iter().flat_map(|(_, points)| points);
    let right = all().map(|(second, _)| *second).fold(1.0, f64::max);
    let top = all().map(|(_, value)| *value).fold(0.0, f64::max);
    let mut chart = chart(area, title, right, top, Some("seconds since the start"))?;
    for ((name, points), colour) in lines.into_iter().zip(COLOURS.into_iter().cycle()) {
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| swatch(x, y, colour));
    }
    legend(&mut chart, legend_at)
}

/// Draws bars, with the name of each column, which is one wide, below it.
///
/// # Errors
/// When the chart cannot be drawn.
pub fn draw_columns(
    area: &Area<'_>,
    title: &str,
    names: &[&str],
    bars: &[Bar<'_>],
    legend_at: SeriesLabelPosition,
) -> Result<()> {
    let highest = bars.iter().map(|(_, [_, (_, top)])| *top).fold(0.0, f64::max);
    let mut chart = chart(area, title, names.len() as f64, highest, None)?;
    let mut series: Vec<&str> = vec![];
    for (name, corners) in bars {
        let known = series.iter().position(|known| known == name);
        let colour = COLOURS[known.unwrap_or(series.len()) % COLOURS.len()];
        let drawn = chart.draw_series(std::iter::once(Rectangle::new(*corners, colour.filled())))?;
        if known.is_none() {
            series.push(name);
            drawn.label(*name).legend(move |(x, y)| swatch(x, y, colour));
        }
    }
    let style = ("sans-serif", 12, &TEXT).into_text_style(area).pos(Pos::new(HPos::Center, VPos::Top));
    for (index, name) in names.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(index as f64 + 0.5, 0.0));
        area.draw(&Text::new((*name).to_owned(), (x, y + 8), style.clone()))?;
    }
    legend(&mut chart, legend_at)
}

/// An empty chart from 0 to `right` and to a little more than `top`. Without `below` the horizontal axis has no numbers.
fn chart<'a>(area: &Area<'a>, title: &str, right: f64, top: f64, below: Option<&str>) -> Result<Chart<'a>> {
    let top = if top > 0.0 { top * 1.05 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16, &TEXT))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh()
        .bold_line_style(TEXT.mix(0.3))
        .light_line_style(TRANSPARENT)
        .axis_style(TEXT)
        .label_style(("sans-serif", 12, &TEXT));
    match below {
        Some(text) => mesh.x_desc(text).draw()?,
        None => mesh.disable_x_axis().draw()?,
    }
    Ok(chart)
}

fn legend<'a>(chart: &mut Chart<'a>, position: SeriesLabelPosition) -> Result<()> {
    let mut labels = chart.configure_series_labels();
    labels.position(position).label_font(("sans-serif", 12, &TEXT)).border_style(TRANSPARENT);
    Ok(labels.draw()?)
}

fn swatch(x: i32, y: i32, colour: RGBColor) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled())
}
