//! Prometheus pages.

use std::{iter::Sum, str::FromStr};

/// Adds up a metric over its labels, or reads the one series that `name` gives all labels of.
///
/// A counter that was never incremented is not on the page, so a missing one is zero. A page that could not be read is
/// unknown, which the caller must not report as zero.
pub(crate) fn sum<T: FromStr + Sum>(page: &str, name: &str) -> Result<T, T::Err> {
    let values = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        // Otherwise the line is a comment or a metric with a longer name.
        rest.starts_with(['{', ' ']).then(|| line.rsplit(' ').next().unwrap_or_default())
    });
    values.map(str::parse).sum()
}

#[cfg(test)]
mod tests {
    use super::sum;

    const PAGE: &str =
        "# TYPE hits counter\nhits{kind=\"a b\"} 3\nhits{kind=\"c\"} 4\nhits_total 50\nhits 1\nage NaN\n";

    #[test]
    fn a_metric_is_summed_over_its_labels_and_not_confused_with_a_longer_name() {
        assert_eq!(sum(PAGE, "hits"), Ok(8_u64));
        assert_eq!(sum(PAGE, "misses"), Ok(0_u64));
    }

    #[test]
    fn one_series_is_read_by_its_labels() {
        assert_eq!(sum(PAGE, "hits{kind=\"a b\"}"), Ok(3_u64));
    }

    #[test]
    fn an_unknown_gauge_is_not_a_number() {
        assert!(sum::<f64>(PAGE, "age").is_ok_and(f64::is_nan));
    }
}
