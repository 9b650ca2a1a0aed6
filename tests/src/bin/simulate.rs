//! Simulates brokers in virtual time: one seed with its history, or as many seeds as fit into a
//! time.
//!
//! `make simulate SEED=n` and `make soak-simulate` run it.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::{
    fs,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use clap::Parser;
use leasehold_tests::{
    clock::boottime,
    history::{Verdict, lines::encode},
    simulation::{
        plan::Plan,
        run::run,
        shrink::{Failure, narrate},
    },
};

#[derive(Debug, Clone, Parser)]
struct Args {
    /// Run this seed only, and print its verdict.
    #[arg(long)]
    seed: Option<u64>,
    /// First seed of a series.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Number of seeds of a series.
    #[arg(long, default_value_t = 20)]
    count: u64,
    /// Simulated seconds of each seed.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Write the history of the seed into this file, as JSON lines.
    #[arg(long)]
    history: Option<PathBuf>,
    /// Run a series for at least this many seconds.
    #[arg(long, default_value_t = 0)]
    soak_seconds: u64,
    /// Number of threads of a series.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Keep the next seed and the elapsed time of a series in this file, and continue from there.
    #[arg(long)]
    progress: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match args.seed {
        Some(seed) => run_one(&args, seed),
        None => run_series(&args),
    }
}

fn run_one(args: &Args, seed: u64) -> ExitCode {
    let plan = Plan::new(seed, args.seconds * 1_000);
    let outcome = run(&plan);
    let verdict = format!("seed {seed}: {}", outcome.verdict);
    if let Some(path) = &args.history {
        fs::write(path, encode(&outcome.history)).expect("a writable file");
    }
    match Failure::new(plan, outcome) {
        Some(failure) => {
            report(seed, failure);
            ExitCode::FAILURE
        }
        None => {
            println!("{verdict}");
            ExitCode::SUCCESS
        }
    }
}

fn report(seed: u64, failure: Failure) {
    println!("seed {seed}: {}", failure.outcome.verdict);
    let failure = failure.shrink();
    println!("{}", narrate(&failure.outcome.history));
    println!(
        "shortest history of seed {seed}: {}",
        failure.outcome.verdict
    );
    println!("again: make simulate SEED={seed}");
}

/// Progress of a series.
struct Series {
    next_seed: u64,
    earlier: Duration,
}

fn run_series(args: &Args) -> ExitCode {
    let (started, has_failed) = (boottime(), AtomicBool::new(false));
    let (series, total) = (Mutex::new(load_progress(args)), Mutex::<Verdict>::default());
    let end = args.first + args.count;
    thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(|| {
                loop {
                    let seed = {
                        let mut series = series.lock().unwrap_or_else(PoisonError::into_inner);
                        let elapsed = series.earlier + (boottime() - started);
                        let is_over = elapsed >= Duration::from_secs(args.soak_seconds);
                        if (is_over && series.next_seed >= end)
                            || has_failed.load(Ordering::Relaxed)
                        {
                            return;
                        }
                        save_progress(args, series.next_seed, elapsed);
                        series.next_seed += 1;
                        series.next_seed - 1
                    };
                    let plan = Plan::new(seed, args.seconds * 1_000);
                    let outcome = run(&plan);
                    let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                    total.add_figures(&outcome.verdict);
                    drop(total);
                    if let Some(failure) = Failure::new(plan, outcome) {
                        has_failed.store(true, Ordering::Relaxed);
                        report(seed, failure);
                    }
                }
            });
        }
    });
    let series = series.lock().unwrap_or_else(PoisonError::into_inner);
    let seconds = (boottime() - started).as_secs_f64();
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "seeds up to {} in {seconds:.1} s of this run: {total}",
        series.next_seed
    );
    match has_failed.load(Ordering::Relaxed) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// Reads the progress: the next seed and the elapsed seconds.
fn load_progress(args: &Args) -> Series {
    let text = args
        .progress
        .as_ref()
        .and_then(|path| fs::read_to_string(path).ok());
    let text = text.unwrap_or_default();
    let mut numbers = text
        .split_whitespace()
        .filter_map(|number| number.parse().ok());
    Series {
        next_seed: numbers.next().unwrap_or(args.first),
        earlier: Duration::from_secs(numbers.next().unwrap_or(0)),
    }
}

fn save_progress(args: &Args, next_seed: u64, elapsed: Duration) {
    if let Some(path) = &args.progress {
        let text = format!("{next_seed} {}\n", elapsed.as_secs());
        fs::write(path, text).expect("a writable file");
    }
}
