//! Connection limits: in total, per address, and per certificate name. When a listener is nearly
//! full, connections without an authenticated call are closed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use super::control::Control;
use crate::{
    address::AddressBlock,
    metrics::{GaugeEntry, Listener, Metrics},
};

/// Maximum number of concurrent TLS handshakes of one address. Further ones wait.
const HANDSHAKES_MAX: usize = 32;
/// Time in which a connection must have an authenticated call when the listener is nearly full.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which an address counts as known after its last authenticated connection was closed.
const RECENT_ADDRESS_TTL: Duration = Duration::from_secs(600);

/// Maximum numbers of open connections of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum of the listener.
    pub total: u32,
    /// Maximum per address. Clients behind a proxy or load balancer share one address.
    pub per_address: u32,
    /// Maximum per certificate name.
    pub per_identity: u32,
}

/// Connection limiter of a listener.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    limits: ConnectionLimits,
    counts: Arc<Mutex<ConnectionCounts>>,
    listener: Listener,
    metrics: Metrics,
}

/// Counters of the open connections, except those that were asked to close.
#[derive(Debug, Default)]
struct ConnectionCounts {
    total: u32,
    by_block: HashMap<AddressBlock, Block>,
    by_identity: HashMap<Arc<str>, u32>,
    /// Number of the newest connection.
    newest: u64,
    /// Connections without an authenticated call, the oldest first.
    unadmitted: BTreeMap<u64, Unadmitted>,
    /// Connections that were asked to close and are still open.
    closing: HashSet<u64>,
    /// Time at which the last authenticated connection of each address was closed.
    recent: HashMap<AddressBlock, Instant>,
}

/// Connections of one address.
#[derive(Debug)]
struct Block {
    open: u32,
    admitted: u32,
    handshakes: Arc<Semaphore>,
}

#[derive(Debug)]
struct Unadmitted {
    since: Instant,
    block: AddressBlock,
    control: Arc<Control>,
}

/// Permit of a connection, released when dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limits: ConnectionLimits,
    pub(super) ticket: Arc<Ticket>,
    handshakes: Arc<Semaphore>,
    identity: Option<Arc<str>>,
    open_gauge: Option<GaugeEntry>,
}

/// State of a connection that the limiter and the connection share.
#[derive(Debug)]
pub(super) struct Ticket {
    counts: Arc<Mutex<ConnectionCounts>>,
    number: u64,
    pub(super) block: AddressBlock,
    is_admitted: AtomicBool,
    pub(super) control: Arc<Control>,
}

impl ConnectionLimiter {
    pub(super) fn new(limits: ConnectionLimits, listener: Listener, metrics: Metrics) -> Self {
        Self {
            limits,
            counts: Arc::default(),
            listener,
            metrics,
        }
    }

    /// Acquires a permit for a client at this address. Returns `None` if a limit is reached.
    pub(super) fn acquire(&self, address: IpAddr) -> Option<ConnectionPermit> {
        let mut permit = self.try_acquire(address.into());
        let open = self.metrics.connected(self.listener, permit.is_some());
        if let Some(permit) = &mut permit {
            permit.open_gauge = open;
        }
        permit
    }

    fn try_acquire(&self, block: AddressBlock) -> Option<ConnectionPermit> {
        let (mut counts, limits) = (self.counts.lock(), self.limits);
        counts.make_room(limits.total);
        let reserved = limits.total / 10;
        let is_reserved = counts.total >= limits.total - reserved;
        if counts.total >= limits.total || is_reserved && !counts.is_recent(block) {
            return None;
        }
        let of_block = counts.by_block.entry(block).or_insert_with(|| Block {
            open: 0,
            admitted: 0,
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
        });
        if of_block.open >= limits.per_address {
            return None;
        }
        of_block.open += 1;
        let handshakes = Arc::clone(&of_block.handshakes);
        counts.total += 1;
        counts.newest += 1;
        let (number, control) = (counts.newest, Arc::<Control>::default());
        let unadmitted = Unadmitted {
            since: Instant::now(),
            block,
            control: Arc::clone(&control),
        };
        counts.unadmitted.insert(number, unadmitted);
        let ticket = Arc::new(Ticket {
            counts: Arc::clone(&self.counts),
            number,
            block,
            is_admitted: AtomicBool::new(false),
            control,
        });
        Some(ConnectionPermit {
            limits,
            ticket,
            handshakes,
            identity: None,
            open_gauge: None,
        })
    }
}

impl ConnectionPermit {
    /// Counts the connection for the name in its certificate. Returns false if that name has too
    /// many.
    pub(super) fn bind_identity(&mut self, identity: &Arc<str>) -> bool {
        let mut counts = self.ticket.counts.lock();
        let count = counts.by_identity.entry(Arc::clone(identity));
        let count = count.or_default();
        let is_allowed = *count < self.limits.per_identity;
        *count += u32::from(is_allowed);
        self.identity = is_allowed.then(|| Arc::clone(identity));
        is_allowed
    }

    /// Waits until fewer than [`HANDSHAKES_MAX`] connections of the address shake hands.
    pub(super) async fn handshake(&self) -> Option<SemaphorePermit<'_>> {
        self.handshakes.acquire().await.ok()
    }
}

impl Ticket {
    /// Creates the state of a connection that belongs to no listener.
    #[cfg(test)]
    pub(super) fn without_listener(address: IpAddr) -> Self {
        Self {
            counts: Arc::default(),
            number: 0,
            block: address.into(),
            is_admitted: AtomicBool::new(false),
            control: Arc::default(),
        }
    }

    /// Records that a call of the connection was authenticated.
    pub(super) fn mark_admitted(&self) {
        if self.is_admitted() {
            return;
        }
        let mut counts = self.counts.lock();
        if counts.unadmitted.remove(&self.number).is_none() {
            return;
        }
        if let Some(block) = counts.by_block.get_mut(&self.block) {
            block.admitted += 1;
        }
        self.is_admitted.store(true, Ordering::Relaxed);
        self.control.task.wake();
    }

    /// Returns true once a call of the connection was authenticated.
    pub(super) fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::Relaxed)
    }
}

impl ConnectionCounts {
    /// Closes connections that have had no authenticated call for [`ADMISSION_TIMEOUT`] while more
    /// than three quarters of the permits are in use, the oldest first.
    fn make_room(&mut self, max: u32) {
        while u64::from(self.total) * 4 > u64::from(max) * 3 {
            let Some(oldest) = self.unadmitted.first_entry() else {
                return;
            };
            if oldest.get().since.elapsed() < ADMISSION_TIMEOUT {
                return;
            }
            let (number, oldest) = oldest.remove_entry();
            self.closing.insert(number);
            self.total -= 1;
            self.remove(oldest.block, false);
            oldest.control.request_close();
        }
    }

    /// Returns true for an address that has, or recently had, a connection with an authenticated
    /// call.
    fn is_recent(&self, block: AddressBlock) -> bool {
        let has_admitted = self.by_block.get(&block).is_some_and(|of| of.admitted > 0);
        let last_end = self.recent.get(&block);
        has_admitted || last_end.is_some_and(|last_end| last_end.elapsed() < RECENT_ADDRESS_TTL)
    }

    fn remove(&mut self, block: AddressBlock, was_admitted: bool) {
        let Some(of_block) = self.by_block.get_mut(&block) else {
            return;
        };
        of_block.open -= 1;
        of_block.admitted -= u32::from(was_admitted);
        if of_block.open == 0 {
            self.by_block.remove(&block);
        }
    }

    /// Records an address as known for [`RECENT_ADDRESS_TTL`].
    fn remember(&mut self, block: AddressBlock, max: u32) {
        let is_full =
            |recent: &HashMap<_, _>| u32::try_from(recent.len()).is_ok_and(|len| len >= max);
        if is_full(&self.recent) {
            self.recent
                .retain(|_, last_end| last_end.elapsed() < RECENT_ADDRESS_TTL);
        }
        if !is_full(&self.recent) {
            self.recent.insert(block, Instant::now());
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let Ticket { number, block, .. } = *self.ticket;
        let mut counts = self.ticket.counts.lock();
        if let Some(identity) = &self.identity
            && let Some(count) = counts.by_identity.get_mut(identity)
        {
            *count -= 1;
            if *count == 0 {
                counts.by_identity.remove(identity);
            }
        }
        if counts.closing.remove(&number) {
            return;
        }
        let was_admitted = counts.unadmitted.remove(&number).is_none();
        if was_admitted {
            counts.remember(block, self.limits.total);
        }
        counts.total -= 1;
        counts.remove(block, was_admitted);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn limiter(total: u32, per_address: u32) -> ConnectionLimiter {
        let limits = ConnectionLimits {
            total,
            per_address,
            per_identity: 1,
        };
        ConnectionLimiter::new(limits, Listener::Api, Metrics::off())
    }

    fn address(host: u8) -> IpAddr {
        [10, 0, 0, host].into()
    }

    #[tokio::test]
    async fn each_limit_holds_and_permits_are_returned() {
        let limiter = limiter(3, 2);
        let [first_address, second_address] = [address(1), address(2)];
        let first = limiter.acquire(first_address).expect("a permit");
        let second = limiter.acquire(first_address).expect("a permit");
        assert!(
            limiter.acquire(first_address).is_none(),
            "two of one address"
        );
        let third = limiter.acquire(second_address).expect("a permit");
        assert!(limiter.acquire(second_address).is_none(), "three in all");
        let name = Arc::from("spiffe://corp/a");
        let (mut second, mut third) = (second, third);
        assert!(second.bind_identity(&name));
        assert!(!third.bind_identity(&name), "one of one name");
        drop(first);
        assert!(limiter.acquire(first_address).is_some());
        drop((second, third));
        assert!(limiter.counts.lock().by_block.is_empty());
        assert!(limiter.counts.lock().by_identity.is_empty());
        assert!(limiter.counts.lock().unadmitted.is_empty());
        assert_eq!(limiter.counts.lock().total, 0);
    }

    #[test]
    fn the_addresses_of_a_64_share_their_permits() {
        let limiter = limiter(10, 2);
        let acquire =
            |host: u16| limiter.acquire(IpAddr::from([0x2001, 0xdb8, 0, 0, host, 0, 0, 1]));
        let permits = [acquire(1), acquire(2)];
        assert!(permits.iter().all(Option::is_some));
        assert!(acquire(3).is_none());
        let other_network = IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, 1]);
        assert!(limiter.acquire(other_network).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_connections_without_an_admitted_call_are_closed() {
        let limiter = limiter(8, 8);
        let admitted = limiter.acquire(address(1)).expect("a permit");
        admitted.ticket.mark_admitted();
        let idle: Vec<_> = (0..6).map(|_| limiter.acquire(address(2))).collect();
        let idle: Vec<_> = idle.into_iter().flatten().collect();
        let cut = || {
            idle.iter()
                .filter(|permit| permit.ticket.control.is_close_requested())
        };
        advance(ADMISSION_TIMEOUT - Duration::from_millis(1)).await;
        let eighth = limiter.acquire(address(3)).expect("the last permit");
        assert_eq!(cut().count(), 0, "all are new");
        assert!(limiter.acquire(address(3)).is_none(), "no permit is free");
        advance(Duration::from_millis(1)).await;
        let ninth = limiter
            .acquire(address(3))
            .expect("the permit of an idle connection");
        assert_eq!(cut().count(), 2, "six of eight permits are not scarce");
        assert!(
            idle[0].ticket.control.is_close_requested()
                && idle[1].ticket.control.is_close_requested()
        );
        assert!(!admitted.ticket.control.is_close_requested());
        drop((admitted, idle, eighth, ninth));
        assert_eq!(limiter.counts.lock().total, 0);
        assert!(limiter.counts.lock().closing.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenth_is_reserved_for_addresses_with_an_admitted_caller() {
        let limiter = limiter(20, 20);
        let admitted = limiter.acquire(address(1)).expect("a permit");
        admitted.ticket.mark_admitted();
        drop(admitted);
        let strangers: Vec<_> = (0..20).map(|_| limiter.acquire(address(2))).collect();
        assert_eq!(strangers.iter().flatten().count(), 18);
        let last = [limiter.acquire(address(1)), limiter.acquire(address(1))];
        assert!(last.iter().all(Option::is_some), "both reserved permits");
        drop((strangers, last));
        advance(RECENT_ADDRESS_TTL).await;
        let forgotten: Vec<_> = (0..20).map(|_| limiter.acquire(address(1))).collect();
        assert_eq!(forgotten.iter().flatten().count(), 18);
    }
}
