//! Clients that acquire random locks, record each use with the oracle, and sometimes outstay their
//! lease.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use rand::Rng;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::client::unary::{AcquireCall, Client, HeldLease};
use crate::clock::boottime;
use crate::load::faults::LoadClients;
use crate::load::mutual_exclusion_oracle::{LockUse, Oracle, Share};

const TTL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(10);
const WORK_TIME: Duration = Duration::from_millis(1);
const OVERSTAY_TIME: Duration = Duration::from_secs(2);
const OVERSTAY_ONE_IN: u32 = 500;
const STOP_LIMIT: Duration = Duration::from_secs(45);

/// An Acquire call, including its repeats.
#[derive(Debug, Clone, Copy)]
pub struct CallRecord {
    pub started_at: Duration,
    pub ended_at: Duration,
    /// True if the call acquired the lock.
    pub is_granted: bool,
}

/// Kind of use of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Exclusive lock with writes to the resource that it protects.
    Exclusive,
    /// Read-write lock: a third of the calls write, the others read.
    ReadWrite,
    /// Semaphore with 5 permits, of which a call acquires 1 to 3.
    Semaphore,
}

impl LockKind {
    /// Returns the weight and limit of one call. Both are random where the kind allows it.
    fn random_share(self) -> Share {
        let mut rng = rand::thread_rng();
        match self {
            Self::Exclusive => Share::ALL,
            Self::ReadWrite => Share {
                weight: if rng.gen_ratio(1, 3) { 1 << 30 } else { 1 },
                limit: 1 << 30,
            },
            Self::Semaphore => Share {
                weight: rng.gen_range(1..=3),
                limit: 5,
            },
        }
    }

    fn acquire_call(self, lock: usize, share: Share) -> AcquireCall {
        let call = AcquireCall::new(&lock_name(lock), TTL, WAIT);
        match self {
            Self::Semaphore => {
                let [permits, limit] = [share.weight, share.limit].map(u32::cast_signed);
                call.with_permits(permits, limit)
            }
            Self::ReadWrite if share.weight < share.limit => call.shared(),
            Self::Exclusive | Self::ReadWrite => call,
        }
    }
}

/// Assignment of kinds to lock indexes.
pub type KindOfLock = fn(usize) -> LockKind;

#[derive(Debug)]
pub struct Load {
    clients: Vec<Client>,
    tasks: Vec<AbortOnDropHandle<Vec<CallRecord>>>,
    stop: CancellationToken,
}

impl Load {
    /// Starts `clients` clients, spread over the endpoints, on the locks of `witness`.
    #[must_use]
    pub fn start(
        clients: usize,
        endpoints: &[SocketAddr],
        oracle: &Arc<Oracle>,
        kind_of: KindOfLock,
    ) -> Self {
        let stop = CancellationToken::new();
        let client = |index| Client::new(&format!("client-{index}"), endpoints, index);
        let clients: Vec<_> = (0..clients).map(client).collect();
        let tasks = clients.iter().map(|client| {
            let work = run_client(client.clone(), Arc::clone(oracle), kind_of, stop.clone());
            AbortOnDropHandle::new(tokio::spawn(work))
        });
        Self {
            tasks: tasks.collect(),
            clients,
            stop,
        }
    }

    /// Waits until every client has finished its call and returns all calls. A client that does not
    /// finish is a stranded waiter.
    pub async fn stop(self) -> Vec<CallRecord> {
        self.stop.cancel();
        let all = tokio::time::timeout(STOP_LIMIT, join_all(self.tasks)).await;
        let all = all.expect("no waiter is stranded");
        all.into_iter()
            .flat_map(|calls| calls.expect("a client does not panic"))
            .collect()
    }
}

impl LoadClients for Load {
    fn transport_errors(&self) -> usize {
        let errors = |client: &Client| client.counters.transport_errors.load(Ordering::Relaxed);
        self.clients.iter().map(errors).sum()
    }
}

/// Runs the same work without locks for `time`.
pub async fn run_without_locks(
    clients: usize,
    oracle: &Arc<Oracle>,
    kind_of: KindOfLock,
    time: Duration,
) {
    let until = boottime() + time;
    let clients = (0..clients).map(|_| async {
        while boottime() < until {
            let lock = rand::thread_rng().gen_range(0..oracle.lock_count());
            let entered = boottime();
            tokio::time::sleep(WORK_TIME).await;
            oracle.record(LockUse {
                lock,
                share: kind_of(lock).random_share(),
                token: 0,
                started_at: entered,
                ended_at: boottime(),
            });
        }
    });
    join_all(clients).await;
}

/// Returns the name of the lock with this index.
#[must_use]
pub fn lock_name(lock: usize) -> String {
    format!("load/{lock}")
}

async fn run_client(
    client: Client,
    oracle: Arc<Oracle>,
    kind_of: KindOfLock,
    stop: CancellationToken,
) -> Vec<CallRecord> {
    let mut calls = Vec::new();
    while !stop.is_cancelled() {
        let lock = rand::thread_rng().gen_range(0..oracle.lock_count());
        // A random endpoint gives brokers that were unavailable their share of clients again.
        let client = client.at_random_endpoint();
        let started_at = boottime();
        let kind = kind_of(lock);
        let share = kind.random_share();
        let held = client.acquire(&kind.acquire_call(lock, share)).await;
        calls.push(CallRecord {
            started_at,
            ended_at: boottime(),
            is_granted: held.is_ok(),
        });
        if let Ok(held) = held {
            use_lock(&oracle, (lock, kind, share), &held).await;
            // Other tests check the reply to a release. Here a lost release delays the next grant
            // until the expiry.
            let _ = client.release(&held).await;
        }
    }
    calls
}

async fn use_lock(
    oracle: &Oracle,
    (lock, kind, share): (usize, LockKind, Share),
    held: &HeldLease,
) {
    static NEXT_WRITER: AtomicU64 = AtomicU64::new(1);
    if !held.is_trusted() {
        return;
    }
    let entered = boottime();
    let writer = NEXT_WRITER.fetch_add(1, Ordering::Relaxed);
    let fenced = kind == LockKind::Exclusive;
    if fenced {
        oracle.write(lock, held.token(), writer);
    }
    let overstay = rand::thread_rng().gen_ratio(1, OVERSTAY_ONE_IN);
    tokio::time::sleep(if overstay { OVERSTAY_TIME } else { WORK_TIME }).await;
    if fenced {
        oracle.write(lock, held.token(), writer);
    }
    let ended = boottime().min(held.trusted_until());
    oracle.record(LockUse {
        lock,
        share,
        token: held.token(),
        started_at: entered,
        ended_at: ended,
    });
}
