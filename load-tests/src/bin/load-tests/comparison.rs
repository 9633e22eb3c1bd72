//! The figures of two builds, side by side.

use std::{collections::BTreeMap, fmt};

use anyhow::{Context as _, Result};
use indexmap::IndexMap;

use crate::{
    report::{Figure, Report},
    table::{median, short, short_list, write_table},
};

/// The figures of all runs so far.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// The median that each run of each build reported, by round; by benchmark, figure and unit.
    figures: IndexMap<[String; 3], [BTreeMap<u32, f64>; 2]>,
    /// Whether any run was a smoke run, whose figures mean nothing.
    smoke: bool,
}

impl Comparison {
    /// Adds the JSON that one run of `benchmark` printed. `build` is 0 for the old one and 1 for the new one.
    pub(crate) fn add(&mut self, benchmark: &str, build: usize, round: u32, json: &[u8]) -> Result<()> {
        let reports: Vec<Report> =
            serde_json::from_slice(json).context("failed to read the benchmark's JSON")?;
        for report in reports {
            self.smoke |= report.smoke;
            for Figure { name, unit, median, .. } in report.figures {
                let medians = self.figures.entry([benchmark.to_owned(), name, unit]).or_default();
                medians[build].insert(round, median);
            }
        }
        Ok(())
    }
}

/// One figure's line. A build that does not have the figure has no median, and the rounds that both have are divided.
fn cells(name: &[String; 3], [olds, news]: &[BTreeMap<u32, f64>; 2]) -> [String; 7] {
    let [benchmark, figure, unit] = name.clone();
    let middle = |values: &BTreeMap<u32, f64>| median(&values.values().copied().collect::<Vec<_>>());
    let (old, new) = (middle(olds), middle(news));
    let divided = |new: f64, old: f64| Some(new / old).filter(|ratio| ratio.is_finite());
    let ratio = old.zip(new).and_then(|(old, new)| divided(new, old));
    let ratios: Vec<f64> = olds.iter().filter_map(|(round, old)| divided(*news.get(round)?, *old)).collect();
    let ratios = if ratios.len() < 2 { String::new() } else { short_list(&ratios) };
    let [old, new, ratio] = [old, new, ratio].map(|value| value.map_or_else(|| "-".to_owned(), short));
    [benchmark, figure, old, new, unit, ratio, ratios]
}

impl fmt::Display for Comparison {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.smoke {
            writeln!(to, "SMOKE RUN: the figures mean nothing")?;
        }
        let rows: Vec<_> = self.figures.iter().map(|(name, medians)| cells(name, medians)).collect();
        let head = ["benchmark", "figure", "old", "new", "unit", "new : old", "by round"];
        write_table(to, head, &["old", "new", "new : old"], &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Rounds;

    const OLD: usize = 0;
    const NEW: usize = 1;

    fn json(figures: &[(&str, f64)]) -> Vec<u8> {
        let mut rounds = Rounds::default();
        figures.iter().for_each(|(name, median)| rounds.add(*name, "/s", *median));
        let figures = rounds.into_figures().unwrap();
        let (benchmark, conditions, notes) = ("relay".to_owned(), vec!["two cores".to_owned()], vec![]);
        serde_json::to_vec(&[Report { benchmark, smoke: true, conditions, figures, notes }]).unwrap()
    }

    #[test]
    fn builds_are_compared_by_round_and_a_figure_that_one_lacks_stays() {
        let mut comparison = Comparison::default();
        for (round, old, new) in [(1, 100.0, 110.0), (2, 400.0, 200.0), (3, 200.0, 240.0)] {
            comparison.add("relay", NEW, round, &json(&[("rate", new), ("added", 2.0)])).unwrap();
            comparison.add("relay", OLD, round, &json(&[("rate", old), ("zero", 0.0)])).unwrap();
        }
        // A run that failed in one round must not shift the pairs.
        comparison.add("saga", OLD, 1, &json(&[("orders", 100.0)])).unwrap();
        comparison.add("saga", OLD, 2, &json(&[("orders", 200.0)])).unwrap();
        comparison.add("saga", NEW, 2, &json(&[("orders", 100.0)])).unwrap();
        let expected = [
            "SMOKE RUN: the figures mean nothing",
            "  benchmark  figure    old    new  unit  new : old  by round",
            "  relay      rate    200.0  200.0  /s         1.00  1.10 0.500 1.20",
            "  relay      added       -   2.00  /s            -",
            "  relay      zero        0      -  /s            -",
            "  saga       orders  150.0  100.0  /s        0.667",
        ];
        assert_eq!(comparison.to_string().lines().collect::<Vec<_>>(), expected);
        assert!(comparison.add("relay", NEW, 1, b"not JSON").is_err());
    }
}
