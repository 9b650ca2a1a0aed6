//! Lease streams compared with unary calls and a bare echo server, and idle leases, as tables.

pub(crate) mod calls;
mod heartbeats;
pub(crate) mod leases;
mod queue;
mod table;
pub(crate) mod usage;
mod wire;

use std::{collections::BTreeMap, time::Duration};

use uuid::Uuid;

use self::leases::{HeldStreams, Shape};
use crate::{
    grpc, hand_off,
    pairs::Sample,
    site::{Site, Store},
    targets::Targets,
};

/// Number and length of the measurements.
pub(crate) struct Extent {
    rounds: usize,
    callers: &'static [usize],
    waiters: &'static [usize],
    shapes: &'static [Shape],
    window: Duration,
}

const TTL: Duration = Duration::from_secs(15);

const fn idle(streams: usize, leases_each: usize) -> Shape {
    Shape {
        streams,
        leases_each,
        streams_per_connection: 1_000,
        ttl: TTL,
    }
}

/// Extent of a run without `--quick`.
pub(crate) const FULL: Extent = Extent {
    rounds: 5,
    callers: &[1, 64, 256],
    waiters: &[2, 64, 1_000],
    shapes: &[
        idle(10_000, 1),
        idle(10, 1_000),
        idle(100_000, 1),
        idle(100, 1_000),
    ],
    window: Duration::from_secs(30),
};

/// Extent that tests within a minute that everything works. The figures mean little.
pub(crate) const QUICK: Extent = Extent {
    rounds: 1,
    callers: &[1, 64],
    waiters: &[2, 64],
    shapes: &[idle(2_000, 1), idle(2, 1_000)],
    window: Duration::from_secs(5),
};

/// API by which locks are acquired and released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CallPath {
    Unary,
    Stream,
    /// Streams to the bare echo server.
    Echo,
}

/// Results of the rounds, displayed as tables.
pub(crate) struct Streams {
    rounds: usize,
    pairs: BTreeMap<(usize, CallPath), Vec<Sample>>,
    hand_offs: BTreeMap<(usize, CallPath), Vec<Sample>>,
}

/// Results of idle leases for one shape after the other, displayed as tables.
pub(crate) struct Leases(Vec<HeldStreams>);

/// Measures in interleaved rounds, so that a slow period of the machine affects all APIs equally.
pub(crate) async fn measure(extent: &Extent) -> Streams {
    let mut streams = Streams {
        rounds: extent.rounds,
        pairs: BTreeMap::new(),
        hand_offs: BTreeMap::new(),
    };
    let targets = Targets::start().await;
    for _ in 0..extent.rounds {
        streams.round(extent, &targets).await;
    }
    streams
}

/// Measures each shape with a new broker on a new Redis.
pub(crate) async fn measure_leases(extent: &Extent) -> Leases {
    let mut all = Vec::new();
    for shape in extent.shapes {
        let site = Site::start(Store::Redis).await;
        all.push(leases::measure(site, *shape, extent.window).await);
    }
    Leases(all)
}

impl Streams {
    async fn round(&mut self, extent: &Extent, targets: &Targets) {
        let (broker, echo) = (targets.redis(), targets.echo());
        for &callers in extent.callers {
            let rounds = [
                (CallPath::Unary, grpc::pairs(broker, callers).await),
                (CallPath::Stream, calls::pairs(broker, callers).await),
                (CallPath::Echo, calls::pairs(echo, callers).await),
            ];
            for (by, sample) in rounds {
                self.pairs.entry((callers, by)).or_default().push(sample);
            }
        }
        for &waiters in extent.waiters {
            let lock = || format!("bench/hot/{}", Uuid::new_v4());
            let unary = hand_off::unary(&[broker], waiters, lock()).await;
            let stream = queue::run(broker, waiters, lock()).await;
            for (by, turns) in [(CallPath::Unary, unary), (CallPath::Stream, stream)] {
                let rounds = self.hand_offs.entry((waiters, by)).or_default();
                rounds.push(turns.full());
            }
        }
    }
}
