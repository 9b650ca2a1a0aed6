//! `make bench`: the broker beside the limits of its parts, measured in one run, as tables.
//!
//! With `calls`, `streams`, `leases`, `sdk`, `topologies`, `listing`, `access`, `metrics` or `peers` as arguments only those parts; with
//! `--quick` less of each; with `peers --write` the figures of that part go into the docs.
//!
//! Every part is a process of its own, as in production: this load generator, the broker (or a
//! bare gRPC echo in its place) and Redis. They share the cores of one machine, so only the ratios
//! say something about another one.

#![expect(clippy::print_stdout, reason = "its output is the tables")]

mod access;
mod echo;
mod grpc;
mod hand_off;
mod listing;
mod metrics;
mod modes;
mod pairs;
mod peers;
mod report;
mod scripts;
mod sdk;
mod streams;
mod targets;
mod topologies;

use std::time::Duration;

use crate::modes::Modes;
use crate::report::{HandOffs, Pairs, Report};
use crate::targets::Targets;

const CALLERS: [usize; 3] = [1, 64, 256];
const PAIR_ROUNDS: usize = 5;
/// What it costs to know who calls is less than the machine's pace changes.
const ACCESS_ROUNDS: usize = 11;
const METRIC_ROUNDS: usize = 60;
const HAND_OFF_ROUNDS: usize = 3;
const MODE_ROUNDS: usize = 3;
/// A part that takes longer hangs.
const PART_LIMIT: Duration = Duration::from_secs(420);
const PEERS_LIMIT: Duration = Duration::from_secs(7_200);
/// By their names as arguments.
const PARTS: [(&str, Part); 9] = [
    ("calls", Part::Calls),
    ("streams", Part::Streams),
    ("leases", Part::Leases),
    ("sdk", Part::Sdk),
    ("topologies", Part::Topologies),
    ("listing", Part::Listing),
    ("access", Part::Access),
    ("metrics", Part::Metrics),
    ("peers", Part::Peers),
];

/// What is measured one after the other.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// Unary calls, of every kind of lock.
    Calls,
    /// The same on lease streams.
    Streams,
    /// Standing leases on streams.
    Leases,
    /// The Rust client.
    Sdk,
    /// Unary calls on every topology of Redis.
    Topologies,
    /// Unary calls while somebody lists many locks.
    Listing,
    /// Unary calls of callers who show who they are.
    Access,
    /// Unary calls at brokers that count them, and that do not.
    Metrics,
    /// Other systems that do the same.
    Peers,
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    let has = |argument: &str| std::env::args().any(|given| given == argument);
    if has(echo::ARGUMENT) {
        runtime.block_on(echo::serve());
        return;
    }
    if has(peers::ARGUMENT) {
        runtime.block_on(peers::run(std::env::args()));
        return;
    }
    if has(sdk::ARGUMENT) {
        runtime.block_on(sdk::hold_guards(std::env::args()));
        return;
    }
    let is_quick = has("--quick");
    let has_none = !PARTS.iter().any(|(name, _)| has(name));
    for (name, part) in PARTS {
        if has_none || has(name) {
            println!(
                "{}",
                runtime.block_on(limited(part, part.measure(is_quick)))
            );
        }
    }
}

impl Part {
    /// Its tables.
    async fn measure(self, is_quick: bool) -> String {
        let extent = if is_quick {
            streams::QUICK
        } else {
            streams::FULL
        };
        match self {
            Self::Calls => {
                let (report, modes) = measure_calls(is_quick).await;
                format!("{report}\n{modes}")
            }
            Self::Streams => streams::measure(&extent).await.to_string(),
            Self::Leases => streams::measure_leases(&extent).await.to_string(),
            Self::Sdk if is_quick => sdk::measure(&sdk::QUICK).await.to_string(),
            Self::Sdk => sdk::measure(&sdk::FULL).await.to_string(),
            Self::Topologies => {
                let rounds = if is_quick { 1 } else { PAIR_ROUNDS };
                topologies::measure(rounds).await.to_string()
            }
            Self::Listing if is_quick => listing::measure(&listing::QUICK).await.to_string(),
            Self::Listing => listing::measure(&listing::FULL).await.to_string(),
            Self::Access => {
                let rounds = if is_quick { 1 } else { ACCESS_ROUNDS };
                access::measure(rounds).await.to_string()
            }
            Self::Peers => peers::part(is_quick).await,
            Self::Metrics => {
                let rounds = if is_quick { 1 } else { METRIC_ROUNDS };
                metrics::measure(rounds).await.to_string()
            }
        }
    }
}

async fn limited<T>(part: Part, measured: impl Future<Output = T>) -> T {
    let is_long = matches!(part, Part::Peers);
    let limit = if is_long { PEERS_LIMIT } else { PART_LIMIT };
    tokio::time::timeout(limit, measured)
        .await
        .expect("it ends")
}

/// Rounds are interleaved, so that a slow moment of the machine meets every target alike.
async fn measure_calls(is_quick: bool) -> (Report, Modes) {
    let at_most = |rounds: usize| if is_quick { 1 } else { rounds };
    let [pair_rounds, hand_off_rounds, mode_rounds] =
        [PAIR_ROUNDS, HAND_OFF_ROUNDS, MODE_ROUNDS].map(at_most);
    let targets = Targets::start().await;
    let mut report = Report::new(pair_rounds, hand_off_rounds);
    for _ in 0..pair_rounds {
        for callers in CALLERS {
            report.pairs(
                Pairs::Memory,
                callers,
                grpc::pairs(targets.memory(), callers).await,
            );
            report.pairs(
                Pairs::Redis,
                callers,
                grpc::pairs(targets.redis(), callers).await,
            );
            report.pairs(
                Pairs::Scripts,
                callers,
                scripts::pairs(targets.scripts(), callers).await,
            );
            report.pairs(
                Pairs::Echo,
                callers,
                grpc::pairs(targets.echo(), callers).await,
            );
        }
    }
    for round in 0..hand_off_rounds {
        let [one, other] = [targets.redis(), targets.second_redis()];
        let memory = hand_off::run(&[targets.memory()], round).await;
        report.hand_offs(HandOffs::Memory, memory);
        report.hand_offs(HandOffs::Redis, hand_off::run(&[one], round).await);
        report.hand_offs(
            HandOffs::TwoBrokers,
            hand_off::run(&[one, other], 1000 + round).await,
        );
    }
    let mut modes = Modes::default();
    for _ in 0..mode_rounds {
        modes.round(targets.redis()).await;
    }
    (report, modes)
}
