//! Text output: medians of the rounds, ratios, and the machine.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;
use std::time::Duration;

use leasehold_tests::process::binaries::store_server;

use crate::hand_off::{HandOffQueue, WAITERS};
use crate::pairs::Sample;

/// Target of the pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pairs {
    Memory,
    Redis,
    Scripts,
    Echo,
}

/// Brokers and store of the hand-offs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HandOffs {
    Memory,
    Redis,
    TwoBrokers,
}

/// State of the queue during the hand-offs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Full,
    Emptying,
}

/// Results of the rounds, displayed as a table.
pub(crate) struct Report {
    rounds: (usize, usize),
    pairs: BTreeMap<(Pairs, usize), Vec<Sample>>,
    hand_offs: BTreeMap<(HandOffs, Phase), Vec<Sample>>,
}

impl Report {
    pub(crate) fn new(pair_rounds: usize, hand_off_rounds: usize) -> Self {
        let rounds = (pair_rounds, hand_off_rounds);
        Self {
            rounds,
            pairs: BTreeMap::new(),
            hand_offs: BTreeMap::new(),
        }
    }

    pub(crate) fn pairs(&mut self, target: Pairs, callers: usize, sample: Sample) {
        self.pairs
            .entry((target, callers))
            .or_default()
            .push(sample);
    }

    pub(crate) fn hand_offs(&mut self, target: HandOffs, line: HandOffQueue) {
        self.hand_offs
            .entry((target, Phase::Full))
            .or_default()
            .push(line.full);
        self.hand_offs
            .entry((target, Phase::Emptying))
            .or_default()
            .push(line.emptying);
    }

    fn pair_row(&self, target: Pairs, callers: usize, rounds: &[Sample]) -> String {
        let sample = median(rounds);
        let limit = |limit: Pairs| median(&self.pairs[&(limit, callers)]);
        let (scripts, echo) = (limit(Pairs::Scripts), limit(Pairs::Echo));
        let rate_to = |limit: Sample| format!("{:.2}", sample.per_second / limit.per_second);
        let p50_to_parts = sample.p50.as_secs_f64() / (scripts.p50 + echo.p50).as_secs_f64();
        let ratios = [
            rate_to(scripts),
            rate_to(echo),
            format!("{p50_to_parts:.2}"),
        ];
        let name = match target {
            Pairs::Memory => "pairs: broker, embedded store",
            Pairs::Redis => "pairs: broker on Redis",
            Pairs::Scripts => "pairs: (a) fred alone, same scripts",
            Pairs::Echo => "pairs: (b) bare tonic echo",
        };
        row(name, callers, sample, &ratios)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", machine())?;
        let (pairs, hand_offs) = self.rounds;
        writeln!(
            f,
            "Medians of {pairs} ({hand_offs} for hand-offs) interleaved rounds. A pair is an acquire"
        )?;
        writeln!(
            f,
            "and a release, each caller on its own lock; its latency is that of both calls."
        )?;
        writeln!(
            f,
            "Hand-off latency: from the sending of Release to the next holder's receipt.\n"
        )?;
        writeln!(
            f,
            "| {:47} | {:>7} | {:>8} | {:>7} | {:>7} | {:>5} | {:>5} | {:>17} |",
            "what", "callers", "per s", "p50 ms", "p99 ms", "÷ (a)", "÷ (b)", "p50 ÷ ((a) + (b))"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|--:|")?;
        for ((target, callers), rounds) in &self.pairs {
            writeln!(f, "{}", self.pair_row(*target, *callers, rounds))?;
        }
        for ((target, phase), rounds) in &self.hand_offs {
            writeln!(f, "{}", hand_off_row(*target, *phase, rounds))?;
        }
        Ok(())
    }
}

fn hand_off_row(target: HandOffs, phase: Phase, rounds: &[Sample]) -> String {
    let sample = median(rounds);
    let of = match target {
        HandOffs::Memory => "embedded store",
        HandOffs::Redis => "Redis",
        HandOffs::TwoBrokers => "Redis, two brokers",
    };
    let name = match phase {
        Phase::Full => format!("hand-offs: {of}, all join again"),
        Phase::Emptying => format!("hand-offs: {of}, queue runs empty"),
    };
    row(&name, WAITERS, sample, &[const { String::new() }; 3])
}

fn row(name: &str, callers: usize, sample: Sample, ratios: &[String; 3]) -> String {
    let [to_scripts, to_echo, p50_to_parts] = ratios;
    format!(
        "| {name:47} | {callers:>7} | {:>8.0} | {:>7} | {:>7} | {to_scripts:>5} | {to_echo:>5} | {p50_to_parts:>17} |",
        sample.per_second,
        ms(sample.p50),
        ms(sample.p99),
    )
}

/// Returns the medians of each figure separately.
pub(crate) fn median(rounds: &[Sample]) -> Sample {
    let mut rates: Vec<_> = rounds.iter().map(|sample| sample.per_second).collect();
    rates.sort_unstable_by(f64::total_cmp);
    let middle = |figure: fn(&Sample) -> Duration| {
        let mut figures: Vec<_> = rounds.iter().map(figure).collect();
        figures.sort_unstable();
        figures[figures.len() / 2]
    };
    let per_second = rates[rates.len() / 2];
    Sample {
        per_second,
        p50: middle(|sample| sample.p50),
        p99: middle(|sample| sample.p99),
    }
}

/// Returns the median of the ratios of the rounds. The machine's speed varies more between rounds
/// than what is compared.
pub(crate) fn median_ratio(rounds: &[Sample], base: &[Sample]) -> f64 {
    let both = rounds.iter().zip(base);
    let ratios = both.map(|(one, base)| one.per_second / base.per_second);
    let mut ratios: Vec<_> = ratios.collect();
    ratios.sort_unstable_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

pub(crate) fn ms(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1_000.0)
}

/// Returns a number without a fraction, whose thousands are separated by commas.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let first = (digits.len() + 2) % 3 + 1;
    let mut groups = vec![&digits[..first]];
    groups.extend(
        (first..digits.len())
            .step_by(3)
            .map(|at| &digits[at..at + 3]),
    );
    groups.join(",")
}

/// Describes the machine and the software versions.
pub(crate) fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown CPU", |rest| {
        rest.trim_start_matches([' ', '\t', ':'])
    });
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let server = Command::new(store_server()).arg("--version").output();
    let server = server.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    // The output is "Redis server v=7.0.15 ...", or that of Valkey.
    let mut words = server.as_deref().unwrap_or("").split_whitespace();
    let store = words.next().unwrap_or("Redis");
    let version = words.find_map(|word| word.strip_prefix("v="));
    let version = version.unwrap_or("of unknown version");
    let kernel = kernel.trim();
    format!("{model}, {cores} cores for everything, Linux {kernel}, {store} {version}")
}
