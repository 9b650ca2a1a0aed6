//! Size of a deployment, computed from the unit costs.

use std::fmt::Write as _;

use super::{
    Capacity, LEASES_PER_STREAM, TTL,
    table::{Basis, lease, renewal, size, stream},
    units::{Calls, Cpu, PairCost},
};
use crate::{report::thousands, site::Store, streams::leases::HEARTBEATS_PER_TTL};

const LEASES: f64 = 1_000_000.0;
const PAIRS_PER_SECOND: f64 = 100_000.0;
/// Share of a core that is used at most, so that pauses and failures leave room.
const USE_MAX: f64 = 0.7;
/// Cores of a broker's machine.
const BROKER_CORES: f64 = 4.0;

/// Lines of the table.
struct Lines(String);

impl Lines {
    fn add(&mut self, what: &str, figure: &str, basis: Basis) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "| {what} | {figure} | {basis} |");
    }
}

impl Capacity {
    /// Returns the table of what [`LEASES`] leases and [`PAIRS_PER_SECOND`] need in a cluster.
    pub(super) fn deployment(&self) -> String {
        let in_cluster =
            |pair: &&PairCost| pair.store == Store::Cluster && pair.calls == Calls::Stream;
        let pair = self.pairs.iter().find(in_cluster);
        let pair = pair.expect("pairs in a cluster are measured").cpu;
        let renewal = renewal(&self.in_cluster);
        let mut lines = Lines(
            "| line | figure | basis |\n\
             | -- | -: | -- |\n"
                .to_owned(),
        );
        let renewals = LEASES * f64::from(HEARTBEATS_PER_TTL) / TTL.as_secs_f64();
        let what = format!(
            "renewals/s of {} leases, {HEARTBEATS_PER_TTL} in a ttl of {} s",
            thousands(LEASES),
            TTL.as_secs()
        );
        lines.add(&what, &thousands(renewals), Basis::Computed);
        let unit = |what: &str, us: f64| (what.to_owned(), format!("{us:.1} µs"));
        for (what, figure) in [
            unit("CPU of a master for a renewal", renewal.redis_us),
            unit("CPU of a master for a pair", pair.redis_us),
            unit("CPU of a broker for a renewal", renewal.broker_us),
            unit("CPU of a broker for a pair on a stream", pair.broker_us),
        ] {
            lines.add(&what, &figure, Basis::Measured);
        }
        let cores =
            |of: fn(&Cpu) -> f64| (renewals * of(&renewal) + PAIRS_PER_SECOND * of(&pair)) / 1e6;
        let masters_cores = cores(|cpu| cpu.redis_us);
        let brokers_cores = cores(|cpu| cpu.broker_us);
        let masters = (masters_cores / USE_MAX).ceil();
        let brokers = (brokers_cores / USE_MAX / BROKER_CORES).ceil();
        let with_pairs = format!(
            "for these renewals and {} pairs/s",
            thousands(PAIRS_PER_SECOND)
        );
        let at_most = format!("at most {:.0} % used", USE_MAX * 100.0);
        for (what, figure) in [
            (
                format!("cores of the masters {with_pairs}"),
                format!("{masters_cores:.1}"),
            ),
            (
                format!("**masters**, each with one core, {at_most}"),
                thousands(masters),
            ),
            (
                format!("cores of the brokers {with_pairs}"),
                format!("{brokers_cores:.1}"),
            ),
            (
                format!("**brokers**, each with {BROKER_CORES} cores, {at_most}"),
                thousands(brokers),
            ),
        ] {
            lines.add(&what, &figure, Basis::Computed);
        }
        self.memory(&mut lines, masters, brokers);
        lines.0
    }

    fn memory(&self, lines: &mut Lines, masters: f64, brokers: f64) {
        let held = self.on_redis.last().expect("leases on Redis are measured");
        let lease = lease(held);
        let own = self
            .streams
            .iter()
            .find(|held| held.shape.streams_per_connection == 1);
        let own = own.expect("streams with connections are measured");
        let connection = stream(own).broker;
        let idle = self.idle_broker_bytes as f64;
        for (what, bytes) in [
            ("memory of a master for a lease", lease.redis),
            ("memory of a broker for a lease", lease.broker),
            (
                "memory of a broker for a stream with its own connection",
                connection,
            ),
            ("memory of a broker without clients", idle),
        ] {
            lines.add(what, &size(bytes), Basis::Measured);
        }
        let streams = LEASES / LEASES_PER_STREAM as f64;
        let all = LEASES * lease.broker + streams * connection + brokers * idle;
        let each = format!(
            "with {} leases on each stream",
            thousands(LEASES_PER_STREAM as f64)
        );
        for (what, bytes) in [
            ("memory of all masters".to_owned(), LEASES * lease.redis),
            (
                "memory of each master".to_owned(),
                LEASES * lease.redis / masters,
            ),
            (format!("memory of all brokers {each}"), all),
            ("memory of each broker".to_owned(), all / brokers),
        ] {
            lines.add(&what, &size(bytes), Basis::Computed);
        }
    }
}
