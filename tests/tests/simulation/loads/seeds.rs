//! Seeds, each with a plan of its clients and faults.

use leasehold_tests::{
    history::{Verdict, lines::encode},
    scale::{print_figures, scaled_count},
    simulation::{
        plan::Plan,
        run::run,
        shrink::{Failure, narrate},
    },
};

const DURATION_MS: u64 = 600_000;
/// Number of seeds at full scale, and at any scale.
const SEEDS: usize = 200;
const SEEDS_MIN: usize = 10;
/// Numbers of each seed, on average, below which the plans would show nothing.
const GRANTS_MIN: usize = 300;
const ORDERED_PAIRS_MIN: usize = 30;
const VACANCIES_MIN: usize = 3;

#[test]
fn random_plans_violate_no_rule() {
    let seeds = scaled_count(SEEDS, SEEDS_MIN);
    let mut total = Verdict::default();
    for seed in 0..seeds {
        let seed = u64::try_from(seed).expect("few");
        let plan = Plan::new(seed, DURATION_MS);
        let outcome = run(&plan);
        total.add_figures(&outcome.verdict);
        if let Some(failure) = Failure::new(plan, outcome) {
            let shortest = failure.shrink().outcome;
            let history = narrate(&shortest.history);
            let verdict = shortest.verdict;
            panic!("seed {seed}: {verdict}{history}again: make simulate SEED={seed}");
        }
    }
    print_figures(&format!("seeds={seeds} {total}"));
    assert!(total.grants >= seeds * GRANTS_MIN, "{total}");
    assert!(total.ordered_pairs >= seeds * ORDERED_PAIRS_MIN, "{total}");
    assert!(total.vacancies >= seeds * VACANCIES_MIN, "{total}");
}

#[test]
fn a_seed_has_one_history() {
    let history = || encode(&run(&Plan::new(1, DURATION_MS)).history);
    let first = history();
    assert!(!first.is_empty());
    assert!(first == history(), "the histories of two runs differ");
}
