//! A benchmark's result: its figures with every round, and the conditions that they were measured under.

use std::fmt;

use anyhow::{Context as _, Result, ensure};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::table::{median, short, short_list, write_table};

/// One benchmark's result, as a table (`Display`) or as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) benchmark: String,
    /// Whether this was a smoke run, whose figures mean nothing.
    pub(crate) smoke: bool,
    #[serde(skip_deserializing)]
    pub(crate) conditions: Vec<String>,
    pub(crate) figures: Vec<Figure>,
    /// What a reader must know about the figures.
    pub(crate) notes: Vec<String>,
}

/// One measured quantity.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: String,
    /// A round that other work on the machine disturbed moves the mean, and hardly the median.
    pub(crate) median: f64,
    /// Every round, in order.
    rounds: Vec<f64>,
}

impl Figure {
    /// # Errors
    /// When a round is no number: a figure that was not measured must not look like a small one.
    fn new(name: String, unit: &str, rounds: Vec<f64>) -> Result<Self> {
        ensure!(rounds.iter().all(|value| value.is_finite()), "failed to measure {name}: {rounds:?}");
        let median =
            median(&rounds).with_context(|| format!("failed to measure {name}: there was no round"))?;
        Ok(Self { name, unit: unit.to_owned(), median, rounds })
    }
}

/// The figures of a benchmark while it runs: each figure's unit and rounds, by its name.
///
/// A ratio is one of them. The machine's speed drifts from minute to minute, so the ratio of what was measured in one round
/// says more than the ratio of two medians.
#[derive(Default)]
pub(crate) struct Rounds(IndexMap<String, (&'static str, Vec<f64>)>);

impl Rounds {
    pub(crate) fn add(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        self.0.entry(name.into()).or_insert((unit, vec![])).1.push(value);
    }

    pub(crate) fn into_figures(self) -> Result<Vec<Figure>> {
        self.0.into_iter().map(|(name, (unit, rounds))| Figure::new(name, unit, rounds)).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let smoke = if self.smoke { " (SMOKE RUN: the figures mean nothing)" } else { "" };
        writeln!(to, "{}{smoke}", self.benchmark)?;
        for condition in &self.conditions {
            writeln!(to, "  {condition}")?;
        }
        let row = |Figure { name, unit, median, rounds }: &Figure| {
            let rounds = if rounds.len() == 1 { String::new() } else { short_list(rounds) };
            [name.clone(), short(*median), unit.clone(), rounds]
        };
        let rows: Vec<_> = self.figures.iter().map(row).collect();
        write_table(to, ["figure", "median", "unit", "rounds"], &["median"], &rows)?;
        for note in &self.notes {
            writeln!(to, "  note: {note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_of_its_rounds_and_one_that_was_not_measured_is_an_error() {
        let mut rounds = Rounds::default();
        for value in [0.8, 0.5, 0.75] {
            rounds.add("ours : bare", "ratio", value);
        }
        assert_eq!(rounds.into_figures().unwrap()[0].median, 0.75);
        let mut rounds = Rounds::default();
        rounds.add("nonsense", "/s", f64::NAN);
        assert!(rounds.into_figures().is_err());
    }
}
