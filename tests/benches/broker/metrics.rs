//! Cost of observability: metrics, and metrics with traces, compared with neither, in one run.

use std::{collections::BTreeMap, fmt, time::Duration};

use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    redis::server::RedisServer,
    telemetry::collector::Collector,
};

use crate::{
    grpc,
    pairs::Sample,
    report::{machine, median, median_ratio, ms},
};

const CALLERS: [usize; 2] = [1, 64];
/// Measured time of a round. Rounds are short and many, because the cost is smaller than the
/// variation of a shared machine over some seconds.
const MEASURED: Duration = Duration::from_millis(500);

/// Observability of a broker, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Instrumentation {
    Nothing,
    Metrics,
    /// Metrics, and traces of one call in a hundred, which are sent to a collector.
    Traces,
}

const ALL: [Instrumentation; 3] = [
    Instrumentation::Nothing,
    Instrumentation::Metrics,
    Instrumentation::Traces,
];

/// Results of the rounds, displayed as a table.
pub(crate) struct Metrics {
    rounds: usize,
    pairs: BTreeMap<(usize, Instrumentation), Vec<Sample>>,
}

/// A broker on its own Redis.
struct Fixture {
    seen: Instrumentation,
    broker: BrokerProcess,
    _redis: RedisServer,
}

impl Fixture {
    async fn start(seen: Instrumentation, collector: &Collector) -> Self {
        let redis = RedisServer::start().await;
        let mut options = BrokerOptions::for_store(redis.url());
        let settings = seen.settings(collector).into_iter();
        let settings = settings.map(|(key, value)| (key.to_owned(), value));
        options.env.extend(settings);
        options.init_store().await;
        Self {
            seen,
            broker: BrokerProcess::start(&options).await,
            _redis: redis,
        }
    }
}

/// Measures in interleaved rounds that begin with different brokers. Some processes of a program
/// are faster than others for their whole life, so each set of rounds starts new processes.
pub(crate) async fn measure(rounds: usize) -> Metrics {
    let collector = Collector::start().await;
    let mut pairs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for _ in 0..rounds.div_ceil(ALL.len()) {
        let mut sites = Vec::new();
        for seen in ALL {
            sites.push(Fixture::start(seen, &collector).await);
        }
        for _ in ALL {
            for site in &sites {
                for callers in CALLERS {
                    let sample = grpc::pairs_for(site.broker.addr(), callers, MEASURED).await;
                    pairs.entry((callers, site.seen)).or_default().push(sample);
                }
            }
            sites.rotate_left(1);
        }
    }
    assert!(!collector.received().is_empty(), "nothing was traced");
    let rounds = rounds.next_multiple_of(ALL.len());
    Metrics { rounds, pairs }
}

impl Instrumentation {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Metrics => "metrics",
            Self::Traces => "metrics, 1 % of traces",
        }
    }

    /// Returns the settings as environment variables.
    fn settings(self, collector: &Collector) -> Vec<(&'static str, String)> {
        let is_counted = self != Self::Nothing;
        let counted = ("LEASEHOLD__METRICS__ENABLED", is_counted.to_string());
        let traced = [
            ("LEASEHOLD__TRACING__OTLP_ENDPOINT", collector.url()),
            ("LEASEHOLD__TRACING__SAMPLE_RATIO", "0.01".to_owned()),
        ];
        let traced = traced.into_iter().filter(|_| self == Self::Traces);
        [counted].into_iter().chain(traced).collect()
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", machine())?;
        writeln!(
            f,
            "Medians of {} interleaved rounds, of the ratios too; a Redis for each broker, and new ones of both every {}.\n",
            self.rounds,
            ALL.len(),
        )?;
        writeln!(
            f,
            "| {:22} | {:>7} | {:>8} | {:>7} | {:>7} | {:>9} |",
            "what is seen", "callers", "per s", "p50 ms", "p99 ms", "÷ nothing"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|")?;
        for (&(callers, seen), rounds) in &self.pairs {
            let sample = median(rounds);
            let ratio = median_ratio(rounds, &self.pairs[&(callers, Instrumentation::Nothing)]);
            writeln!(
                f,
                "| {:22} | {callers:>7} | {:>8.0} | {:>7} | {:>7} | {ratio:>9.3} |",
                seen.name(),
                sample.per_second,
                ms(sample.p50),
                ms(sample.p99),
            )?;
        }
        Ok(())
    }
}
