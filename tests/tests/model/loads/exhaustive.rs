//! Exhaustive search within bounds.

use leasehold_tests::{
    model::exhaustive::{Search, state::PathBounds},
    scale::{print_figures, scaled_count},
};

/// Number of states at full scale. A tenth of them are all states with one lock.
const STATES: usize = 2_100_000;
const BOUNDS: PathBounds = PathBounds::new(2, 1, 1, 1);

#[test]
fn no_short_history_with_one_lock_violates_a_property() {
    search(1);
}

#[test]
fn no_short_history_with_two_locks_violates_a_property() {
    search(2);
}

/// Always the same states, so that the result depends on the code only: `make soak-model` has more
/// of them.
fn search(locks: u8) {
    let search = Search {
        locks,
        bounds: BOUNDS,
        states_max: Some(scaled_count(STATES, 10_000)),
        deadline: None,
    };
    let result = search.run();
    print_figures(&format!("model: {result}"));
    if let Some(violation) = &result.violation {
        panic!("{violation}");
    }
}
