//! Unit costs of pairs, renewals, waiters and streams, the cost of many leases, and the size of a
//! deployment that follows from them.

mod arithmetic;
mod table;
mod units;

use std::time::Duration;

use self::units::{PairCost, WaiterCost};
use crate::{
    pages::{is_writing, write_block},
    site::{Site, Store},
    streams::leases::{self, HeldStreams, Shape},
};

const PAGE: &str = "docs/capacity.md";
/// Number of leases of a stream, as in the clients.
const LEASES_PER_STREAM: usize = 1_000;
/// TTL of the leases of the computed deployment, the default.
const TTL: Duration = Duration::from_secs(10);

/// Number and length of the measurements.
struct Extent {
    /// Time in which pairs are counted.
    pairs_for: Duration,
    waiters: usize,
    /// Streams that share connections.
    streams: usize,
    /// Streams that have a connection each.
    connections: usize,
    /// Leases on Redis.
    leases: &'static [usize],
    leases_in_cluster: usize,
    leases_in_memory: usize,
    /// TTL of the leases on Redis.
    ttl: Duration,
    /// TTL of the leases in memory.
    ttl_in_memory: Duration,
    /// Number of heartbeats of each stream that are measured.
    heartbeats: u32,
}

const FULL: Extent = Extent {
    pairs_for: Duration::from_secs(10),
    waiters: 10_000,
    streams: 10_000,
    connections: 1_000,
    leases: &[1_000, 10_000, 100_000],
    leases_in_cluster: 10_000,
    leases_in_memory: 1_000_000,
    ttl: TTL,
    ttl_in_memory: Duration::from_secs(60),
    heartbeats: 6,
};

/// Extent that tests within a minute that everything works. The figures mean little.
const QUICK: Extent = Extent {
    pairs_for: Duration::from_secs(1),
    waiters: 200,
    streams: 500,
    connections: 100,
    leases: &[1_000],
    leases_in_cluster: 1_000,
    leases_in_memory: 2_000,
    ttl: Duration::from_secs(3),
    ttl_in_memory: Duration::from_secs(3),
    heartbeats: 1,
};

/// Results, displayed as tables.
struct Capacity {
    idle_broker_bytes: u64,
    pairs: Vec<PairCost>,
    waiter: WaiterCost,
    streams: Vec<HeldStreams>,
    /// Leases on Redis, in ascending numbers.
    on_redis: Vec<HeldStreams>,
    in_cluster: HeldStreams,
    in_memory: HeldStreams,
}

/// Measures and returns the tables.
pub(crate) async fn part(is_quick: bool) -> String {
    let capacity = measure(if is_quick { &QUICK } else { &FULL }).await;
    let blocks = [
        ("units", capacity.units()),
        ("curve", capacity.curve()),
        ("deployment", capacity.deployment()),
    ];
    if is_writing() {
        for (block, text) in &blocks {
            write_block(PAGE, block, text).expect("write the page");
        }
    }
    blocks.map(|(_, text)| text).join("\n")
}

async fn measure(extent: &Extent) -> Capacity {
    let mut idle = Site::start(Store::Redis).await;
    let idle_broker_bytes = idle.usage().await.broker_bytes;
    drop(idle);
    let heartbeats = extent.heartbeats;
    let mut on_redis = Vec::new();
    for &count in extent.leases {
        on_redis.push(held(Store::Redis, leases_of(count, extent.ttl), heartbeats).await);
    }
    let streams = [
        streams_without_leases(extent.streams, 1_000, extent.ttl),
        streams_without_leases(extent.connections, 1, extent.ttl),
    ];
    let mut held_streams = Vec::new();
    for shape in streams {
        held_streams.push(held(Store::Redis, shape, heartbeats).await);
    }
    let in_cluster = leases_of(extent.leases_in_cluster, extent.ttl);
    let in_memory = leases_of(extent.leases_in_memory, extent.ttl_in_memory);
    Capacity {
        idle_broker_bytes,
        pairs: units::pairs(extent.pairs_for).await,
        waiter: units::waiters(extent.waiters).await,
        streams: held_streams,
        on_redis,
        in_cluster: held(Store::Cluster, in_cluster, heartbeats).await,
        in_memory: held(Store::Memory, in_memory, heartbeats).await,
    }
}

/// Measures streams with a new broker on a new store, for some heartbeat intervals.
async fn held(store: Store, shape: Shape, heartbeats: u32) -> HeldStreams {
    let window = shape.heartbeat_interval() * heartbeats;
    let held = leases::measure(Site::start(store).await, shape, window).await;
    eprintln!(
        "{store:?}: {} streams, {} leases: {:?}, {} refused, {} lost",
        shape.streams,
        shape.leases(),
        held.window,
        held.refused.len(),
        held.lost
    );
    held
}

/// Returns streams for `leases` leases, each with its own connection like the stream of a client.
fn leases_of(leases: usize, ttl: Duration) -> Shape {
    Shape {
        streams: leases.div_ceil(LEASES_PER_STREAM),
        leases_each: LEASES_PER_STREAM,
        streams_per_connection: 1,
        ttl,
    }
}

fn streams_without_leases(streams: usize, streams_per_connection: usize, ttl: Duration) -> Shape {
    Shape {
        streams,
        leases_each: 0,
        streams_per_connection,
        ttl,
    }
}
