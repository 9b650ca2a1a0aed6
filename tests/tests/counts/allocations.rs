//! Allocations of a pair, an acquire and a release, in the broker and its client.

use std::time::Duration;

use allocation_counter::measure;
use leasehold_proto::v1::hold_response::Message as Response;
use leasehold_tests::{
    broker::in_process::InProcessBroker,
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
};
use tokio::runtime::{Builder, Runtime};

use crate::kept::{ALLOCATIONS, Count};

const TTL: Duration = Duration::from_secs(10);
const LOCKS: usize = 16;
/// Number of pairs before the count, after which buffers and maps have their sizes.
const WARM_UP_PAIRS: usize = 500;
const PAIRS: usize = 2_000;

/// The broker and the client run in the thread of the test, whose allocations alone are counted.
#[test]
fn a_pair_costs_the_kept_number_of_allocations() {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let broker = runtime.block_on(InProcessBroker::start());
    let measured = [
        Count {
            name: "pair of unary calls".to_owned(),
            number: unary(&runtime, &broker),
        },
        Count {
            name: "pair on a lease stream".to_owned(),
            number: lease_stream(&runtime, &broker),
        },
    ];
    runtime.block_on(broker.stop());
    ALLOCATIONS.compare(&measured);
}

fn unary(runtime: &Runtime, broker: &InProcessBroker) -> f64 {
    let client = runtime.block_on(async { Client::new("counts", &[broker.api], 0) });
    allocations(runtime, async |lock| {
        let held = client.acquire(&call(lock)).await.expect("the lock is free");
        client.release(&held).await.expect("the lease is held");
    })
}

fn lease_stream(runtime: &Runtime, broker: &InProcessBroker) -> f64 {
    let mut stream = runtime.block_on(StreamClient::open(broker.api));
    allocations(runtime, async |lock| {
        let acquire = stream.acquire(&call(lock), 1).await;
        let lease = stream.expect_granted(acquire).await;
        let release = stream.release(&lease.lease_id).await;
        let reply = stream.next_event().await;
        let Response::Released(released) = reply else {
            panic!("{reply:?} instead of a release");
        };
        assert_eq!(released.call_id, release);
    })
}

/// Returns the number of allocations of a pair.
fn allocations(runtime: &Runtime, mut pair: impl AsyncFnMut(usize)) -> f64 {
    let mut pairs = |count: usize| {
        runtime.block_on(async {
            for number in 0..count {
                pair(number % LOCKS).await;
            }
        });
    };
    pairs(WARM_UP_PAIRS);
    measure(|| pairs(PAIRS)).count_total as f64 / PAIRS as f64
}

fn call(lock: usize) -> AcquireCall {
    AcquireCall::new(&format!("orders/{lock:05}"), TTL, Duration::ZERO)
}
