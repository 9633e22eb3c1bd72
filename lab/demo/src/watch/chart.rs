//! A chart of lines as SVG without a background, in colours that can be told apart on white and on black.

use anyhow::Result;
use plotters::prelude::*;

const SIZE: (u32, u32) = (460, 240);
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

/// Draws lines over seconds: each has a name and its points.
pub(super) fn draw(title: &str, lines: Vec<(String, Vec<(f64, f64)>)>) -> Result<String> {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    let points = || lines.iter().flat_map(|(_, points)| points);
    let right = points().map(|(second, _)| *second).fold(1.0, f64::max);
    let highest = points().map(|(_, value)| *value).fold(0.0, f64::max);
    let top = if highest > 0.0 { highest * 1.05 } else { 1.0 };
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 16, &TEXT))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().bold_line_style(TEXT.mix(0.3)).light_line_style(TRANSPARENT).axis_style(TEXT);
    mesh.label_style(("sans-serif", 12, &TEXT)).x_desc("seconds since the start").draw()?;
    for ((name, points), colour) in lines.into_iter().zip(COLOURS.into_iter().cycle()) {
        let drawn = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        drawn
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
    }
    let mut labels = chart.configure_series_labels();
    labels.position(SeriesLabelPosition::UpperLeft).border_style(TRANSPARENT);
    labels.label_font(("sans-serif", 12, &TEXT)).draw()?;
    drop(chart);
    root.present()?;
    drop(root);
    svg.push('\n');
    Ok(svg)
}
