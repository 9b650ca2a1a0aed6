//! Random histories of the model.

use std::collections::BTreeMap;

use leasehold_tests::{
    model::{
        random::{RandomWalk, STEPS, world_size},
        shrink::shrink,
    },
    scale::{print_figures, scaled_count},
};

/// Number of histories at full scale.
const HISTORIES: usize = 70_000;

/// Always the same histories, so that the result depends on the code only: `make soak-model` has
/// more of them.
#[test]
fn no_history_violates_a_property() {
    let histories = scaled_count(HISTORIES, 1_000) as u64;
    let mut counts = BTreeMap::new();
    for seed in 0..histories {
        let mut walk = RandomWalk::new(seed, false);
        if let Err(violation) = walk.run(STEPS) {
            let shortest = shrink(world_size(seed, false), *violation);
            panic!("seed {seed}: {shortest}\nrepeat it with: make model SEED={seed}");
        }
        for (event, count) in walk.world.observations.counts {
            *counts.entry(event).or_insert(0) += count;
        }
    }
    print_figures(&format!(
        "model: {histories} histories of {STEPS} actions, 0 violations; {counts:?}"
    ));
}
