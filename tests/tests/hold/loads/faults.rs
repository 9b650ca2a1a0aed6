//! Many clients of lease streams, several brokers, one Redis and every fault in turn: no two
//! clients ever rely on a lock at the same time.

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
    broker::{deployment::Deployment, process::BrokerProcess},
    client::{
        session::{SessionClient, SessionLease},
        unary::AcquireCall,
    },
    clock::boottime,
    load::{
        callers::{CallRecord, LockKind, lock_name, run_without_locks},
        fault_report::{assert_every_key_expires, assert_locks_become_free, report_run},
        faults::{FaultInjector, LoadClients},
        mutual_exclusion_oracle::{LockUse, Oracle, Share},
    },
    net::http2_proxy::{Direction, Http2Proxy},
    scale::{print_figures, scaled_duration},
};
use rand::{Rng, random};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const CLIENTS: usize = 48;
const BROKERS: usize = 3;
const LOCKS: usize = 10;
const FULL: Duration = Duration::from_secs(120);
/// Duration below that of one rotation of all faults.
const ROTATION: Duration = Duration::from_secs(10);
const BLIND_CHECK: Duration = Duration::from_secs(1);
const STOP_LIMIT: Duration = Duration::from_secs(45);
const TTL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(10);
const WORK: Duration = Duration::from_millis(1);
const HOLD_AFTER_LOSS: Duration = Duration::from_secs(3);
const OVERSTAY_ONE_IN: u32 = 400;

/// Active clients, each with a separate stream.
#[derive(Debug)]
struct ActiveClients(Vec<SessionClient>);

/// Oracles that record each visit with two different ends.
struct Oracles {
    /// Visits that end with the validity of the lease at the latest.
    careful: Oracle,
    /// Visits that last as long as the work, even after the lease has ended.
    careless: Oracle,
}

impl ActiveClients {
    fn start(endpoints: &[SocketAddr]) -> Self {
        let client = |index| SessionClient::start(&format!("client-{index}"), endpoints, index);
        Self((0..CLIENTS).map(client).collect())
    }

    fn count(&self, counted: impl Fn(&SessionClient) -> usize) -> usize {
        self.0.iter().map(counted).sum()
    }
}

impl LoadClients for ActiveClients {
    fn transport_errors(&self) -> usize {
        self.count(SessionClient::broken_streams)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_holders_overlap_on_streams_under_faults() {
    let mut deployment = Deployment::start(BROKERS).await;
    let proxies = Http2Proxy::start_many(deployment.brokers.iter().map(BrokerProcess::addr)).await;
    let endpoints: Vec<_> = proxies.iter().map(Http2Proxy::addr).collect();
    let seen = Oracles {
        careful: Oracle::new(LOCKS),
        careless: Oracle::new(LOCKS),
    };
    let crowd = ActiveClients::start(&endpoints);
    let stop = CancellationToken::new();
    let clients = crowd
        .0
        .iter()
        .map(|holder| take_locks(holder, &seen, &stop));
    let started_at = boottime();
    let faults = async {
        let mut windows = Vec::new();
        for (victim, way) in (0..BROKERS)
            .zip([Direction::Both, Direction::ToBroker, Direction::ToClient])
            .cycle()
        {
            let mut faults = FaultInjector {
                deployment: &mut deployment,
                proxies: &proxies,
                load: &crowd,
            };
            windows.extend(faults.inject_each(victim).await);
            windows.push(faults.drop_frames(way).await);
            if boottime() >= started_at + scaled_duration(FULL, ROTATION) {
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
    report_run(
        &setting,
        &seen.careful.verdict(),
        &windows,
        &calls,
        (started_at, ended),
    );
    let careless = seen.careless.verdict().overlaps;
    print_figures(&format!(
        "hold_faults: streams={} breaks={} acknowledged_too_late={} \
         overlaps_without_validity_checks={careless}",
        crowd.count(|holder| *holder.counters.opened.borrow()),
        crowd.transport_errors(),
        crowd.count(|holder| holder.counters.late_acks.load(Ordering::Relaxed)),
    ));
    assert!(careless > 0, "stalled holders must be able to overlap");
    assert_locks_become_free(&deployment, LOCKS).await;
    assert_every_key_expires(&deployment).await;
    for holder in crowd.0 {
        let closed = timeout(STOP_LIMIT, holder.close()).await;
        closed.expect("its stream ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oracle_detects_overlaps_without_locks() {
    let oracle = Arc::new(Oracle::new(LOCKS));
    run_without_locks(CLIENTS, &oracle, |_| LockKind::Exclusive, BLIND_CHECK).await;
    let verdict = oracle.verdict();
    print_figures(&format!(
        "hold_faults without locks: visits={} overlaps={}",
        verdict.uses, verdict.overlaps
    ));
    assert!(verdict.overlaps > 0, "the referee must not be blind");
}

async fn take_locks(
    holder: &SessionClient,
    seen: &Oracles,
    stop: &CancellationToken,
) -> Vec<CallRecord> {
    let mut calls = Vec::new();
    while !stop.is_cancelled() {
        let lock = rand::thread_rng().gen_range(0..LOCKS);
        let ttl = TTL.mul_f64(1.0 + random::<f64>());
        let started_at = boottime();
        let session_lease = holder
            .acquire(&AcquireCall::new(&lock_name(lock), ttl, WAIT))
            .await;
        calls.push(CallRecord {
            started_at,
            ended_at: boottime(),
            is_granted: session_lease.is_ok(),
        });
        if let Ok(session_lease) = session_lease {
            visit(holder, seen, lock, &session_lease).await;
            // Other tests check the result of a release. A lost release costs an expiry here.
            holder.release(&session_lease).await;
        }
    }
    calls
}

async fn visit(holder: &SessionClient, seen: &Oracles, lock: usize, session_lease: &SessionLease) {
    static VISITS: AtomicU64 = AtomicU64::new(1);
    if !session_lease.is_trusted() {
        return;
    }
    let entered = boottime();
    let writer = VISITS.fetch_add(1, Ordering::Relaxed);
    seen.careful.write(lock, session_lease.token(), writer);
    if rand::thread_rng().gen_ratio(1, OVERSTAY_ONE_IN) {
        // Most of these clients are paused as a whole. They send no heartbeats, so their leases
        // expire.
        if rand::thread_rng().gen_ratio(3, 4) {
            holder.stall(HOLD_AFTER_LOSS);
        }
        sleep(HOLD_AFTER_LOSS).await;
    } else {
        sleep(WORK).await;
    }
    seen.careful.write(lock, session_lease.token(), writer);
    let left_at = boottime();
    let visit = LockUse {
        lock,
        share: Share::ALL,
        token: session_lease.token(),
        started_at: entered,
        ended_at: left_at,
    };
    seen.careless.record(visit);
    let ended = left_at.min(session_lease.state().trusted_until());
    seen.careful.record(LockUse {
        ended_at: ended,
        ..visit
    });
}
