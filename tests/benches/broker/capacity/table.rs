//! Tables of the unit costs, and of the cost of many leases.

use std::fmt::{self, Write as _};

use super::{
    Capacity,
    units::{Calls, Cpu, Memory},
};
use crate::{
    pairs::Sample,
    report::{machine, ms, thousands},
    site::Store,
    streams::leases::HeldStreams,
};

/// Origin of a figure.
#[derive(Debug, Clone, Copy)]
pub(super) enum Basis {
    Measured,
    Computed,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Measured => "measured",
            Self::Computed => "computed",
        })
    }
}

impl Store {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "Redis",
            Self::Cluster => "Redis Cluster, 3 masters",
        }
    }
}

impl Capacity {
    /// Returns the table of unit costs.
    pub(super) fn units(&self) -> String {
        let mut text = format!("{}.\n\n", machine());
        if cfg!(debug_assertions) {
            text.push_str(
                "The programs were built in the profile `dev`, and are slower than those of a release.\n\n",
            );
        }
        text.push_str(
            "| unit | basis | CPU of the broker | CPU of Redis | memory of the broker | memory of Redis |\n\
             | -- | -- | -: | -: | -: | -: |\n",
        );
        let mut row = |what: &str, cpu: Option<Cpu>, memory: [String; 2]| {
            let us = |us: f64| format!("{us:.1} µs");
            let cpu = cpu.map(|cpu| [us(cpu.broker_us), us(cpu.redis_us)]);
            let [broker, redis] = cpu.unwrap_or_default();
            let [of_broker, of_redis] = memory;
            let basis = Basis::Measured;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {what} | {basis} | {broker} | {redis} | {of_broker} | {of_redis} |"
            );
        };
        let idle = size(self.idle_broker_bytes as f64);
        row("a broker without clients", None, [idle, String::new()]);
        for pair in &self.pairs {
            let calls = match pair.calls {
                Calls::Unary => "unary calls",
                Calls::Stream => "on a stream",
            };
            let rate = thousands(pair.per_second);
            let what = format!("a pair, {calls}, {} ({rate} pairs/s)", pair.store.name());
            row(&what, Some(pair.cpu), Default::default());
        }
        for held in &self.on_redis {
            let what = format!("a renewal, {} leases, Redis", leases(held));
            row(&what, Some(renewal(held)), Default::default());
        }
        let what = format!(
            "a renewal, {} leases, {}",
            leases(&self.in_cluster),
            Store::Cluster.name()
        );
        row(&what, Some(renewal(&self.in_cluster)), Default::default());
        if let Some(held) = self.on_redis.last() {
            let what = format!("a lease, one of {}, Redis", leases(held));
            row(&what, None, sizes(lease(held)));
        }
        let waiters = thousands(self.waiter.waiters as f64);
        let what = format!("a waiting call, one of {waiters}, and its enqueueing");
        row(&what, Some(self.waiter.enqueue), sizes(self.waiter.memory));
        let what = format!("a hand-off, {waiters} waiters");
        row(&what, Some(self.waiter.hand_off), Default::default());
        for held in &self.streams {
            let each = match held.shape.streams_per_connection {
                1 => "with its own connection".to_owned(),
                many => format!("{} on a connection", thousands(many as f64)),
            };
            let what = format!("a stream without leases, {each}, and its heartbeat");
            row(&what, Some(heartbeat(held)), sizes(stream(held)));
        }
        text
    }

    /// Returns the table of the cost of many leases.
    pub(super) fn curve(&self) -> String {
        let mut text = "| leases | store | ttl | basis | renewals/s | cores of the broker | cores of Redis | memory of the broker | memory of Redis | renewal p99 ms | not acquired | lost |\n\
             | -: | -- | -: | -- | -: | -: | -: | -: | -: | -: | -: | -: |\n"
            .to_owned();
        let on_redis = self.on_redis.iter().map(|held| (Store::Redis, held));
        for (store, held) in on_redis.chain([(Store::Memory, &self.in_memory)]) {
            let [_, begin, end] = &held.usage;
            let seconds = held.window.as_secs_f64();
            let [broker, redis] =
                [0, 1].map(|at| (end.cpu[at] - begin.cpu[at]).as_secs_f64() / seconds);
            let Sample {
                per_second, p99, ..
            } = renewals(held);
            let of_redis = match store {
                Store::Memory => Default::default(),
                Store::Redis | Store::Cluster => {
                    [format!("{redis:.2}"), size(end.redis_bytes as f64)]
                }
            };
            let [redis, redis_bytes] = of_redis;
            let _ = writeln!(
                text,
                "| {} | {} | {} s | {} | {} | {broker:.2} | {redis} | {} | {redis_bytes} | {} | {} | {} |",
                leases(held),
                store.name(),
                held.shape.ttl.as_secs(),
                Basis::Measured,
                thousands(per_second),
                size(end.broker_bytes as f64),
                ms(p99),
                held.refused.len(),
                held.lost,
            );
        }
        text
    }
}

fn renewals(held: &HeldStreams) -> Sample {
    held.renewals.expect("the streams have leases")
}

/// Returns the cost of the renewal of one lease.
pub(super) fn renewal(held: &HeldStreams) -> Cpu {
    let [_, begin, end] = &held.usage;
    let rate = renewals(held).per_second;
    Cpu::between(begin, end, rate * held.window.as_secs_f64())
}

/// Returns the cost of a heartbeat. Heartbeats of streams without leases are not acknowledged, so
/// their number follows from the interval.
fn heartbeat(held: &HeldStreams) -> Cpu {
    let [_, begin, end] = &held.usage;
    let each = held.window.as_secs_f64() / held.shape.heartbeat_interval().as_secs_f64();
    Cpu::between(begin, end, each * held.shape.streams as f64)
}

/// Returns the memory of each lease.
pub(super) fn lease(held: &HeldStreams) -> Memory {
    let [empty, _, end] = &held.usage;
    let acquired = held.shape.leases() - held.refused.len();
    Memory::between(empty, end, acquired as f64)
}

/// Returns the memory of each stream.
pub(super) fn stream(held: &HeldStreams) -> Memory {
    let [empty, _, end] = &held.usage;
    Memory::between(empty, end, held.shape.streams as f64)
}

fn leases(held: &HeldStreams) -> String {
    thousands(held.shape.leases() as f64)
}

fn sizes(memory: Memory) -> [String; 2] {
    [memory.broker, memory.redis].map(size)
}

/// Returns a number of bytes with its unit.
pub(super) fn size(bytes: f64) -> String {
    const KIB: f64 = 1_024.0;
    match bytes {
        ..KIB => format!("{bytes:.0} B"),
        _ if bytes < KIB * KIB => format!("{:.1} KiB", bytes / KIB),
        _ if bytes < KIB * KIB * KIB => format!("{:.0} MiB", bytes / KIB / KIB),
        _ => format!("{:.1} GiB", bytes / KIB / KIB / KIB),
    }
}
