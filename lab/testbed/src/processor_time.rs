//! The processor time of processes, as Linux counts it.

use std::{fs, time::Duration};

use anyhow::Result;

use crate::guard::with_descendants;

/// Linux reports these times in ticks of 10 ms on every platform that it still supports.
const TICK: Duration = Duration::from_millis(10);

/// User and system time of a process with its descendants, and with those that have ended.
pub fn processor_time(root: u32) -> Result<Duration> {
    let pids = with_descendants(root)?;
    Ok(TICK * pids.into_iter().filter_map(ticks).map(|[own, ended]| own + ended).sum::<u32>())
}

/// User and system time of this process, without its descendants.
pub fn own_processor_time() -> Duration {
    TICK * ticks(std::process::id()).map_or(0, |[own, _]| own)
}

/// The ticks of a process, and of its children that have ended. `None` if it has ended itself.
fn ticks(pid: u32) -> Option<[u32; 2]> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads `pid (name) state …`, of which the fields 14 to 17 are the times. The name may contain spaces and parentheses.
fn parse(stat: &str) -> Option<[u32; 2]> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split_whitespace().skip(11).map_while(|ticks| ticks.parse::<u32>().ok());
    let mut both = || Some(times.next()? + times.next()?);
    Some([both()?, both()?])
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_four_times_are_found_behind_a_name_with_parentheses() {
        let stat = "17 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 1 0 55 66";
        assert_eq!(parse(stat), Some([120, 7]));
        assert_eq!(parse("17 (cut"), None);
    }

    #[test]
    fn work_of_this_process_is_counted() {
        let (before, deadline) = (own_processor_time(), Instant::now() + Duration::from_secs(60));
        // Any amount will do, but it must be seen.
        while own_processor_time() < before + 2 * TICK {
            assert!(Instant::now() < deadline, "no processor time was seen");
            std::hint::black_box((0..1_000_000_u64).sum::<u64>());
        }
    }
}
