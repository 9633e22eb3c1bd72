//! The machine that everything runs on.

use std::time::Duration;

/// Long enough to average over the timers of idle servers.
const SAMPLE: Duration = Duration::from_secs(1);

/// Measures the share of all cores that is in use for a second, from 0 to 1.
///
/// While the system under test is idle, this is the work of other processes, plus the one or two hundredths that an idle
/// system takes. It spoils a benchmark and leaves no trace in the figures. `None` where there is no `/proc`.
pub(crate) async fn busy_share() -> Option<f64> {
    let read = || all_and_idle(&std::fs::read_to_string("/proc/stat").ok()?);
    let before = read()?;
    tokio::time::sleep(SAMPLE).await;
    let after = read()?;
    let (all, idle) = (after.0.checked_sub(before.0)?, after.1.saturating_sub(before.1));
    (all > 0).then(|| 1.0 - idle as f64 / all as f64)
}

/// Returns the number of cores.
pub(crate) fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
}

/// Reads the first line: `cpu user nice system idle iowait irq softirq steal …`. `user` includes what follows.
fn all_and_idle(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|ticks| ticks.parse().ok()).collect();
    let [_, _, _, idle, waiting, ..] = ticks.as_slice() else { return None };
    Some((ticks.iter().sum(), idle + waiting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_for_the_disk_are_not_work() {
        assert_eq!(all_and_idle("cpu  10 0 20 60 5 1 2 2 7 0\ncpu0 1 1 1 1 1 1 1 1\n"), Some((100, 65)));
        assert_eq!(all_and_idle("intr 1 2 3\n"), None);
    }
}
