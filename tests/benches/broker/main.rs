//! `make bench`: the broker beside the limits of its parts, measured in one run, as tables.
//!
//! Every part is a process of its own, as in production: this load generator, the broker (or a
//! bare gRPC echo in its place) and Redis. They share the cores of one machine, so only the ratios
//! say something about another one.

#![expect(clippy::print_stdout, reason = "its output is the tables")]

mod echo;
mod grpc;
mod hand_off;
mod modes;
mod pairs;
mod report;
mod scripts;
mod targets;

use std::time::Duration;

use crate::modes::Modes;
use crate::report::{HandOffs, Pairs, Report};
use crate::targets::Targets;

const CALLERS: [usize; 3] = [1, 64, 256];
const PAIR_ROUNDS: usize = 5;
const HAND_OFF_ROUNDS: usize = 3;
const MODE_ROUNDS: usize = 3;
/// A run that takes longer hangs.
const RUN_LIMIT: Duration = Duration::from_secs(420);

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    if std::env::args().any(|argument| argument == echo::ARGUMENT) {
        runtime.block_on(echo::serve());
        return;
    }
    let run = async {
        tokio::time::timeout(RUN_LIMIT, measure())
            .await
            .expect("the run ends")
    };
    let (report, modes) = runtime.block_on(run);
    println!("{report}\n{modes}");
}

/// Rounds are interleaved, so that a slow moment of the machine meets every target alike.
async fn measure() -> (Report, Modes) {
    let targets = Targets::start().await;
    let mut report = Report::new(PAIR_ROUNDS, HAND_OFF_ROUNDS);
    for _ in 0..PAIR_ROUNDS {
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
    for round in 0..HAND_OFF_ROUNDS {
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
    for _ in 0..MODE_ROUNDS {
        modes.round(targets.redis()).await;
    }
    (report, modes)
}
