//! Judges histories that clients recorded, as a test of faults writes one that violates a rule.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::{fs, path::PathBuf, process::ExitCode};

use clap::Parser;
use leasehold_tests::history::{judge, lines::decode};

/// Judges a history by the guarantees that clients can observe.
#[derive(Debug, Parser)]
struct Args {
    /// Files with one JSON object on each line, all recorded with the same clock.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let mut text = String::new();
    for file in Args::parse().files {
        match fs::read_to_string(&file) {
            Ok(lines) => text.push_str(&lines),
            Err(error) => {
                println!("{} cannot be read: {error}", file.display());
                return ExitCode::FAILURE;
            }
        }
    }
    let events = match decode(&text) {
        Ok(events) => events,
        Err((line, error)) => {
            println!("line {line} is not an event: {error}");
            return ExitCode::FAILURE;
        }
    };
    let verdict = judge(&events);
    println!("{} events: {verdict}", events.len());
    match verdict.violations.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
