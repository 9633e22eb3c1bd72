//! The figures of two builds, side by side.

use std::{collections::BTreeMap, fmt};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::table::{median, short, short_list, write_table};

/// The two builds that are compared.
pub(crate) const BUILDS: [&str; 2] = ["old", "new"];

/// The figures of all runs so far, in the order in which the benchmarks print them.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    rows: Vec<Row>,
    /// Whether any run was a smoke run, whose figures mean nothing.
    smoke: bool,
}

#[derive(Debug)]
struct Row {
    /// The benchmark, the figure and its unit.
    name: [String; 3],
    /// The median that each run of each build reported, by round.
    medians: [BTreeMap<u32, f64>; 2],
}

/// What is read of a benchmark's JSON.
#[derive(Deserialize)]
struct ReportRead {
    #[serde(default)]
    smoke: bool,
    figures: Vec<FigureRead>,
}

#[derive(Deserialize)]
struct FigureRead {
    name: String,
    unit: String,
    median: f64,
}

/// One figure of both builds, as it is printed. A build that does not have the figure has no median.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Compared<'a> {
    benchmark: &'a str,
    figure: &'a str,
    unit: &'a str,
    old: Option<f64>,
    new: Option<f64>,
    /// The new median divided by the old one.
    ratio: Option<f64>,
    /// The same for each round that both builds have.
    ratios: Vec<f64>,
}

impl Comparison {
    /// Adds the JSON that one run of `benchmark` printed. `build` is an index of [`BUILDS`].
    pub(crate) fn add(&mut self, benchmark: &str, build: usize, round: u32, json: &[u8]) -> Result<()> {
        let reports: Vec<ReportRead> =
            serde_json::from_slice(json).context("failed to read the benchmark's JSON")?;
        for report in reports {
            self.smoke |= report.smoke;
            for FigureRead { name, unit, median } in report.figures {
                self.row([benchmark.to_owned(), name, unit]).medians[build].insert(round, median);
            }
        }
        Ok(())
    }

    /// Finds a figure's row, or adds it behind the others of its benchmark.
    fn row(&mut self, name: [String; 3]) -> &mut Row {
        let index = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
            let last = self.rows.iter().rposition(|row| row.name[0] == name[0]);
            let index = last.map_or(self.rows.len(), |last| last + 1);
            self.rows.insert(index, Row { name, medians: Default::default() });
            index
        });
        &mut self.rows[index]
    }

    /// Returns the comparison as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        let figures: Vec<Compared<'_>> = self.rows.iter().map(Row::compared).collect();
        serde_json::json!({ "smoke": self.smoke, "figures": figures })
    }
}

impl Row {
    fn compared(&self) -> Compared<'_> {
        let [benchmark, figure, unit] = &self.name;
        let middle = |values: &BTreeMap<u32, f64>| median(&values.values().copied().collect::<Vec<_>>());
        let [old, new] = self.medians.each_ref().map(middle);
        let divided = |new: f64, old: f64| Some(new / old).filter(|ratio| ratio.is_finite());
        let ratio = old.zip(new).and_then(|(old, new)| divided(new, old));
        let [olds, news] = &self.medians;
        let ratios = olds.iter().filter_map(|(round, old)| divided(*news.get(round)?, *old)).collect();
        Compared { benchmark, figure, unit, old, new, ratio, ratios }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.smoke {
            writeln!(to, "SMOKE RUN: the figures mean nothing")?;
        }
        let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
        let cells = |row: &Row| {
            let Compared { old, new, ratio, ratios, .. } = row.compared();
            let [benchmark, figure, unit] = row.name.clone();
            let ratios = if ratios.len() < 2 { String::new() } else { short_list(&ratios) };
            [benchmark, figure, cell(old), cell(new), unit, cell(ratio), ratios]
        };
        let rows: Vec<[String; 7]> = self.rows.iter().map(cells).collect();
        let head = ["benchmark", "figure", "old", "new", "unit", "new : old", "by round"];
        write_table(to, head, &["old", "new", "new : old"], &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: usize = 0;
    const NEW: usize = 1;

    fn json(figures: &[(&str, f64)]) -> Vec<u8> {
        let figures: Vec<_> = figures
            .iter()
            .map(|(name, median)| serde_json::json!({ "name": name, "unit": "/s", "median": median, "goal": null }))
            .collect();
        serde_json::to_vec(&serde_json::json!([{ "benchmark": "relay", "figures": figures }])).unwrap()
    }

    #[test]
    fn medians_and_ratios_are_taken_over_the_rounds() {
        let mut comparison = Comparison::default();
        for (round, old, new) in [(1, 100.0, 110.0), (2, 400.0, 200.0), (3, 200.0, 240.0)] {
            comparison.add("relay", NEW, round, &json(&[("rate", new)])).unwrap();
            comparison.add("relay", OLD, round, &json(&[("rate", old)])).unwrap();
        }
        let row = comparison.rows[0].compared();
        assert_eq!((row.old, row.new, row.ratio), (Some(200.0), Some(200.0), Some(1.0)));
        assert_eq!(row.ratios, [1.1, 0.5, 1.2]);
    }

    #[test]
    fn a_figure_that_one_build_lacks_stays_in_the_table_without_a_ratio() {
        let mut comparison = Comparison::default();
        comparison.add("relay", OLD, 1, &json(&[("rate", 100.0), ("gone", 1.0)])).unwrap();
        comparison.add("saga", OLD, 1, &json(&[("orders", 5.0)])).unwrap();
        comparison.add("relay", NEW, 1, &json(&[("rate", 50.0), ("added", 2.0)])).unwrap();
        let expected = [
            "  benchmark  figure    old    new  unit  new : old  by round",
            "  relay      rate    100.0  50.00  /s        0.500",
            "  relay      gone     1.00      -  /s            -",
            "  relay      added       -   2.00  /s            -",
            "  saga       orders   5.00      -  /s            -",
        ];
        assert_eq!(comparison.to_string().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_run_that_failed_in_one_round_does_not_shift_the_pairs() {
        let mut comparison = Comparison::default();
        comparison.add("relay", OLD, 1, &json(&[("rate", 100.0)])).unwrap();
        comparison.add("relay", OLD, 2, &json(&[("rate", 200.0)])).unwrap();
        comparison.add("relay", NEW, 2, &json(&[("rate", 100.0)])).unwrap();
        assert_eq!(comparison.rows[0].compared().ratios, [0.5]);
    }

    #[test]
    fn nothing_is_divided_by_zero_other_output_is_an_error_and_a_smoke_run_is_named() {
        let mut comparison = Comparison::default();
        comparison.add("relay", OLD, 1, &json(&[("rate", 0.0)])).unwrap();
        comparison.add("relay", NEW, 1, &json(&[("rate", 1.0)])).unwrap();
        assert_eq!(comparison.json()["figures"][0]["ratio"], serde_json::Value::Null);
        assert!(comparison.add("relay", NEW, 1, b"not JSON").is_err());
        comparison.add("saga", NEW, 1, br#"[{"smoke":true,"figures":[]}]"#).unwrap();
        assert!(comparison.to_string().starts_with("SMOKE RUN"));
    }
}
