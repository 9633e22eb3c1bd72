//! What other processes do on the machine meanwhile: it spoils a benchmark and leaves no trace in the figures.

use std::time::Duration;

use crate::setup::Setup;

/// Long enough to average over the timers of idle servers.
const SAMPLE: Duration = Duration::from_secs(1);

/// Measures the share of all cores that is in use for a second, from 0 to 1.
///
/// While the system under test is idle, this is the work of other processes, plus the one or two hundredths that an idle
/// system takes. `None` where there is no `/proc`.
pub(crate) async fn share(setup: &Setup) -> Option<f64> {
    let before = Ticks::read()?;
    tokio::time::sleep(setup.pause(SAMPLE)).await;
    let after = Ticks::read()?;
    let (all, idle) = (after.all.checked_sub(before.all)?, after.idle.saturating_sub(before.idle));
    (all > 0).then(|| 1.0 - idle as f64 / all as f64)
}

struct Ticks {
    all: u64,
    idle: u64,
}

impl Ticks {
    fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Reads the first line: `cpu user nice system idle iowait irq softirq steal …`. `user` includes what follows.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).filter_map(|ticks| ticks.parse().ok()).collect();
        let [_, _, _, idle, waiting, ..] = ticks.as_slice() else {
            return None;
        };
        Some(Self { all: ticks.iter().sum(), idle: idle + waiting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_for_the_disk_are_not_work() {
        let ticks = Ticks::parse("cpu  10 0 20 60 5 1 2 2 7 0\ncpu0 1 1 1 1 1 1 1 1\n").unwrap();
        assert_eq!((ticks.all, ticks.idle), (100, 65));
        assert!(Ticks::parse("intr 1 2 3\n").is_none());
    }
}
