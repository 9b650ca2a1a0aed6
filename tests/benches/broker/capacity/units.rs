//! Costs of pairs, waiting calls and hand-offs.

use std::time::Duration;

use leasehold_tests::client::unary::channel;
use tokio::{
    join,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::LEASES_PER_STREAM;
use crate::{
    grpc::{self, CHANNELS, lock_name, named},
    hand_off::{Waiter, wait_until_queue_is_full},
    pairs::{self, Pair},
    site::{Site, Store},
    streams::{
        calls::{Caller, on_streams},
        usage::Usage,
    },
};

const CALLERS: usize = 64;
const WARM_UP: Duration = Duration::from_secs(1);
const LOCK: &str = "bench/waiters";

/// CPU time of the broker and of Redis for an operation, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cpu {
    pub(super) broker_us: f64,
    pub(super) redis_us: f64,
}

/// Memory of the broker and of Redis for an object, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    pub(super) broker: f64,
    pub(super) redis: f64,
}

/// Calls with which pairs are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Calls {
    Unary,
    Stream,
}

/// Cost of an acquire and a release.
pub(super) struct PairCost {
    pub(super) store: Store,
    pub(super) calls: Calls,
    pub(super) per_second: f64,
    pub(super) cpu: Cpu,
}

/// Cost of a call that waits on a stream.
pub(super) struct WaiterCost {
    pub(super) waiters: usize,
    pub(super) memory: Memory,
    pub(super) enqueue: Cpu,
    pub(super) hand_off: Cpu,
}

impl Cpu {
    /// Returns the cost of each of `count` operations between two readings.
    pub(super) fn between(before: &Usage, after: &Usage, count: f64) -> Self {
        let [broker_us, redis_us] =
            [0, 1].map(|at| (after.cpu[at] - before.cpu[at]).as_secs_f64() * 1e6 / count);
        Self {
            broker_us,
            redis_us,
        }
    }
}

impl Memory {
    /// Returns the memory of each of `count` objects that were created between two readings.
    pub(super) fn between(before: &Usage, after: &Usage, count: f64) -> Self {
        let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / count;
        Self {
            broker: each(before.broker_bytes, after.broker_bytes),
            redis: each(before.redis_bytes, after.redis_bytes),
        }
    }
}

/// Measures pairs of [`CALLERS`] callers with each kind of calls, and in a cluster.
pub(super) async fn pairs(measured: Duration) -> Vec<PairCost> {
    let mut all = Vec::new();
    for (store, calls) in [
        (Store::Redis, Calls::Unary),
        (Store::Redis, Calls::Stream),
        (Store::Cluster, Calls::Stream),
    ] {
        let site = Site::start(store).await;
        let names: Vec<_> = (0..CALLERS).map(lock_name).collect();
        let (per_second, cpu) = match calls {
            Calls::Unary => {
                let callers = grpc::callers_on(site.addr, CALLERS, |at| named(&names[at]));
                pairs_of(site, callers, measured).await
            }
            Calls::Stream => {
                let callers = on_streams(site.addr, &names, CHANNELS).await;
                pairs_of(site, callers, measured).await
            }
        };
        eprintln!("{store:?}, {calls:?}: {per_second:.0} pairs/s, {cpu:?}");
        all.push(PairCost {
            store,
            calls,
            per_second,
            cpu,
        });
    }
    all
}

async fn pairs_of<P: Pair>(mut site: Site, callers: Vec<P>, measured: Duration) -> (f64, Cpu) {
    let begin = Instant::now() + WARM_UP;
    let end = begin + measured;
    let usage = async {
        sleep_until(begin).await;
        let before = site.usage().await;
        sleep_until(end).await;
        (before, site.usage().await)
    };
    let (latencies, (before, after)) = join!(pairs::latencies(callers, [begin, end]), usage);
    let count = latencies.len() as f64;
    let cpu = Cpu::between(&before, &after, count);
    (count / measured.as_secs_f64(), cpu)
}

/// Measures calls that wait on streams for one lock, each of which releases it when it is granted.
pub(super) async fn waiters(count: usize) -> WaiterCost {
    let mut site = Site::start(Store::Redis).await;
    let names = vec![String::new(); count + 1];
    let streams = names.len().div_ceil(LEASES_PER_STREAM);
    let mut callers = on_streams(site.addr, &names, streams).await;
    let mut holder = callers.pop().expect("one more than wait");
    Waiter::acquire(&mut holder, LOCK).await;
    let idle = site.usage().await;
    let mut waiting: JoinSet<()> = callers.into_iter().map(acquire_and_release).collect();
    wait_until_queue_is_full(channel(site.addr), LOCK, count).await;
    let full = site.usage().await;
    holder.release().await;
    while let Some(waiter) = waiting.join_next().await {
        waiter.expect("a waiter ends");
    }
    let drained = site.usage().await;
    let each = count as f64;
    let cost = WaiterCost {
        waiters: count,
        memory: Memory::between(&idle, &full, each),
        enqueue: Cpu::between(&idle, &full, each),
        hand_off: Cpu::between(&full, &drained, each),
    };
    eprintln!("{count} waiters: {:?}, {:?}", cost.memory, cost.enqueue);
    cost
}

async fn acquire_and_release(mut waiter: Caller) {
    Waiter::acquire(&mut waiter, LOCK).await;
    waiter.release().await;
}
