//! Rate of grants outside faults, and the minimum that a run needs to prove anything.

use std::fmt;
use std::time::Duration;

const MINIMUM: f64 = 100.0;

/// Number of grants per second.
#[derive(Debug, Clone, Copy)]
pub struct GrantRate(f64);

impl GrantRate {
    /// Returns the rate of `grants` in `period`.
    #[must_use]
    pub fn new(grants: usize, period: Duration) -> Self {
        let grants = u32::try_from(grants).expect("fewer than 4 billion grants");
        Self(f64::from(grants) / period.as_secs_f64())
    }

    /// Panics if the rate is below 100 grants/s.
    pub fn assert_sufficient(self) {
        assert!(self.0 >= MINIMUM, "too little happened: {self} grants/s");
    }
}

impl fmt::Display for GrantRate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.0}", self.0)
    }
}
