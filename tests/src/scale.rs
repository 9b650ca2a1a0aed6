//! Scale of test runs: `LEASEHOLD_TEST_SCALE` scales counts and durations (`make soak` sets it to
//! 1).

use std::io::Write;
use std::time::Duration;

const VARIABLE: &str = "LEASEHOLD_TEST_SCALE";
const DEFAULT: f64 = 0.1;

/// Returns the scale factor.
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

/// Returns `full` scaled, but at least `least`.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "counts of a test run"
)]
pub fn scaled_count(full: usize, minimum: usize) -> usize {
    ((full as f64 * scale()).round() as usize).max(minimum)
}

/// Returns `full` at full scale, otherwise 1: for rounds of half a minute.
#[must_use]
pub fn full_scale_count(full: usize) -> usize {
    if is_full_scale() { full } else { 1 }
}

/// Returns true if a run has its full counts.
#[must_use]
pub fn is_full_scale() -> bool {
    scale() >= 1.0
}

/// Returns `full` scaled, but at least `least`.
#[must_use]
pub fn scaled_duration(full: Duration, minimum: Duration) -> Duration {
    full.mul_f64(scale()).max(minimum)
}

/// Prints a line of results to stderr, which the test runner does not capture.
pub fn print_figures(line: &str) {
    writeln!(std::io::stderr(), "FIGURES {line}").expect("stderr is open");
}

/// Prints a warning to stderr, which the test runner does not capture, even if the test passes.
pub fn print_warning(line: &str) {
    writeln!(std::io::stderr(), "WARNING {line}").expect("stderr is open");
}
