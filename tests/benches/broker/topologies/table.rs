//! Table of the topologies: medians, and ratios to one node.

use std::fmt;

use super::{Topologies, Topology};
use crate::report::{machine, median, ms};

impl fmt::Display for Topologies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", machine())?;
        writeln!(
            f,
            "Medians of {} interleaved rounds; unary calls to one broker for each row. A pair is an acquire and a\n\
             release, each caller on its own lock. Every server appends to a file that is synced once a second. One\n\
             topology runs at a time: servers, Sentinels and brokers of the others are stopped (SIGSTOP) meanwhile.\n",
            self.rounds
        )?;
        writeln!(
            f,
            "| {:44} | {:>7} | {:>8} | {:>7} | {:>7} | {:>6} | {:>12} |",
            "what", "callers", "per s", "p50 ms", "p99 ms", "÷ node", "p99 ÷ node's"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|")?;
        for (&(callers, topology), rounds) in &self.pairs {
            let sample = median(rounds);
            let node = median(&self.pairs[&(callers, Topology::Node)]);
            writeln!(
                f,
                "| {:44} | {callers:>7} | {:>8.0} | {:>7} | {:>7} | {:>6.2} | {:>12.2} |",
                topology.name(),
                sample.per_second,
                ms(sample.p50),
                ms(sample.p99),
                sample.per_second / node.per_second,
                sample.p99.as_secs_f64() / node.p99.as_secs_f64(),
            )?;
        }
        Ok(())
    }
}

impl Topology {
    fn name(self) -> &'static str {
        match self {
            Self::Node => "one node",
            Self::Tls => "one node, by TLS",
            Self::Sentinel => "Sentinel (1+2+3), wait_replicas 0",
            Self::SentinelWaits => "Sentinel (1+2+3), wait_replicas 1",
            Self::Cluster => "Cluster (3+3)",
            Self::RedLock => "RedLock (5)",
        }
    }
}
