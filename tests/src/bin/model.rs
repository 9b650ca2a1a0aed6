//! Runs the model of clients and an adversary: one seed with its history, or a number of random
//! steps on the specification or on the scripts.
//!
//! `make model SEED=n` and `make soak-model` run it.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, ValueEnum};
use leasehold_tests::{
    model::{
        exhaustive::{LEVELS, Search, state::PathBounds},
        random::{RandomWalk, Walk},
        recovery::random::RecoveryWalk,
        redlock::{NODES, random::RedlockWalk},
        scripts::{ScriptReplay, StoreForm},
        shrink::shrink,
    },
    redis::shared_server::own_redis,
};
use tokio::time::Instant;

/// Number of histories between two lines of progress.
const REPORT_INTERVAL: u64 = 5_000;

#[derive(Debug, Parser)]
struct Args {
    /// Run this seed only, and print its history
    #[arg(long)]
    seed: Option<u64>,
    /// Number of steps
    #[arg(long, default_value_t = 10_000_000)]
    steps: u64,
    /// Store of the model
    #[arg(long, value_enum, default_value_t = Store::Memory)]
    store: Store,
    /// Keep the number of steps in this file, and continue from there
    #[arg(long)]
    progress: Option<PathBuf>,
    /// Examine every history within bounds, which rise until the time is up
    #[arg(long)]
    exhaustive: bool,
    /// Number of locks of the exhaustive search
    #[arg(long, default_value_t = 1)]
    locks: u8,
    /// Search within these bounds only: calls, operations, time steps and faults, such as 2,2,1,1
    #[arg(long)]
    bounds: Option<PathBounds>,
    /// Time of the exhaustive search
    #[arg(long, default_value_t = 30)]
    minutes: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Store {
    /// The specification
    Memory,
    /// The scripts, as on one server
    Node,
    /// The scripts, as in a cluster
    Cluster,
    /// The specification, as the nodes of a RedLock store
    Redlock,
    /// The scripts, as the nodes of a RedLock store
    RedlockScripts,
    /// The limit of spans, and the time without grants after a loss of data
    Recovery,
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Node => "node",
            Self::Cluster => "cluster",
            Self::Redlock => "redlock",
            Self::RedlockScripts => "redlock-scripts",
            Self::Recovery => "recovery",
        })
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.exhaustive {
        return search(&args);
    }
    let replay = |form| ScriptReplay::new(own_redis(), form, str::to_owned);
    let replays = match args.store {
        Store::Memory | Store::Redlock | Store::Recovery => Vec::new(),
        Store::Node => vec![replay(StoreForm::Node)],
        Store::Cluster => vec![replay(StoreForm::Cluster)],
        Store::RedlockScripts => (0..NODES).map(|_| replay(StoreForm::Node)).collect(),
    };
    let run = Run {
        store: args.store,
        replays,
        counts: BTreeMap::new(),
    };
    match args.store {
        Store::Memory | Store::Node | Store::Cluster => run.start::<RandomWalk>(&args),
        Store::Redlock | Store::RedlockScripts => run.start::<RedlockWalk>(&args),
        Store::Recovery => run.start::<RecoveryWalk>(&args),
    }
}

/// Searches with rising bounds until a property is violated or the time is up.
fn search(args: &Args) -> ExitCode {
    let began = Instant::now();
    let deadline = began + Duration::from_secs(args.minutes * 60);
    let mut counts = BTreeMap::new();
    let levels = args.bounds.map_or(LEVELS.to_vec(), |bounds| vec![bounds]);
    for bounds in levels {
        let search = Search {
            locks: args.locks,
            bounds,
            states_max: None,
            deadline: Some(deadline),
        };
        let result = search.run();
        println!("{result}, {:.1} s", began.elapsed().as_secs_f32());
        if let Some(violation) = result.violation {
            println!("{violation}");
            return ExitCode::FAILURE;
        }
        for (event, count) in &result.counts {
            *counts.entry(*event).or_insert(0) += count;
        }
        if !result.is_complete {
            break;
        }
    }
    println!("{counts:?}");
    ExitCode::SUCCESS
}

struct Run {
    store: Store,
    /// The stores on which each history is repeated.
    replays: Vec<ScriptReplay>,
    counts: BTreeMap<&'static str, u64>,
}

impl Run {
    fn start<W: Walk>(mut self, args: &Args) -> ExitCode {
        match args.seed {
            Some(seed) => self.seed::<W>(seed, true),
            None => self.series::<W>(args),
        }
    }

    /// Runs one seed after the other, from where the last run ended.
    fn series<W: Walk>(&mut self, args: &Args) -> ExitCode {
        let steps_per_seed = u64::try_from(W::STEPS).expect("few");
        let seeds = args.steps.div_ceil(steps_per_seed);
        let first = args.progress.as_deref().map_or(0, read_progress);
        for seed in first..seeds {
            if self.seed::<W>(seed, false) != ExitCode::SUCCESS {
                return ExitCode::FAILURE;
            }
            if (seed + 1).is_multiple_of(REPORT_INTERVAL) {
                println!("{} of {} steps", (seed + 1) * steps_per_seed, args.steps);
                write_progress(args.progress.as_deref(), seed + 1);
            }
        }
        write_progress(args.progress.as_deref(), seeds);
        println!(
            "{}: {} steps in {seeds} histories, 0 violations",
            args.store,
            seeds * steps_per_seed
        );
        println!("{:?}", self.counts);
        ExitCode::SUCCESS
    }

    /// Runs one seed, and prints its history if it is violated or `is_shown`.
    fn seed<W: Walk>(&mut self, seed: u64, is_shown: bool) -> ExitCode {
        let mut walk = W::new(seed, !self.replays.is_empty());
        if let Err(violation) = walk.run() {
            let violation = shrink(|| W::new_world(seed), *violation);
            println!("seed {seed}: {violation}");
            println!(
                "repeat it with: make model STORE={} SEED={seed}",
                self.store
            );
            return ExitCode::FAILURE;
        }
        if is_shown {
            for action in &walk.history().actions {
                println!("{action}");
            }
            println!("seed {seed}: 0 violations");
        }
        let results = walk.into_results();
        let mut replays = self.replays.iter_mut().zip(&results.journals);
        if let Some(difference) = replays.find_map(|(replay, journal)| replay.run(journal)) {
            println!("seed {seed}: {difference:#?}");
            return ExitCode::FAILURE;
        }
        for (event, count) in results.counts {
            *self.counts.entry(event).or_default() += count;
        }
        ExitCode::SUCCESS
    }
}

fn read_progress(file: &Path) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn write_progress(file: Option<&Path>, seeds: u64) {
    if let Some(file) = file {
        fs::write(file, seeds.to_string()).expect("a writable file");
    }
}
