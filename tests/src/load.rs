//! Clients that take locks in turn, use them under the referee's eyes, and sometimes overstay.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use rand::Rng;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::client::{AcquireCall, Client, Held};
use crate::clock::boottime;
use crate::faults::Clients;
use crate::witness::{Share, Visit, Witness};

const TTL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(10);
const WORK: Duration = Duration::from_millis(1);
const OVERSTAY: Duration = Duration::from_secs(2);
const OVERSTAY_ONE_IN: u32 = 500;
const STOP_LIMIT: Duration = Duration::from_secs(45);

/// One Acquire, repeats included.
#[derive(Debug, Clone, Copy)]
pub struct CallRecord {
    /// When it began.
    pub begun: Duration,
    /// When it ended.
    pub ended: Duration,
    /// Whether it got the lock.
    pub granted: bool,
}

/// What the clients want of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// To hold it alone, and to write to the resource behind it.
    Exclusive,
    /// To read or, in a third of the calls, to write.
    ReadWrite,
    /// 1 to 3 of 5 permits.
    Semaphore,
}

impl Kind {
    /// The share of one call.
    fn share(self) -> Share {
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

    fn call(self, lock: usize, share: Share) -> AcquireCall {
        let call = AcquireCall::new(&lock_name(lock), TTL, WAIT);
        match self {
            Self::Semaphore => {
                let [permits, limit] = [share.weight, share.limit].map(u32::cast_signed);
                call.taking(permits, limit)
            }
            Self::ReadWrite if share.weight < share.limit => call.shared(),
            Self::Exclusive | Self::ReadWrite => call,
        }
    }
}

/// Which locks are of which kind.
pub type KindOf = fn(usize) -> Kind;

/// Clients at work.
#[derive(Debug)]
pub struct Load {
    clients: Vec<Client>,
    tasks: Vec<AbortOnDropHandle<Vec<CallRecord>>>,
    stop: CancellationToken,
}

impl Load {
    /// Starts `clients` clients, spread over the endpoints, on the witness's locks.
    #[must_use]
    pub fn start(
        clients: usize,
        endpoints: &[SocketAddr],
        witness: &Arc<Witness>,
        kind_of: KindOf,
    ) -> Self {
        let stop = CancellationToken::new();
        let client = |index| Client::new(&format!("client-{index}"), endpoints, index);
        let clients: Vec<_> = (0..clients).map(client).collect();
        let tasks = clients.iter().map(|client| {
            let work = take_locks(client.clone(), Arc::clone(witness), kind_of, stop.clone());
            AbortOnDropHandle::new(tokio::spawn(work))
        });
        Self {
            tasks: tasks.collect(),
            clients,
            stop,
        }
    }

    /// Lets every client finish its call, and returns all calls. A client that does not come back is
    /// a stranded waiter.
    pub async fn stop(self) -> Vec<CallRecord> {
        self.stop.cancel();
        let all = tokio::time::timeout(STOP_LIMIT, join_all(self.tasks)).await;
        let all = all.expect("no waiter is stranded");
        all.into_iter()
            .flat_map(|calls| calls.expect("a client does not panic"))
            .collect()
    }
}

impl Clients for Load {
    fn transport_errors(&self) -> usize {
        let errors = |client: &Client| client.counters.transport_errors.load(Ordering::Relaxed);
        self.clients.iter().map(errors).sum()
    }
}

/// What the same clients do without locks, for as long as `time`.
pub async fn run_without_locks(
    clients: usize,
    witness: &Arc<Witness>,
    kind_of: KindOf,
    time: Duration,
) {
    let until = boottime() + time;
    let clients = (0..clients).map(|_| async {
        while boottime() < until {
            let lock = rand::thread_rng().gen_range(0..witness.locks());
            let entered = boottime();
            tokio::time::sleep(WORK).await;
            witness.record(Visit {
                lock,
                share: kind_of(lock).share(),
                token: 0,
                entered,
                ended: boottime(),
            });
        }
    });
    join_all(clients).await;
}

/// The name of the witness's lock.
#[must_use]
pub fn lock_name(lock: usize) -> String {
    format!("load/{lock}")
}

async fn take_locks(
    client: Client,
    witness: Arc<Witness>,
    kind_of: KindOf,
    stop: CancellationToken,
) -> Vec<CallRecord> {
    let mut calls = Vec::new();
    while !stop.is_cancelled() {
        let lock = rand::thread_rng().gen_range(0..witness.locks());
        // Brokers that were away get their share of clients back.
        let client = client.at_random();
        let begun = boottime();
        let kind = kind_of(lock);
        let share = kind.share();
        let held = client.acquire(&kind.call(lock, share)).await;
        calls.push(CallRecord {
            begun,
            ended: boottime(),
            granted: held.is_ok(),
        });
        if let Ok(held) = held {
            visit(&witness, (lock, kind, share), &held).await;
            // What a release says is other tests' business: here a lost one costs an expiry.
            let _ = client.release(&held).await;
        }
    }
    calls
}

async fn visit(witness: &Witness, (lock, kind, share): (usize, Kind, Share), held: &Held) {
    static VISITS: AtomicU64 = AtomicU64::new(1);
    if !held.trusted() {
        return;
    }
    let entered = boottime();
    let writer = VISITS.fetch_add(1, Ordering::Relaxed);
    let fenced = kind == Kind::Exclusive;
    if fenced {
        witness.write(lock, held.token(), writer);
    }
    let overstay = rand::thread_rng().gen_ratio(1, OVERSTAY_ONE_IN);
    tokio::time::sleep(if overstay { OVERSTAY } else { WORK }).await;
    if fenced {
        witness.write(lock, held.token(), writer);
    }
    let ended = boottime().min(held.trusted_until());
    witness.record(Visit {
        lock,
        share,
        token: held.token(),
        entered,
        ended,
    });
}
