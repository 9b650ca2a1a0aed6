//! How many connections are open: in all, from one address, and with certificates of one name. Where
//! places are scarce, those without an admitted call make room.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::Hash,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use super::control::Control;
use crate::{
    address::AddressBlock,
    metrics::{Listener, Metrics, OpenConnection},
};

/// TLS handshakes of one address at the same time; others of that address wait.
const HANDSHAKES_MAX: usize = 32;
/// Time that a connection has for its first admitted call where places are scarce.
const ADMITTED_WITHIN: Duration = Duration::from_secs(10);
/// Time for which an address stays known after its last admitted connection was closed.
const KNOWN_FOR: Duration = Duration::from_secs(600);

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// In all.
    pub total: u32,
    /// From one address: behind a proxy or a balancer that is the address of all its clients.
    pub per_address: u32,
    /// With certificates of one name.
    pub per_identity: u32,
}

/// The places of a listener.
#[derive(Debug)]
pub(super) struct Seats {
    limits: ConnectionLimits,
    taken: Arc<Mutex<Taken>>,
    counted: Connections,
}

/// Where connections of a listener are counted.
#[derive(Debug, Clone)]
pub struct Connections {
    /// All that is counted.
    pub metrics: Metrics,
    /// Which listener it is.
    pub listener: Listener,
}

/// The connections that are open and were not told to close.
#[derive(Debug, Default)]
struct Taken {
    total: u32,
    by_block: HashMap<AddressBlock, Block>,
    by_identity: HashMap<Arc<str>, u32>,
    /// The number of the newest connection.
    newest: u64,
    /// Connections without an admitted call, the oldest first.
    unadmitted: BTreeMap<u64, Unadmitted>,
    /// Connections that were told to close and are still open.
    closing: HashSet<u64>,
    /// When the last admitted connection of each address was closed.
    left: HashMap<AddressBlock, Instant>,
}

/// The connections of one address.
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

/// A place, free again when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    limits: ConnectionLimits,
    ticket: Arc<Ticket>,
    handshakes: Arc<Semaphore>,
    identity: Option<Arc<str>>,
    open: Option<OpenConnection>,
}

/// A connection as its listener counts it.
#[derive(Debug)]
pub(super) struct Ticket {
    taken: Arc<Mutex<Taken>>,
    number: u64,
    block: AddressBlock,
    is_admitted: AtomicBool,
    control: Arc<Control>,
}

impl Seats {
    pub(super) fn new(limits: ConnectionLimits, counted: Connections) -> Self {
        let taken = Arc::default();
        Self {
            limits,
            taken,
            counted,
        }
    }

    /// A place for a client at this address; `None` if there are too many connections.
    pub(super) fn take(&self, address: IpAddr) -> Option<Seat> {
        let mut seat = self.take_one(address.into());
        let Connections { metrics, listener } = &self.counted;
        let open = metrics.connected(*listener, seat.is_some());
        if let Some(seat) = &mut seat {
            seat.open = open;
        }
        seat
    }

    fn take_one(&self, block: AddressBlock) -> Option<Seat> {
        let (mut taken, limits) = (lock(&self.taken), self.limits);
        taken.make_room(limits.total);
        let reserved = limits.total / 10;
        let is_reserved = taken.total >= limits.total - reserved;
        if taken.total >= limits.total || is_reserved && !taken.knows(block) {
            return None;
        }
        let of_block = taken.by_block.entry(block).or_insert_with(|| Block {
            open: 0,
            admitted: 0,
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
        });
        if of_block.open >= limits.per_address {
            return None;
        }
        of_block.open += 1;
        let handshakes = Arc::clone(&of_block.handshakes);
        taken.total += 1;
        taken.newest += 1;
        let (number, control) = (taken.newest, Arc::<Control>::default());
        let unadmitted = Unadmitted {
            since: Instant::now(),
            block,
            control: Arc::clone(&control),
        };
        taken.unadmitted.insert(number, unadmitted);
        let ticket = Arc::new(Ticket {
            taken: Arc::clone(&self.taken),
            number,
            block,
            is_admitted: AtomicBool::new(false),
            control,
        });
        Some(Seat {
            limits,
            ticket,
            handshakes,
            identity: None,
            open: None,
        })
    }
}

impl Seat {
    /// Counts the connection for the name in its certificate; false if there are too many of that name.
    pub(super) fn belongs_to(&mut self, identity: &Arc<str>) -> bool {
        let by_identity = &mut lock(&self.ticket.taken).by_identity;
        let may = one_more(by_identity, Arc::clone(identity), self.limits.per_identity);
        self.identity = may.then(|| Arc::clone(identity));
        may
    }

    /// Waits until fewer than [`HANDSHAKES_MAX`] connections of the address shake hands.
    pub(super) async fn handshake(&self) -> Option<SemaphorePermit<'_>> {
        self.handshakes.acquire().await.ok()
    }

    /// Returns true once a call of the connection was admitted.
    pub(super) fn is_admitted(&self) -> bool {
        self.ticket.is_admitted()
    }

    pub(super) fn ticket(&self) -> Arc<Ticket> {
        Arc::clone(&self.ticket)
    }
}

impl Ticket {
    /// A connection of no listener.
    #[cfg(test)]
    pub(super) fn alone(address: IpAddr) -> Self {
        Self {
            taken: Arc::default(),
            number: 0,
            block: address.into(),
            is_admitted: AtomicBool::new(false),
            control: Arc::default(),
        }
    }

    /// Notes that a call of the connection was admitted.
    pub(super) fn admitted(&self) {
        if self.is_admitted() {
            return;
        }
        let mut taken = lock(&self.taken);
        if taken.unadmitted.remove(&self.number).is_none() {
            return;
        }
        if let Some(block) = taken.by_block.get_mut(&self.block) {
            block.admitted += 1;
        }
        self.is_admitted.store(true, Ordering::Relaxed);
        self.control.wake();
    }

    /// Returns true once a call of the connection was admitted.
    pub(super) fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::Relaxed)
    }

    pub(super) fn block(&self) -> AddressBlock {
        self.block
    }

    pub(super) fn control(&self) -> &Arc<Control> {
        &self.control
    }
}

impl Taken {
    /// Closes connections that have had no admitted call for [`ADMITTED_WITHIN`] while more than three
    /// quarters of the places are taken, the oldest first.
    fn make_room(&mut self, most: u32) {
        while u64::from(self.total) * 4 > u64::from(most) * 3 {
            let Some(oldest) = self.unadmitted.first_entry() else {
                return;
            };
            if oldest.get().since.elapsed() < ADMITTED_WITHIN {
                return;
            }
            let (number, oldest) = oldest.remove_entry();
            self.closing.insert(number);
            self.total -= 1;
            self.leave(oldest.block, false);
            oldest.control.cut();
        }
    }

    /// Returns true for addresses that have, or had recently, a connection with an admitted call.
    fn knows(&self, block: AddressBlock) -> bool {
        let is_here = self.by_block.get(&block).is_some_and(|of| of.admitted > 0);
        let left = self.left.get(&block);
        is_here || left.is_some_and(|left| left.elapsed() < KNOWN_FOR)
    }

    fn leave(&mut self, block: AddressBlock, was_admitted: bool) {
        let Some(of_block) = self.by_block.get_mut(&block) else {
            return;
        };
        of_block.open -= 1;
        of_block.admitted -= u32::from(was_admitted);
        if of_block.open == 0 {
            self.by_block.remove(&block);
        }
    }

    /// Remembers for [`KNOWN_FOR`] that a caller at this address was admitted.
    fn remember(&mut self, block: AddressBlock, most: u32) {
        let is_full = |left: &HashMap<_, _>| u32::try_from(left.len()).is_ok_and(|len| len >= most);
        if is_full(&self.left) {
            self.left.retain(|_, left| left.elapsed() < KNOWN_FOR);
        }
        if !is_full(&self.left) {
            self.left.insert(block, Instant::now());
        }
    }
}

fn one_more<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: K, most: u32) -> bool {
    let count = counts.entry(key).or_default();
    let may = *count < most;
    *count += u32::from(may);
    may
}

fn one_less<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Ticket { number, block, .. } = *self.ticket;
        let mut taken = lock(&self.ticket.taken);
        if let Some(identity) = &self.identity {
            one_less(&mut taken.by_identity, identity);
        }
        if taken.closing.remove(&number) {
            return;
        }
        let was_admitted = taken.unadmitted.remove(&number).is_none();
        if was_admitted {
            taken.remember(block, self.limits.total);
        }
        taken.total -= 1;
        taken.leave(block, was_admitted);
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn seats(total: u32, per_address: u32) -> Seats {
        let limits = ConnectionLimits {
            total,
            per_address,
            per_identity: 1,
        };
        let counted = Connections {
            metrics: Metrics::off(),
            listener: Listener::Api,
        };
        Seats::new(limits, counted)
    }

    fn address(host: u8) -> IpAddr {
        [10, 0, 0, host].into()
    }

    #[tokio::test]
    async fn each_limit_holds_and_places_come_back() {
        let seats = seats(3, 2);
        let [one, other] = [address(1), address(2)];
        let first = seats.take(one).expect("a place");
        let second = seats.take(one).expect("a place");
        assert!(seats.take(one).is_none(), "two of one address");
        let third = seats.take(other).expect("a place");
        assert!(seats.take(other).is_none(), "three in all");
        let name = Arc::from("spiffe://corp/a");
        let (mut second, mut third) = (second, third);
        assert!(second.belongs_to(&name));
        assert!(!third.belongs_to(&name), "one of one name");
        drop(first);
        assert!(seats.take(one).is_some());
        drop((second, third));
        assert!(lock(&seats.taken).by_block.is_empty());
        assert!(lock(&seats.taken).by_identity.is_empty());
        assert!(lock(&seats.taken).unadmitted.is_empty());
        assert_eq!(lock(&seats.taken).total, 0);
    }

    #[test]
    fn the_addresses_of_a_64_share_their_places() {
        let seats = seats(10, 2);
        let take = |host: u16| seats.take(IpAddr::from([0x2001, 0xdb8, 0, 0, host, 0, 0, 1]));
        let taken = [take(1), take(2)];
        assert!(taken.iter().all(Option::is_some));
        assert!(take(3).is_none());
        let other_network = IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, 1]);
        assert!(seats.take(other_network).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_connections_without_an_admitted_call_make_room() {
        let seats = seats(8, 8);
        let admitted = seats.take(address(1)).expect("a place");
        admitted.ticket().admitted();
        let idle: Vec<_> = (0..6).map(|_| seats.take(address(2))).collect();
        let idle: Vec<_> = idle.into_iter().flatten().collect();
        let cut = || idle.iter().filter(|seat| seat.ticket.control.is_cut());
        advance(ADMITTED_WITHIN - Duration::from_millis(1)).await;
        let eighth = seats.take(address(3)).expect("the last place");
        assert_eq!(cut().count(), 0, "all are new");
        assert!(seats.take(address(3)).is_none(), "no place");
        advance(Duration::from_millis(1)).await;
        let ninth = seats.take(address(3)).expect("a place of an idle one");
        assert_eq!(cut().count(), 2, "six of eight places are not scarce");
        assert!(idle[0].ticket.control.is_cut() && idle[1].ticket.control.is_cut());
        assert!(!admitted.ticket.control.is_cut());
        drop((admitted, idle, eighth, ninth));
        assert_eq!(lock(&seats.taken).total, 0);
        assert!(lock(&seats.taken).closing.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenth_is_reserved_for_addresses_with_an_admitted_caller() {
        let seats = seats(20, 20);
        let known = seats.take(address(1)).expect("a place");
        known.ticket().admitted();
        drop(known);
        let strangers: Vec<_> = (0..20).map(|_| seats.take(address(2))).collect();
        assert_eq!(strangers.iter().flatten().count(), 18);
        let last = [seats.take(address(1)), seats.take(address(1))];
        assert!(last.iter().all(Option::is_some), "both reserved places");
        drop((strangers, last));
        advance(KNOWN_FOR).await;
        let forgotten: Vec<_> = (0..20).map(|_| seats.take(address(1))).collect();
        assert_eq!(forgotten.iter().flatten().count(), 18);
    }
}
