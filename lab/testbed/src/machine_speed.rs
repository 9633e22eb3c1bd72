//! How slow this machine is, beside the one on which the deadlines, the rates and the numbers of tests at a time were chosen.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What `cargo demo test` has measured, so that each of its test programs does not measure beside the others.
pub const SLOWDOWN: &str = "TESTBED_SLOWDOWN";

/// The reference machine has two cores, so two threads compute at the same time: on one core they take twice as long.
const THREADS: usize = 2;
/// Derived: the reference machine does the loop of `.ci/run` in 0.7 s. Where that takes 1.9 s, this takes 150 ms.
const REFERENCE: Duration = Duration::from_millis(56);
const ROUNDS: usize = 600;

/// In percent. Beyond this a test that waits in vain would not end in a useful time.
const MAX_SLOWDOWN: u32 = 800;

/// How many times as long as on the reference machine a computation takes here: from 1 to 8. Measured once for a process, in
/// some tenths of a second. A machine that is busy then is a slow machine.
pub fn slowdown() -> f64 {
    f64::from(percent()) / 100.0
}

fn percent() -> u32 {
    static MEASURED: OnceLock<u32> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let given = std::env::var(SLOWDOWN).ok().and_then(|text| text.parse().ok());
        let given = given.and_then(|times| Duration::try_from_secs_f64(times).ok());
        let percent = match given {
            Some(times) => times.as_millis() / 10,
            None => compute().as_micros() * 100 / REFERENCE.as_micros(),
        };
        u32::try_from(percent).unwrap_or(MAX_SLOWDOWN).clamp(100, MAX_SLOWDOWN)
    })
}

/// A deadline that was chosen on the reference machine, for this one: longer on a slow machine, never shorter.
pub fn longer(deadline: Duration) -> Duration {
    Duration::try_from_secs_f64(deadline.as_secs_f64() * slowdown()).unwrap_or(Duration::MAX)
}

/// A rate of orders, or a number of systems at a time, that was chosen on the reference machine, for this one: less on a slow
/// machine, never more, and at least 1.
pub fn fewer(count: u32) -> u32 {
    let fewer = (u64::from(count) * 100).div_ceil(percent().into());
    u32::try_from(fewer).unwrap_or(count).max(1)
}

/// A fixed computation in the standard library, which is optimised in every build of this crate.
fn compute() -> Duration {
    let text = "é".repeat(50_000).into_bytes();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    black_box(std::str::from_utf8(black_box(&text)).is_ok());
                }
            });
        }
    });
    began.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_only_grow_and_rates_only_shrink() {
        assert!((1.0..=8.0).contains(&slowdown()));
        assert!(longer(Duration::from_secs(10)) >= Duration::from_secs(10));
        assert_eq!(longer(Duration::MAX), Duration::MAX);
        assert!((10..=80).contains(&fewer(80)));
        assert_eq!(fewer(1), 1);
    }
}
