//! Random histories of the models.

use std::collections::BTreeMap;

use leasehold_tests::{
    model::{
        random::{RandomWalk, Walk},
        recovery::random::RecoveryWalk,
        redlock::random::RedlockWalk,
        shrink::shrink,
    },
    scale::{print_figures, scaled_count},
};

/// Number of histories at full scale.
const HISTORIES: usize = 70_000;
/// Number of histories of a RedLock store at full scale.
const REDLOCK_HISTORIES: usize = 20_000;

/// Number of histories of a store that loses data at full scale.
const RECOVERY_HISTORIES: usize = 250_000;

/// Always the same histories, so that the result depends on the code only: `make soak-model` has
/// more of them.
#[test]
fn no_history_violates_a_property() {
    run::<RandomWalk>("memory", HISTORIES);
}

#[test]
fn no_history_of_redlock_violates_a_property() {
    run::<RedlockWalk>("redlock", REDLOCK_HISTORIES);
}

#[test]
fn no_history_of_a_recovery_has_two_holders() {
    run::<RecoveryWalk>("recovery", RECOVERY_HISTORIES);
}

fn run<W: Walk>(store: &str, histories: usize) {
    let histories = scaled_count(histories, 1_000) as u64;
    let mut counts = BTreeMap::new();
    for seed in 0..histories {
        let mut walk = W::new(seed, false);
        if let Err(violation) = walk.run() {
            let shortest = shrink(|| W::new_world(seed), *violation);
            panic!("seed {seed}: {shortest}\nrepeat it with: make model STORE={store} SEED={seed}");
        }
        for (event, count) in walk.into_results().counts {
            *counts.entry(event).or_insert(0) += count;
        }
    }
    print_figures(&format!(
        "model of {store}: {histories} histories of {} actions, 0 violations; {counts:?}",
        W::STEPS
    ));
}
