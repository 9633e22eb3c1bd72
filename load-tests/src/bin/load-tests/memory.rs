//! The memory of processes, as Linux counts it.

use anyhow::Context as _;

use crate::process_tree;

/// Returns the resident memory of one process in MiB.
pub(crate) fn resident(pid: u32) -> anyhow::Result<f64> {
    field(pid, "status", "VmRSS:")
}

/// Returns the most memory that a process ever had resident, in MiB.
pub(crate) fn peak(pid: u32) -> anyhow::Result<f64> {
    field(pid, "status", "VmHWM:")
}

/// Returns the memory of a process and its descendants in MiB. Pages that they share are counted once.
///
/// PostgreSQL has a process per connection, and the resident memory of each contains the same shared buffers.
pub(crate) fn proportional(root: u32) -> anyhow::Result<f64> {
    let mut sum = field(root, "smaps_rollup", "Pss:")?;
    for pid in process_tree::ids(root).into_iter().skip(1) {
        sum += field(pid, "smaps_rollup", "Pss:").unwrap_or_default();
    }
    Ok(sum)
}

fn field(pid: u32, file: &str, name: &str) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/{file}");
    let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kibibytes.with_context(|| format!("failed to read {path}: it has no {name}"))? / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_is_some_and_its_peak_is_no_less() {
        let pid = std::process::id();
        let (now, most) = (resident(pid).unwrap(), peak(pid).unwrap());
        assert!(now > 0.1 && most >= now * 0.9, "{now} MiB now, {most} MiB at most");
        assert!(proportional(pid).unwrap() > 0.1);
    }

    #[test]
    fn the_memory_of_a_process_that_has_ended_is_an_error_and_not_zero() {
        assert!(resident(u32::MAX).is_err());
    }
}
