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
use crate::witness::{Visit, Witness};

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
    pub fn start(clients: usize, endpoints: &[SocketAddr], witness: &Arc<Witness>) -> Self {
        let stop = CancellationToken::new();
        let client = |index| Client::new(&format!("client-{index}"), endpoints, index);
        let clients: Vec<_> = (0..clients).map(client).collect();
        let tasks = clients.iter().map(|client| {
            let work = take_locks(client.clone(), Arc::clone(witness), stop.clone());
            AbortOnDropHandle::new(tokio::spawn(work))
        });
        Self {
            tasks: tasks.collect(),
            clients,
            stop,
        }
    }

    /// How many calls lost their connection so far.
    #[must_use]
    pub fn transport_errors(&self) -> usize {
        let errors = |client: &Client| client.counters.transport_errors.load(Ordering::Relaxed);
        self.clients.iter().map(errors).sum()
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

/// What the same clients do without locks, for as long as `time`.
pub async fn run_without_locks(clients: usize, witness: &Arc<Witness>, time: Duration) {
    let until = boottime() + time;
    let clients = (0..clients).map(|_| async {
        while boottime() < until {
            let lock = rand::thread_rng().gen_range(0..witness.locks());
            let entered = boottime();
            tokio::time::sleep(WORK).await;
            witness.record(Visit {
                lock,
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
    stop: CancellationToken,
) -> Vec<CallRecord> {
    let mut calls = Vec::new();
    while !stop.is_cancelled() {
        let lock = rand::thread_rng().gen_range(0..witness.locks());
        // Brokers that were away get their share of clients back.
        let client = client.at_random();
        let begun = boottime();
        let held = client
            .acquire(&AcquireCall::new(&lock_name(lock), TTL, WAIT))
            .await;
        calls.push(CallRecord {
            begun,
            ended: boottime(),
            granted: held.is_ok(),
        });
        if let Ok(held) = held {
            visit(&witness, lock, &held).await;
            // What a release says is other tests' business: here a lost one costs an expiry.
            let _ = client.release(&held).await;
        }
    }
    calls
}

async fn visit(witness: &Witness, lock: usize, held: &Held) {
    static VISITS: AtomicU64 = AtomicU64::new(1);
    if !held.trusted() {
        return;
    }
    let entered = boottime();
    let writer = VISITS.fetch_add(1, Ordering::Relaxed);
    witness.write(lock, held.token(), writer);
    let overstay = rand::thread_rng().gen_ratio(1, OVERSTAY_ONE_IN);
    tokio::time::sleep(if overstay { OVERSTAY } else { WORK }).await;
    witness.write(lock, held.token(), writer);
    let ended = boottime().min(held.trusted_until());
    witness.record(Visit {
        lock,
        token: held.token(),
        entered,
        ended,
    });
}
