use std::time::Duration;

/// The generator from which a run draws everything that its seed determines, in one order.
pub(crate) struct RandomSource(fastrand::Rng);

impl RandomSource {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn one_in(&mut self, n: u32) -> bool {
        self.0.u32(0..n.max(1)) == 0
    }

    /// From `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: usize, most: usize) -> usize {
        self.0.usize(least..=most.max(least))
    }

    /// From `least` to `most` milliseconds, both included.
    pub(crate) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.0.u64(least..=most.max(least)))
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.usize(0..from.len())]
    }

    /// Between zero and `whole`, evenly distributed.
    pub(crate) fn part_of(&mut self, whole: Duration) -> Duration {
        whole.mul_f64(self.0.f64())
    }

    pub(crate) fn id(&mut self) -> uuid::Uuid {
        uuid::Uuid::from_u128(self.0.u128(1..))
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }
}
