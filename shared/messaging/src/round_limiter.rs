//! Optional. Without it: workers under load begin a round of work for each event, and fill the machine at a rate that
//! it could serve with a few.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Keeps a worker from spending more than half of its time in rounds of work, so that under load each round does more.
///
/// A round costs nearly the same for one event as for ten: a transaction, a flush to disk, an answer to the broker. So a
/// worker pauses for as long as its last round took: the longer rounds take, the fewer begin, and the larger they are. When
/// calm nothing is delayed, because the pauses are over before there is something to do.
#[derive(Debug)]
pub struct RoundLimiter {
    /// When the pauses of all rounds so far are over.
    paused_until: Instant,
}

/// The pause that a worker may still owe when it begins its next round: a short burst is not delayed.
const ALLOWANCE: Duration = Duration::from_millis(5);

/// The most that one round counts: what took longer has waited for something, for example a broker.
const LONGEST_ROUND: Duration = Duration::from_millis(10);

impl Default for RoundLimiter {
    fn default() -> Self {
        Self::new()
    }
}

impl RoundLimiter {
    /// The first round may begin at once.
    pub fn new() -> Self {
        Self { paused_until: Instant::now() }
    }

    /// Waits until the next round may begin. `last_round` is how long the last one took.
    pub async fn wait(&mut self, last_round: Duration) {
        let last_round = last_round.min(LONGEST_ROUND);
        let began = Instant::now().checked_sub(last_round).unwrap_or_else(Instant::now);
        self.paused_until = self.paused_until.max(began) + last_round * 2;
        let ahead = self.paused_until.saturating_duration_since(Instant::now());
        sleep(ahead.saturating_sub(ALLOWANCE)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_millis(4);

    #[tokio::test(start_paused = true)]
    async fn rounds_without_a_break_take_half_of_the_time() {
        let mut limiter = RoundLimiter::new();
        let start = Instant::now();
        for _ in 0..100 {
            sleep(ROUND).await;
            limiter.wait(ROUND).await;
        }
        let share = 100.0 * ROUND.as_secs_f64() / start.elapsed().as_secs_f64();
        assert!((0.45..0.52).contains(&share), "rounds took {share} of the time");
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_are_not_delayed_after_a_calm_time() {
        let mut limiter = RoundLimiter::new();
        for _ in 0..100 {
            sleep(ROUND).await;
            let due = Instant::now();
            limiter.wait(ROUND).await;
            assert!(due.elapsed().is_zero());
            sleep(ROUND).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_waited_for_a_broker_delays_the_next_one_for_milliseconds_only() {
        let mut limiter = RoundLimiter::new();
        sleep(Duration::from_secs(10)).await;
        let due = Instant::now();
        limiter.wait(Duration::from_secs(10)).await;
        assert!(due.elapsed() <= LONGEST_ROUND, "{:?}", due.elapsed());
    }
}
