//! How big a run is: LEASEHOLD_TEST_SCALE scales counts and durations (`make soak` sets 1).

use std::io::Write;
use std::time::Duration;

const VARIABLE: &str = "LEASEHOLD_TEST_SCALE";
const DEFAULT: f64 = 0.1;

/// The factor.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the one setting of the test runs"
)]
pub fn scale() -> f64 {
    match std::env::var(VARIABLE) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{VARIABLE}={text} is not a number")),
        Err(_) => DEFAULT,
    }
}

/// `full` scaled, but at least `least`.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "counts of a test run"
)]
pub fn count(full: usize, least: usize) -> usize {
    ((full as f64 * scale()).round() as usize).max(least)
}

/// `full` scaled, but at least `least`.
#[must_use]
pub fn duration(full: Duration, least: Duration) -> Duration {
    full.mul_f64(scale()).max(least)
}

/// Prints a line of figures past the test runner's capture, to be quoted.
pub fn figures(line: &str) {
    writeln!(std::io::stderr(), "FIGURES {line}").expect("stderr is open");
}

/// Prints a line to be seen by people, past the test runner's capture, although the test passes.
pub fn warning(line: &str) {
    writeln!(std::io::stderr(), "WARNING {line}").expect("stderr is open");
}
