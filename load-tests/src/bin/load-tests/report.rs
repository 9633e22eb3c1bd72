//! A benchmark's result: its figures with every round, their goals, and the conditions that they were measured under.

use std::fmt;

use serde::Serialize;

use crate::{
    conditions::Conditions,
    setup::Setup,
    table::{median, short, short_list, write_table},
};

/// One benchmark's result, as a table (`Display`) or as JSON (`Serialize`).
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    benchmark: &'static str,
    /// Whether this was a smoke run, whose figures mean nothing.
    smoke: bool,
    conditions: Conditions,
    figures: Vec<Figure>,
    /// In JSON only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    curves: Vec<Curve>,
    /// What a reader must know about the figures.
    notes: Vec<String>,
}

/// Quantities over time.
#[derive(Debug, Serialize)]
pub(crate) struct Curve {
    pub(crate) name: String,
    /// The first is the time, in seconds.
    pub(crate) columns: [&'static str; 6],
    /// A value that is unknown is NaN, and null in JSON.
    pub(crate) rows: Vec<Vec<f64>>,
}

/// One measured quantity.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    name: String,
    unit: &'static str,
    /// A round that other work on the machine disturbed moves the mean, and hardly the median.
    median: f64,
    /// Every round, in order.
    pub(crate) rounds: Vec<f64>,
    goal: Option<Goal>,
}

/// A bound that a figure should keep.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Report {
    /// A smoke run's report has no goals: there is nothing to judge.
    pub(crate) fn new(
        benchmark: &'static str,
        setup: &Setup,
        conditions: Conditions,
        mut figures: Vec<Figure>,
        notes: Vec<String>,
    ) -> Self {
        if setup.smoke {
            figures.iter_mut().for_each(|figure| figure.goal = None);
        }
        Self { benchmark, smoke: setup.smoke, conditions, figures, curves: vec![], notes }
    }

    pub(crate) fn with_curves(self, curves: Vec<Curve>) -> Self {
        Self { curves, ..self }
    }
}

impl Figure {
    /// A figure of one or several rounds.
    ///
    /// # Errors
    /// When there is no round, or a round is no number: a figure that was not measured must not look like a small one.
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, rounds: Vec<f64>) -> anyhow::Result<Self> {
        let name = name.into();
        anyhow::ensure!(rounds.iter().all(|value| value.is_finite()), "failed to measure {name}: {rounds:?}");
        let median =
            median(&rounds).ok_or_else(|| anyhow::anyhow!("failed to measure {name}: there was no round"))?;
        Ok(Self { name, unit, median, rounds, goal: None })
    }

    pub(crate) fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// Divides each round of `of` by the round of `by` that ran next to it.
    ///
    /// The machine's speed drifts from minute to minute, so the ratio of neighbours says more than the ratio of two
    /// medians.
    ///
    /// # Errors
    /// When the two do not have the same number of rounds.
    pub(crate) fn ratio(name: &str, of: &Figure, by: &Figure) -> anyhow::Result<Self> {
        anyhow::ensure!(
            of.rounds.len() == by.rounds.len(),
            "failed to divide {} by {}: the numbers of rounds differ",
            of.name,
            by.name
        );
        let rounds = of.rounds.iter().zip(&by.rounds).map(|(of, by)| of / by).collect();
        Self::new(name, "ratio", rounds)
    }

    fn met(&self) -> Option<bool> {
        self.goal.map(|goal| match goal {
            Goal::AtLeast(bound) => self.median >= bound,
            Goal::AtMost(bound) => self.median <= bound,
        })
    }

    fn row(&self) -> [String; 5] {
        let goal = match self.goal {
            None => String::new(),
            Some(Goal::AtLeast(bound)) => format!("≥ {}", short(bound)),
            Some(Goal::AtMost(bound)) => format!("≤ {}", short(bound)),
        };
        let goal = match self.met() {
            None => goal,
            Some(true) => format!("{goal} met"),
            Some(false) => format!("{goal} MISSED"),
        };
        let rounds = if self.rounds.len() == 1 { String::new() } else { short_list(&self.rounds) };
        [self.name.clone(), short(self.median), self.unit.to_owned(), goal, rounds]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.smoke {
            true => writeln!(to, "{} (SMOKE RUN: the figures mean nothing)", self.benchmark)?,
            false => writeln!(to, "{}", self.benchmark)?,
        }
        write!(to, "{}", self.conditions)?;
        let rows: Vec<_> = self.figures.iter().map(Figure::row).collect();
        write_table(to, ["figure", "median", "unit", "goal", "rounds"], &["median"], &rows)?;
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
    fn a_ratio_is_taken_between_neighbours_and_its_median_reported() {
        let ours = Figure::new("ours", "/s", vec![8.0, 10.0, 3.0]).unwrap();
        let bare = Figure::new("bare", "/s", vec![10.0, 20.0, 4.0]).unwrap();
        let ratio = Figure::ratio("ours : bare", &ours, &bare).unwrap().goal(Goal::AtLeast(0.8));
        assert_eq!(ratio.rounds, [0.8, 0.5, 0.75]);
        assert_eq!((ratio.median, ratio.met()), (0.75, Some(false)));
        assert!(ratio.row()[3].ends_with("MISSED"));
    }

    #[test]
    fn a_figure_that_was_not_measured_is_an_error_and_not_a_zero() {
        assert!(Figure::new("nothing", "/s", vec![]).is_err());
        assert!(Figure::new("nonsense", "/s", vec![1.0, f64::NAN]).is_err());
    }

    #[test]
    fn a_smoke_report_says_so_and_judges_no_goal() {
        let figure = Figure::new("rate", "/s", vec![1.0]).unwrap().goal(Goal::AtLeast(2.0));
        let setup = Setup { smoke: true, ..Setup::default() };
        let report = Report::new("relay", &setup, Conditions::default(), vec![figure], vec![]);
        let text = report.to_string();
        assert!(text.contains("SMOKE RUN: the figures mean nothing") && !text.contains("MISSED"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["smoke"], &json["figures"][0]["goal"]), (&true.into(), &serde_json::Value::Null));
    }
}
