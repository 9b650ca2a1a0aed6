//! Comparison of the Lua scripts with the specification in random command sequences. A script with
//! one wrong line (a mutant) must be detected.

use std::{net::SocketAddr, thread};

use leasehold_server::store::redis::scripts::Verb;
use leasehold_tests::{
    differential::{
        SpecifiedSequence,
        generator::is_plain,
        mutants::{
            MUTANTS, Mutant, plain::MUTANTS_OF_PLAIN, revoking::MUTANTS_OF_REVOKING,
            several::MUTANTS_OF_SEVERAL, spans::MUTANTS_OF_SPANS, voting::MUTANTS_OF_VOTING,
        },
        outcome_counts::OutcomeCounts,
        script_runner::{CaseCounts, PlainCases, ScriptRunner},
        steps::LOW_BOUNDS,
    },
    redis::shared_server::own_nodes,
    scale::{print_figures, scaled_count},
};

const SEQUENCES: usize = 100_000;
/// Number of threads. Each thread has its own Redis server, which uses one core.
const THREADS: usize = 2;
/// Number of sequences within which a mutant must be found.
const MUTANT_SEQUENCES: usize = 5_000;
/// Number of sequences from which on the seed that found a mutant is printed.
const LATE_SEQUENCES: usize = 200;
/// Seeds that find mutants which few other seeds find. They are tried first, which saves half of
/// the time.
const TRIED_FIRST: [u64; 11] = [
    3_769, 2_273, 1_705, 791, 641, 577, 5_116, 12_216, 2_223, 4_024, 966,
];
/// Seeds that are tried first for mutants of plain cases.
const TRIED_FIRST_PLAIN: [u64; 4] = [16_741, 7_885, 1_933, 1_333];
/// The verbs with plain cases.
const PLAIN_VERBS: [Verb; 4] = [Verb::Acquire, Verb::Renew, Verb::Attach, Verb::Release];
/// Minimum number of occurrences of each outcome in `MUST_OCCUR` at full scale, and of the plain
/// cases and the other cases of each verb.
const OCCURRENCES_MIN: usize = 500;
const MUST_OCCUR: [&str; 64] = [
    "ended: expired",
    "ended: revoked",
    "ended: max_hold",
    "revoke: taken",
    "revoke: already",
    "renew: revoked",
    "attach: revoked",
    "release: revoked",
    "acquire: stale attach",
    "renew: elsewhere",
    "release: elsewhere",
    "attach: attached",
    "attach: moved",
    "attach: elsewhere",
    "attach: expired",
    "acquire: entered",
    "acquire: upgrade denied",
    "acquire: too many attempts",
    "acquire: too many entries",
    "acquire: lease not found",
    "release: an entry",
    "release: an entry already",
    "release: downgraded",
    "set limit",
    "set limit: mismatch",
    "set limit: removed",
    "acquire: closed by a lock_delay",
    "acquire: closed by an at_least",
    "acquire: closed by an operator",
    "close",
    "close: closed for longer",
    "close: time has passed",
    "open: opened",
    "open: not closed",
    "renew: max_hold",
    "acquire: granted beside holders",
    "acquire: limit mismatch",
    "several hand-offs at once",
    "local hand-off",
    "remote hand-off",
    "expiry",
    "cancel",
    "repeat",
    "late",
    "tombstone",
    "full",
    "recovering",
    "no era",
    "fall-back",
    "renew: claimed",
    "passed over",
    "dropped",
    "touch: rejoin",
    "vote: granted",
    "vote: repeat",
    "vote: raised",
    "vote: held",
    "vote: behind",
    "vote: ahead",
    "vote: recovering",
    "acquire: over the limit of spans",
    "renew: over the limit of spans",
    "vote: over the limit of spans",
    "acquire: cut to the limit of spans",
];

#[test]
fn the_scripts_answer_like_the_specification() {
    let sequences = scaled_count(SEQUENCES, 1_000) as u64;
    let first: u64 = rand::random::<u32>().into();
    print_figures(&format!(
        "differential: seeds {first} to {}",
        first + sequences - 1
    ));
    let run = |thread| {
        let mut runners = [PlainCases::Apart, PlainCases::Alike].map(|plain_cases| {
            ScriptRunner::new(own_nodes()[thread], LOW_BOUNDS, plain_cases, str::to_owned)
        });
        let mut counts = OutcomeCounts::default();
        for seed in (first + thread as u64..first + sequences).step_by(THREADS) {
            let sequence = SpecifiedSequence::new(seed, &mut counts);
            let [apart, alike] = runners.each_mut().map(|runner| {
                let record = sequence.run_on(runner);
                record.unwrap_or_else(|difference| panic!("{difference}"))
            });
            assert_eq!(apart.fields, alike.fields, "seed {seed}");
        }
        (counts, PLAIN_VERBS.map(|verb| runners[0].case_counts(verb)))
    };
    let mut counts = OutcomeCounts::default();
    let mut case_counts = [CaseCounts::default(); PLAIN_VERBS.len()];
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        for thread in threads {
            let (of_thread, cases) = thread.join().expect("no difference");
            counts.add(&of_thread);
            for (sum, part) in case_counts.iter_mut().zip(cases) {
                sum.plain += part.plain;
                sum.other += part.other;
            }
        }
    });
    let cases = PLAIN_VERBS.iter().zip(&case_counts);
    let cases: String = cases
        .map(|(verb, count)| format!("{verb:?}: {} plain, {} other\n", count.plain, count.other))
        .collect();
    print_figures(&format!(
        "differential: {sequences} sequences, 0 differences\n{cases}{counts}"
    ));
    let least = OCCURRENCES_MIN as u64 * sequences / SEQUENCES as u64;
    for outcome in MUST_OCCUR {
        assert!(
            counts.count_of(outcome) >= least,
            "{outcome} occurred fewer than {least} times"
        );
    }
    for CaseCounts { plain, other } in case_counts {
        assert!(plain.min(other) >= least, "{cases}");
    }
}

#[test]
fn every_mutant_is_found() {
    let mutants = MUTANTS.iter().chain(&MUTANTS_OF_REVOKING);
    let mutants = mutants.chain(&MUTANTS_OF_SEVERAL).chain(&MUTANTS_OF_VOTING);
    let mutants: Vec<_> = mutants.chain(&MUTANTS_OF_SPANS).collect();
    assert_all_found(PlainCases::Alike, &mutants);
}

#[test]
fn every_mutant_of_a_plain_case_is_found() {
    let mutants: Vec<_> = MUTANTS_OF_PLAIN.iter().collect();
    assert_all_found(PlainCases::Apart, &mutants);
}

/// The sequence that has found a mutant.
struct FindingSequence {
    seed: u64,
    /// Number of sequences that were run until then.
    tried: usize,
}

fn assert_all_found(plain_cases: PlainCases, mutants: &[&Mutant]) {
    let run = |thread: usize| {
        let addr = own_nodes()[thread];
        let mutants = mutants.iter().skip(thread).step_by(THREADS);
        let found = mutants.map(|mutant| (mutant.name, find(addr, plain_cases, mutant)));
        found.collect::<Vec<_>>()
    };
    let run = &run;
    let found = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .flat_map(|found| found.expect("no panic"))
            .collect::<Vec<_>>()
    });
    let missed = found.iter().filter(|(_, found)| found.is_none());
    let survivors: Vec<_> = missed.map(|(name, _)| name).collect();
    assert!(survivors.is_empty(), "not found: {survivors:?}");
    let late = found.iter().filter_map(|(name, found)| {
        let FindingSequence { seed, tried } = found.as_ref()?;
        let is_late = *tried > LATE_SEQUENCES;
        is_late.then(|| format!("\n{name}: after {tried} sequences, by seed {seed}"))
    });
    print_figures(&format!(
        "differential: {} mutants found, late ones:{}",
        found.len(),
        late.collect::<String>()
    ));
}

fn find(addr: SocketAddr, plain_cases: PlainCases, mutant: &Mutant) -> Option<FindingSequence> {
    let is_edited = std::cell::Cell::new(false);
    let mut machine = ScriptRunner::new(addr, LOW_BOUNDS, plain_cases, |text| {
        is_edited.set(is_edited.get() || text.contains(mutant.right));
        text.replace(mutant.right, mutant.wrong)
    });
    assert!(
        is_edited.get(),
        "the scripts no longer hold the text of: {}",
        mutant.name
    );
    let mut counts = OutcomeCounts::default();
    let alike = || ScriptRunner::new(addr, LOW_BOUNDS, PlainCases::Alike, str::to_owned);
    let mut correct = (plain_cases == PlainCases::Apart).then(alike);
    let mut is_found = |seed| {
        let sequence = SpecifiedSequence::new(seed, &mut counts);
        let Ok(record) = sequence.run_on(&mut machine) else {
            return true;
        };
        let expected = correct.as_mut().map(|runner| sequence.run_on(runner));
        expected.is_some_and(|expected| match expected {
            Ok(expected) => record.fields != expected.fields,
            Err(difference) => panic!("{difference}"),
        })
    };
    let first = match plain_cases {
        PlainCases::Alike => &TRIED_FIRST[..],
        PlainCases::Apart => &TRIED_FIRST_PLAIN[..],
    };
    let seeds = first.iter().copied().chain(0..);
    let seeds = seeds.filter(|seed| plain_cases == PlainCases::Alike || is_plain(*seed));
    let mut seeds = seeds.take(MUTANT_SEQUENCES).zip(1..);
    seeds.find_map(|(seed, tried)| is_found(seed).then_some(FindingSequence { seed, tried }))
}
