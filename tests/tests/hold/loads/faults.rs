//! Many clients of lease streams, several brokers, one Redis and every fault in turn: nobody ever
//! trusts a lock together with somebody else.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use leasehold_tests::{
    broker_process::BrokerProcess,
    client::AcquireCall,
    clock::boottime,
    deployment::Deployment,
    fault_report::{every_key_ends, locks_are_free, report},
    faults::{Clients, Faults},
    holder::{Holder, Kept},
    load::{CallRecord, Kind, lock_name, run_without_locks},
    proxy::{Proxy, Way},
    scale::{duration, figures},
    witness::{Share, Visit, Witness},
};
use rand::{Rng, random};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const CLIENTS: usize = 48;
const BROKERS: usize = 3;
const LOCKS: usize = 10;
const FULL: Duration = Duration::from_secs(120);
/// Less than all faults in turn take.
const ROTATION: Duration = Duration::from_secs(10);
const BLIND_CHECK: Duration = Duration::from_secs(1);
const STOP_LIMIT: Duration = Duration::from_secs(45);
const TTL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(10);
const WORK: Duration = Duration::from_millis(1);
const OVERSTAY: Duration = Duration::from_secs(3);
const OVERSTAY_ONE_IN: u32 = 400;

/// Clients at work, each with a stream of its own.
#[derive(Debug)]
struct Crowd(Vec<Holder>);

/// The same visits, seen in two ways.
struct Seen {
    /// As they were trusted.
    careful: Witness,
    /// As long as the work lasted, whatever became of the lease.
    careless: Witness,
}

impl Crowd {
    fn start(endpoints: &[SocketAddr]) -> Self {
        let client = |index| Holder::start(&format!("client-{index}"), endpoints, index);
        Self((0..CLIENTS).map(client).collect())
    }

    fn count(&self, counted: impl Fn(&Holder) -> usize) -> usize {
        self.0.iter().map(counted).sum()
    }
}

impl Clients for Crowd {
    fn transport_errors(&self) -> usize {
        self.count(Holder::breaks)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_overlaps_on_streams_under_faults() {
    let mut deployment = Deployment::start(BROKERS).await;
    let proxies = Proxy::start_many(deployment.brokers.iter().map(BrokerProcess::addr)).await;
    let endpoints: Vec<_> = proxies.iter().map(Proxy::addr).collect();
    let seen = Seen {
        careful: Witness::new(LOCKS),
        careless: Witness::new(LOCKS),
    };
    let crowd = Crowd::start(&endpoints);
    let stop = CancellationToken::new();
    let clients = crowd
        .0
        .iter()
        .map(|holder| take_locks(holder, &seen, &stop));
    let begun = boottime();
    let faults = async {
        let mut windows = Vec::new();
        for (victim, way) in (0..BROKERS)
            .zip([Way::Both, Way::ToBroker, Way::ToClient])
            .cycle()
        {
            let mut faults = Faults {
                deployment: &mut deployment,
                proxies: &proxies,
                load: &crowd,
            };
            windows.extend(faults.rotate(victim).await);
            windows.push(faults.swallow(way).await);
            if boottime() >= begun + duration(FULL, ROTATION) {
                break;
            }
        }
        let ended = boottime();
        stop.cancel();
        (windows, ended)
    };
    let clients = async {
        let stopped = async {
            stop.cancelled().await;
            sleep(STOP_LIMIT).await;
        };
        tokio::select! {
            calls = join_all(clients) => calls.concat(),
            () = stopped => panic!("a waiter is stranded"),
        }
    };
    let ((windows, ended), calls) = tokio::join!(faults, clients);
    let setting = format!("hold_faults: clients={CLIENTS} brokers={BROKERS} locks={LOCKS}");
    report(
        &setting,
        &seen.careful.verdict(),
        &windows,
        &calls,
        (begun, ended),
    );
    let careless = seen.careless.verdict().overlaps;
    figures(&format!(
        "hold_faults: streams={} breaks={} acknowledged_too_late={} \
         overlaps_had_nobody_minded_the_time={careless}",
        crowd.count(|holder| *holder.counters.opened.borrow()),
        crowd.transport_errors(),
        crowd.count(|holder| holder.counters.too_late.load(Ordering::Relaxed)),
    ));
    assert!(careless > 0, "stalled holders must be able to overlap");
    locks_are_free(&deployment, LOCKS).await;
    every_key_ends(&deployment).await;
    for holder in crowd.0 {
        let closed = timeout(STOP_LIMIT, holder.close()).await;
        closed.expect("its stream ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_referee_sees_overlaps_without_locks() {
    let witness = Arc::new(Witness::new(LOCKS));
    run_without_locks(CLIENTS, &witness, |_| Kind::Exclusive, BLIND_CHECK).await;
    let verdict = witness.verdict();
    figures(&format!(
        "hold_faults without locks: visits={} overlaps={}",
        verdict.visits, verdict.overlaps
    ));
    assert!(verdict.overlaps > 0, "the referee must not be blind");
}

async fn take_locks(holder: &Holder, seen: &Seen, stop: &CancellationToken) -> Vec<CallRecord> {
    let mut calls = Vec::new();
    while !stop.is_cancelled() {
        let lock = rand::thread_rng().gen_range(0..LOCKS);
        let ttl = TTL.mul_f64(1.0 + random::<f64>());
        let begun = boottime();
        let kept = holder
            .acquire(&AcquireCall::new(&lock_name(lock), ttl, WAIT))
            .await;
        calls.push(CallRecord {
            begun,
            ended: boottime(),
            granted: kept.is_ok(),
        });
        if let Ok(kept) = kept {
            visit(holder, seen, lock, &kept).await;
            // What a release says is other tests' business: here a lost one costs an expiry.
            holder.release(&kept).await;
        }
    }
    calls
}

async fn visit(holder: &Holder, seen: &Seen, lock: usize, kept: &Kept) {
    static VISITS: AtomicU64 = AtomicU64::new(1);
    if !kept.trusted() {
        return;
    }
    let entered = boottime();
    let writer = VISITS.fetch_add(1, Ordering::Relaxed);
    seen.careful.write(lock, kept.token(), writer);
    if rand::thread_rng().gen_ratio(1, OVERSTAY_ONE_IN) {
        // Most of them are stalled as a whole: without heartbeats trust runs out meanwhile.
        if rand::thread_rng().gen_ratio(3, 4) {
            holder.stall(OVERSTAY);
        }
        sleep(OVERSTAY).await;
    } else {
        sleep(WORK).await;
    }
    seen.careful.write(lock, kept.token(), writer);
    let left = boottime();
    let visit = Visit {
        lock,
        share: Share::ALL,
        token: kept.token(),
        entered,
        ended: left,
    };
    seen.careless.record(visit);
    let ended = left.min(kept.known().trusted_until());
    seen.careful.record(Visit { ended, ..visit });
}
