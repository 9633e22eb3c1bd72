//! The processor time of processes, and of the whole machine, as Linux counts it.

use std::{collections::BTreeMap, time::Duration};

use testbed::guard::with_descendants;

/// Linux reports these times in ticks of 10 ms on every platform that it still supports.
const TICK_MS: f64 = 10.0;

/// Long enough to average over the timers of idle servers.
const SAMPLE: Duration = Duration::from_secs(1);

/// The name under which this process's own time is found.
pub(crate) const GENERATOR: &str = "load generator";

/// The processor time that named processes have used so far, in ticks.
pub(crate) struct CpuTimes(BTreeMap<String, u64>);

impl CpuTimes {
    /// Reads the times of processes with their descendants, and of this process without any: the servers may be some.
    pub(crate) fn read(processes: &[(String, u32)]) -> anyhow::Result<Self> {
        let mut times = BTreeMap::new();
        for (name, pid) in processes {
            let family = with_descendants(*pid)?;
            let ticks =
                family.into_iter().filter_map(Ticks::of).map(|ticks| ticks.own + ticks.children).sum();
            times.insert(name.clone(), ticks);
        }
        times.extend(Ticks::of(std::process::id()).map(|ticks| (GENERATOR.to_owned(), ticks.own)));
        Ok(Self(times))
    }

    /// What each process has used since `earlier`, in milliseconds.
    pub(crate) fn since(&self, earlier: &Self) -> BTreeMap<String, f64> {
        let spent = self.0.iter().map(|(name, now)| {
            let before = earlier.0.get(name).copied().unwrap_or_default();
            (name.clone(), now.saturating_sub(before) as f64 * TICK_MS)
        });
        spent.collect()
    }
}

/// User and system time of a process, and of its children that have ended.
#[derive(Debug, PartialEq, Eq)]
struct Ticks {
    own: u64,
    children: u64,
}

impl Ticks {
    /// `None` if the process has ended.
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Reads `pid (name) state …`, of which the fields 14 to 17 are the times. The name may contain spaces and parentheses.
    fn parse(stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut times = fields.split_whitespace().skip(11).map_while(|ticks| ticks.parse::<u64>().ok());
        let mut both = || Some(times.next()? + times.next()?);
        Some(Self { own: both()?, children: both()? })
    }
}

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
    fn the_four_times_are_found_behind_a_name_with_parentheses() {
        let stat = "17 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 1 0 55 66";
        assert_eq!(Ticks::parse(stat), Some(Ticks { own: 120, children: 7 }));
        assert_eq!(Ticks::parse("17 (cut"), None);
    }

    #[test]
    fn work_of_this_process_is_counted() {
        let before = CpuTimes::read(&[]).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        // Any amount will do, but it must be seen.
        while CpuTimes::read(&[]).unwrap().since(&before)[GENERATOR] < 20.0 {
            assert!(std::time::Instant::now() < deadline, "no processor time was seen");
            std::hint::black_box((0..1_000_000_u64).sum::<u64>());
        }
    }

    #[test]
    fn idle_and_waiting_for_the_disk_are_not_work() {
        assert_eq!(all_and_idle("cpu  10 0 20 60 5 1 2 2 7 0\ncpu0 1 1 1 1 1 1 1 1\n"), Some((100, 65)));
        assert_eq!(all_and_idle("intr 1 2 3\n"), None);
    }
}
