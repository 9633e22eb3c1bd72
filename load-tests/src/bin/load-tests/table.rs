//! Columns of text, aligned, and short numbers.

use std::fmt;

/// Writes rows below their head. Columns named in `right` are aligned to the right.
pub(crate) fn write_table<const COLUMNS: usize>(
    to: &mut fmt::Formatter<'_>,
    head: [&str; COLUMNS],
    right: &[&str],
    rows: &[[String; COLUMNS]],
) -> fmt::Result {
    let lines: Vec<[String; COLUMNS]> =
        std::iter::once(head.map(str::to_owned)).chain(rows.iter().cloned()).collect();
    for line in &lines {
        let mut text = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
            match right.contains(&head[column]) {
                true => text.push_str(&format!("  {cell:>width$}")),
                false => text.push_str(&format!("  {cell:width$}")),
            }
        }
        writeln!(to, "{}", text.trim_end())?;
    }
    Ok(())
}

/// Four digits: more than such measurements are worth, and enough to see a difference.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

pub(crate) fn short_list(values: &[f64]) -> String {
    values.iter().map(|value| short(*value)).collect::<Vec<_>>().join(" ")
}

/// Returns `None` if there is no value.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 { Some(upper) } else { Some((sorted[middle - 1] + upper) / 2.0) }
}
