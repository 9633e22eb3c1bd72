//! What a benchmark found: the figures with every round, the goals, and the conditions that they hold under.

use std::fmt;

use serde::Serialize;

use crate::conditions::Conditions;

/// One benchmark's result, for people (`Display`) and for machines (`Serialize`).
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The subcommand.
    pub(crate) benchmark: &'static str,
    /// What was in force.
    pub(crate) conditions: Conditions,
    /// What came out.
    pub(crate) figures: Vec<Figure>,
    /// What has to be known to read the figures rightly.
    pub(crate) notes: Vec<String>,
}

/// One measured quantity.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) name: String,
    /// In what.
    pub(crate) unit: &'static str,
    /// The middle one of the rounds: one round that the machine disturbed does not move it, as it would a mean.
    pub(crate) median: f64,
    /// Every round, in order.
    pub(crate) rounds: Vec<f64>,
    /// What we want it to be.
    pub(crate) goal: Option<Goal>,
}

/// A bound that a figure should keep.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Goal {
    /// No less than this.
    AtLeast(f64),
    /// No more than this.
    AtMost(f64),
}

impl Figure {
    /// A figure of one or several rounds.
    ///
    /// # Errors
    /// When there is no round: a figure that was not measured must not look like a small one.
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, rounds: Vec<f64>) -> anyhow::Result<Self> {
        let name = name.into();
        anyhow::ensure!(rounds.iter().all(|value| value.is_finite()), "{name} was not measured: {rounds:?}");
        let median = median(&rounds).ok_or_else(|| anyhow::anyhow!("{name} has no round"))?;
        Ok(Self { name, unit, median, rounds, goal: None })
    }

    /// The same, with a goal.
    pub(crate) fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// Of each pair of rounds that ran next to each other, the first against the second. The machine's speed drifts
    /// from minute to minute, so the ratio of neighbours says more than the ratio of two medians.
    ///
    /// # Errors
    /// When the two do not have the same number of rounds.
    pub(crate) fn ratio(name: &str, of: &Figure, against: &Figure) -> anyhow::Result<Self> {
        anyhow::ensure!(of.rounds.len() == against.rounds.len(), "{name}: rounds without a neighbour");
        let rounds = of.rounds.iter().zip(&against.rounds).map(|(of, against)| of / against).collect();
        Self::new(name, "ratio", rounds)
    }

    fn met(&self) -> Option<bool> {
        self.goal.map(|goal| match goal {
            Goal::AtLeast(bound) => self.median >= bound,
            Goal::AtMost(bound) => self.median <= bound,
        })
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 { Some(upper) } else { Some((sorted[middle - 1] + upper) / 2.0) }
}

/// Four digits are more than such measurements are worth, and enough to see a difference.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "{}", self.benchmark)?;
        write!(to, "{}", self.conditions)?;
        let rows: Vec<[String; 5]> = self.figures.iter().map(row).collect();
        let head = ["figure", "median", "unit", "goal", "rounds"].map(str::to_owned);
        let widths: [usize; 5] = std::array::from_fn(|column| {
            std::iter::once(&head).chain(&rows).map(|row| row[column].chars().count()).max().unwrap_or(0)
        });
        for row in std::iter::once(&head).chain(&rows) {
            let [name, value, unit, goal, rounds] = row;
            let [names, values, units, goals, _] = widths;
            let line =
                format!("  {name:<names$}  {value:>values$}  {unit:<units$}  {goal:<goals$}  {rounds}");
            writeln!(to, "{}", line.trim_end())?;
        }
        for note in &self.notes {
            writeln!(to, "  note: {note}")?;
        }
        Ok(())
    }
}

fn row(figure: &Figure) -> [String; 5] {
    let goal = match figure.goal {
        None => String::new(),
        Some(Goal::AtLeast(bound)) => format!("≥ {}", short(bound)),
        Some(Goal::AtMost(bound)) => format!("≤ {}", short(bound)),
    };
    let goal = match figure.met() {
        None => goal,
        Some(true) => format!("{goal} met"),
        Some(false) => format!("{goal} MISSED"),
    };
    let rounds = match figure.rounds.as_slice() {
        [_] => String::new(),
        rounds => rounds.iter().map(|value| short(*value)).collect::<Vec<_>>().join(" "),
    };
    [figure.name.clone(), short(figure.median), figure.unit.to_owned(), goal, rounds]
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
    }

    #[test]
    fn what_was_not_measured_is_an_error_and_not_a_zero() {
        assert!(Figure::new("nothing", "/s", vec![]).is_err());
        assert!(Figure::new("nonsense", "/s", vec![1.0, f64::NAN]).is_err());
    }

    #[test]
    fn the_median_of_an_even_number_of_rounds_lies_between_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
