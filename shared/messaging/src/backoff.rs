use std::time::Duration;

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
}
