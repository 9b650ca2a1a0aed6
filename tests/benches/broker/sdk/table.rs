//! Tables of the Rust client: medians, ratios to raw stubs, and bytes for each guard.

use std::fmt;

use super::{CallPath, Sdk, guards::HeldGuards};
use crate::{
    pairs::Sample,
    report::{machine, median, ms},
};

impl fmt::Display for Sdk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", machine())?;
        self.show_pairs(f)?;
        writeln!(f)?;
        self.show_kept(f)
    }
}

impl Sdk {
    fn show_pairs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Medians of {} interleaved rounds, broker on Redis. Callers share 4 connections or streams, or one\n\
             client; a pair is an acquire and a release, each caller on its own lock.\n",
            self.rounds
        )?;
        writeln!(
            f,
            "| {:22} | {:>7} | {:>8} | {:>7} | {:>7} | {:>7} | {:>8} |",
            "what", "callers", "per s", "p50 ms", "p99 ms", "÷ unary", "÷ stream"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|")?;
        for (&(callers, by), rounds) in &self.pairs {
            let share = |of| ratio(rounds, &self.pairs[&(callers, of)]);
            let (unary, stream) = (share(CallPath::Unary), share(CallPath::Stream));
            let what = match by {
                CallPath::Unary => "raw stubs: unary calls",
                CallPath::Stream => "raw stubs: streams",
                CallPath::Client => "Rust client",
            };
            let sample = median(rounds);
            writeln!(
                f,
                "| {what:22} | {callers:>7} | {:>8.0} | {:>7} | {:>7} | {unary:>7.2} | {stream:>8.2} |",
                sample.per_second,
                ms(sample.p50),
                ms(sample.p99),
            )?;
        }
        Ok(())
    }

    /// Writes the table of memory and CPU time of guards.
    fn show_kept(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Standing guards: a process with one client, ttl 15 s, a heartbeat every 5 s. Bytes are what it has\n\
             resident; CPU is its seconds per second, heartbeats and their acknowledgements included.\n"
        )?;
        writeln!(
            f,
            "| guards | connections | MiB | B/guard | CPU | µs/guard and s |"
        )?;
        writeln!(f, "|--:|--:|--:|--:|--:|--:|")?;
        let empty = self.kept.first().map_or(0, |kept| kept.bytes);
        for kept in &self.kept {
            let cpu = kept.cpu.as_secs_f64() / kept.window.as_secs_f64();
            writeln!(
                f,
                "| {} | {} | {:.1} | {} | {cpu:.4} | {} |",
                kept.guards,
                kept.connections,
                kept.bytes as f64 / f64::from(1 << 20),
                per_guard(kept, kept.bytes.saturating_sub(empty) as f64, 0),
                per_guard(kept, cpu * 1e6, 2),
            )?;
        }
        Ok(())
    }
}

fn per_guard(kept: &HeldGuards, amount: f64, digits: usize) -> String {
    match kept.guards {
        0 => String::new(),
        guards => format!("{:.digits$}", amount / guards as f64),
    }
}

fn ratio(rounds: &[Sample], to: &[Sample]) -> f64 {
    median(rounds).per_second / median(to).per_second
}
