//! Source of the random numbers of a broker.

use std::{ops::Range, sync::Arc};

use parking_lot::Mutex;
use rand::{Rng as _, RngCore, SeedableRng as _, rngs::StdRng};

/// Source of the random numbers by which a broker spreads its timers and names its attempts: the
/// generator of the thread by default. Cheap to clone; clones share one generator.
#[derive(Debug, Clone, Default)]
pub struct RandomSource(Option<Arc<Mutex<StdRng>>>);

impl RandomSource {
    /// Creates a source whose numbers follow from the seed, for runs that can be repeated. Not for
    /// production: the numbers can be predicted.
    pub fn seeded(seed: u64) -> Self {
        Self(Some(Arc::new(Mutex::new(StdRng::seed_from_u64(seed)))))
    }

    /// Returns a number of the range.
    pub fn number(&self, range: Range<f64>) -> f64 {
        self.with_generator(|generator| generator.gen_range(range))
    }

    /// Returns `N` bytes.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.with_generator(|generator| generator.fill_bytes(&mut bytes));
        bytes
    }

    fn with_generator<T>(&self, read: impl FnOnce(&mut dyn RngCore) -> T) -> T {
        match &self.0 {
            Some(seeded) => read(&mut *seeded.lock()),
            None => read(&mut rand::thread_rng()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_yield_equal_numbers() {
        let numbers = |source: RandomSource| (source.number(0.0..1.0), source.bytes::<8>());
        let seeded = numbers(RandomSource::seeded(1));
        assert_eq!(seeded, numbers(RandomSource::seeded(1)));
        assert_ne!(seeded, numbers(RandomSource::seeded(2)));
        assert_ne!(seeded, numbers(RandomSource::default()));
    }
}
