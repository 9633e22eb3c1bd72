//! The alert rules, as they are or with shorter times.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use humantime::parse_duration;

const RULES: &str = include_str!("../../../observe/alerts.yaml");

/// A shorter window would hold one scrape only, and no rate.
const SHORTEST_WINDOW: u64 = 10;

/// The step of all subqueries.
const STEP: &str = ":10s]";

/// Thresholds below this are not times or counts that grow, and stay as they are.
const SMALLEST_SCALED: u64 = 10;

/// The rules, with every delay, window and large threshold divided by `scale`.
pub(crate) fn rules(scale: u64) -> Result<String> {
    if scale == 1 {
        return Ok(RULES.to_owned());
    }
    let delays = replace_after(RULES, "for: ", |delay| Ok(format!("{}s", (seconds(delay)? / scale).max(1))))?;
    let windows = replace_after(&delays, "[", |window| {
        Ok(format!("{}s", (seconds(window)? / scale).max(SHORTEST_WINDOW)))
    })?;
    // With one point in a window nothing grows.
    let steps = windows.replace(STEP, ":1s]");
    replace_after(&steps, " > ", |threshold| match threshold.parse::<u64>() {
        Ok(number) if number >= SMALLEST_SCALED => Ok(format!("{}", number as f64 / scale as f64)),
        _ => Ok(threshold.to_owned()),
    })
}

/// How long each alert's expression must be true before it fires.
pub(crate) fn delays(rules: &str) -> Result<BTreeMap<String, Duration>> {
    let mut delays = BTreeMap::new();
    for rule in rules.split("- alert: ").skip(1) {
        let name = rule.lines().next().context("an alert has no name")?.trim();
        let delay = rule.split_once("for: ").and_then(|(_, rest)| rest.lines().next());
        let delay = delay.map_or(Ok(0), |delay| seconds(delay.trim()))?;
        delays.insert(name.to_owned(), Duration::from_secs(delay));
    }
    Ok(delays)
}

/// Replaces each word of letters and digits that follows `marker`.
fn replace_after(text: &str, marker: &str, replacement: impl Fn(&str) -> Result<String>) -> Result<String> {
    let mut parts = text.split(marker);
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(part.len());
        let (word, rest) = part.split_at(end);
        replaced.push_str(marker);
        replaced.push_str(&replacement(word)?);
        replaced.push_str(rest);
    }
    Ok(replaced)
}

fn seconds(duration: &str) -> Result<u64> {
    let duration = parse_duration(duration).with_context(|| format!("`{duration}` is not a duration"))?;
    Ok(duration.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_rules_have_shorter_delays_windows_and_thresholds() -> Result<()> {
        let rule = "- alert: A\n expr: deriv(x[5m]) > 0 and x > 1000 and y > 0.5\n for: 5m\n- alert: B\n expr: z > 30\n";
        assert_eq!(
            delays(rule)?,
            [("A".into(), Duration::from_secs(300)), ("B".into(), Duration::ZERO)].into()
        );
        let scaled = replace_after(rule, " > ", |word| Ok(format!("({word})")))?;
        assert!(
            scaled.contains("(0) and x > (1000) and y > (0.5)") && scaled.ends_with("z > (30)\n"),
            "{scaled}"
        );
        let (long, short) = (delays(RULES)?, delays(&rules(20)?)?);
        assert!(long.len() > 15 && long.keys().eq(short.keys()), "{long:?} {short:?}");
        assert_eq!((long["QueueGrows"].as_secs(), short["QueueGrows"].as_secs()), (300, 15));
        assert!(rules(20)?.contains("[15s:1s]") && !rules(20)?.contains(":10s]"), "{}", rules(20)?);
        assert!(rules(20)?.contains("[15s]") && !rules(20)?.contains("1000"), "{}", rules(20)?);
        Ok(())
    }
}
