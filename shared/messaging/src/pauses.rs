//! Pauses between attempts that fail, and between rounds of work.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Exponential back-off with full jitter: each wait is drawn evenly from zero to a limit that doubles.
///
/// Without jitter, all clients that lost the broker at the same moment would reconnect at the same moments. Drawing from
/// the whole range spreads the load best (Marc Brooker, "Exponential Backoff And Jitter", 2015).
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    limit: Duration,
}

impl Backoff {
    /// The limit begins at `first` and doubles up to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, limit: first }
    }

    /// The wait before the next attempt. Each call doubles the limit.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.limit.mul_f64(fastrand::f64());
        self.limit = self.limit.saturating_mul(2).min(self.longest);
        wait
    }

    /// Call this after a success: the limit begins at `first` again.
    pub fn reset(&mut self) {
        self.limit = self.first;
    }
}

/// Keeps a worker from spending more than half of its time in rounds of work, so that under load each round does more.
/// Optional. Without it: workers under load begin a round for each event, and fill the machine at a rate that it could
/// serve with a few.
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
    /// The first round may begin at once.
    fn default() -> Self {
        Self { paused_until: Instant::now() }
    }
}

impl RoundLimiter {
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

    #[test]
    fn waits_stay_within_the_limit_and_start_again_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        for attempt in 0..50_u32 {
            let limit = Duration::from_millis(100 << attempt.min(10)).min(Duration::from_secs(2));
            assert!(backoff.next_wait() <= limit, "attempt {attempt} waited longer than {limit:?}");
        }
        backoff.reset();
        assert!(backoff.next_wait() <= Duration::from_millis(100));
    }

    #[test]
    fn waits_are_drawn_evenly_from_zero_to_the_limit() {
        fastrand::seed(1);
        let limit = Duration::from_secs(1);
        let mut backoff = Backoff::new(limit, limit);
        let mut tenths = [0_u32; 10];
        for _ in 0..10_000 {
            let tenth = backoff.next_wait().as_millis() / 100;
            tenths[usize::try_from(tenth).unwrap_or_default().min(9)] += 1;
        }
        assert!(tenths.iter().all(|waits| (900..1_100).contains(waits)), "{tenths:?}");
    }

    const ROUND: Duration = Duration::from_millis(4);

    #[tokio::test(start_paused = true)]
    async fn rounds_without_a_break_take_half_of_the_time() {
        let mut limiter = RoundLimiter::default();
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
        let mut limiter = RoundLimiter::default();
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
        let mut limiter = RoundLimiter::default();
        sleep(Duration::from_secs(10)).await;
        let due = Instant::now();
        limiter.wait(Duration::from_secs(10)).await;
        assert!(due.elapsed() <= LONGEST_ROUND, "{:?}", due.elapsed());
    }
}
