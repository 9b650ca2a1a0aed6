//! Memory budget of the connections of all listeners. When it is exceeded, the connections that use
//! most are closed.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{backlog, bursts, connection_limit::Ticket, read_permits::ReadPermits};
use crate::{address::AddressBlock, rate_limit::RateLimit};

/// Maximum size of incomplete messages and unread responses of all connections, in bytes.
const BYTES_MAX: i64 = 24 << 20;
/// Maximum size for the connections of one address, in bytes.
const BYTES_PER_ADDRESS_MAX: i64 = 12 << 20;
/// Maximum number of calls whose first message is incomplete: more than all waits of a full queue,
/// which may begin at the same time.
const INCOMPLETE_CALLS_MAX: i64 = 8_192;

/// Total from which connections that use [`TIGHT_PER_CONNECTION`] or more are not read, so that few
/// have to be closed.
const TIGHT_TOTAL: i64 = BYTES_MAX / 2;
/// Bytes of one connection that exceed the need of calls in progress.
const TIGHT_PER_CONNECTION: usize = 128 << 10;
/// Number of incomplete calls from which connections are read in small pieces.
const MANY_INCOMPLETE_CALLS: i64 = 1_024;

/// Rate limit of warnings.
const WARNING_RATE: RateLimit = RateLimit::per_second(1, 1);

/// Totals of the process, and the turns of its connections.
#[derive(Debug)]
pub struct Budget {
    pub(super) bytes: Arc<Pool>,
    pub(super) incomplete_calls: Arc<Pool>,
    /// Turns of connections in a burst of incomplete calls or messages.
    pub(super) burst_permits: ReadPermits,
    /// Turns of crowded connections, on which many calls arrive in one read.
    pub(super) call_permits: ReadPermits,
}

/// An amount that connections share, with its limits.
#[derive(Debug)]
pub(super) struct Pool {
    name: &'static str,
    total_max: i64,
    per_address_max: i64,
    total: AtomicI64,
    /// Amount of connections that were closed and are not dropped yet.
    closing: AtomicI64,
    newest: AtomicU64,
    accounts: Mutex<Accounts>,
}

#[derive(Debug)]
struct Accounts {
    open: HashMap<u64, Arc<Entry>>,
    by_block: HashMap<AddressBlock, Weak<AtomicI64>>,
    /// Number of connections closed since the last warning.
    closed: u32,
    /// State of the rate limit of warnings.
    warn_at: Instant,
}

/// Share of one connection in a pool.
#[derive(Debug)]
struct Entry {
    amount: AtomicI64,
    /// Amount when the connection was closed.
    closing: AtomicI64,
    of_block: Arc<AtomicI64>,
    ticket: Arc<Ticket>,
}

/// Handle that updates the share of one connection. Dropping it sets the share to zero.
#[derive(Debug)]
pub(super) struct Account {
    pool: Arc<Pool>,
    number: u64,
    entry: Arc<Entry>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bytes: Pool::new(
                "incomplete and unread bytes",
                BYTES_MAX,
                BYTES_PER_ADDRESS_MAX,
            ),
            incomplete_calls: Pool::new(
                "calls with an incomplete message",
                INCOMPLETE_CALLS_MAX,
                INCOMPLETE_CALLS_MAX,
            ),
            burst_permits: ReadPermits::new(bursts::BURSTS_MAX),
            call_permits: ReadPermits::per_worker(backlog::PERMITS_PER_WORKER),
        }
    }
}

impl Budget {
    /// Returns true if more than [`MANY_INCOMPLETE_CALLS`] calls are incomplete.
    pub(super) fn has_many_incomplete_calls(&self) -> bool {
        self.incomplete_calls.total.load(Relaxed) > MANY_INCOMPLETE_CALLS
    }

    /// Returns true if all connections together use more than [`TIGHT_TOTAL`].
    fn is_tight(&self) -> bool {
        let Pool { total, closing, .. } = self.bytes.as_ref();
        total.load(Relaxed) + closing.load(Relaxed) > TIGHT_TOTAL
    }

    /// Returns true if a connection that uses `amount` bytes may be read.
    pub(super) fn has_room_for(&self, amount: usize) -> bool {
        amount < TIGHT_PER_CONNECTION || !self.is_tight()
    }
}

impl Pool {
    fn new(name: &'static str, total_max: i64, per_address_max: i64) -> Arc<Self> {
        Arc::new(Self {
            name,
            total_max,
            per_address_max,
            total: AtomicI64::new(0),
            closing: AtomicI64::new(0),
            newest: AtomicU64::new(0),
            accounts: Mutex::new(Accounts {
                open: HashMap::new(),
                by_block: HashMap::new(),
                closed: 0,
                warn_at: Instant::now(),
            }),
        })
    }

    /// Opens the account of a connection.
    pub(super) fn account(self: &Arc<Self>, ticket: &Arc<Ticket>) -> Account {
        let number = self.newest.fetch_add(1, Relaxed);
        let mut accounts = self.accounts.lock();
        let block = ticket.block;
        let of_block = accounts.by_block.get(&block).and_then(Weak::upgrade);
        let of_block = of_block.unwrap_or_else(|| {
            let new = Arc::default();
            accounts.by_block.insert(block, Arc::downgrade(&new));
            new
        });
        let entry = Arc::new(Entry {
            amount: AtomicI64::new(0),
            closing: AtomicI64::new(0),
            of_block,
            ticket: Arc::clone(ticket),
        });
        accounts.open.insert(number, Arc::clone(&entry));
        drop(accounts);
        Account {
            pool: Arc::clone(self),
            number,
            entry,
        }
    }

    /// Closes connections, the largest first, until at most three quarters of the maximum are in
    /// use. If the address exceeds its maximum, only its connections are closed.
    fn shrink(&self, of_block: &Arc<AtomicI64>) {
        let mut accounts = self.accounts.lock();
        let is_block = of_block.load(Relaxed) > self.per_address_max;
        let (amount, max) = match is_block {
            true => (of_block.as_ref(), self.per_address_max),
            false => (&self.total, self.total_max),
        };
        if amount.load(Relaxed) <= max {
            return;
        }
        let open = accounts.open.iter();
        let open = open.filter(|(_, entry)| !is_block || Arc::ptr_eq(&entry.of_block, of_block));
        let mut open: Vec<_> = open
            .map(|(&number, entry)| (Reverse(entry.amount.load(Relaxed)), number, entry))
            .collect();
        // Among equal amounts the oldest connection comes first.
        open.sort_unstable_by_key(|&(amount, number, _)| (amount, number));
        let mut closed = 0;
        for (_, _, entry) in open {
            if amount.load(Relaxed) <= max / 4 * 3 {
                break;
            }
            entry.ticket.control.request_close();
            let bytes = self.set(entry, 0);
            entry.closing.fetch_add(bytes, Relaxed);
            self.closing.fetch_add(bytes, Relaxed);
            closed += 1;
        }
        accounts.closed += closed;
        if WARNING_RATE.check(&mut accounts.warn_at).is_ok() {
            let closed = std::mem::take(&mut accounts.closed);
            tracing::warn!(
                closed,
                of = self.name,
                "closing the connections that buffer most"
            );
        }
    }

    /// Sets the amount of a connection, and returns the previous one. The sums may be negative for
    /// a moment, while two tasks change one amount.
    fn set(&self, entry: &Entry, amount: i64) -> i64 {
        let before = entry.amount.swap(amount, Relaxed);
        self.total.fetch_add(amount - before, Relaxed);
        entry.of_block.fetch_add(amount - before, Relaxed);
        before
    }
}

impl Account {
    /// Returns the amount of the connection.
    pub(super) fn amount(&self) -> usize {
        usize::try_from(self.entry.amount.load(Relaxed)).unwrap_or(0)
    }

    /// Sets the amount of the connection, and closes connections if a maximum is exceeded.
    pub(super) fn set(&self, amount: usize) {
        let Self { pool, entry, .. } = self;
        if amount == self.amount() || entry.ticket.control.is_close_requested() {
            return;
        }
        pool.set(entry, i64::try_from(amount).unwrap_or(i64::MAX / 2));
        let of_block = entry.of_block.load(Relaxed);
        if of_block > pool.per_address_max || pool.total.load(Relaxed) > pool.total_max {
            pool.shrink(&entry.of_block);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.pool.set(&self.entry, 0);
        let closing = self.entry.closing.swap(0, Relaxed);
        self.pool.closing.fetch_sub(closing, Relaxed);
        let mut accounts = self.pool.accounts.lock();
        accounts.open.remove(&self.number);
        let block = self.entry.ticket.block;
        let is_last = Arc::strong_count(&self.entry.of_block) == 1;
        if is_last {
            accounts.by_block.remove(&block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn connections(pool: &Arc<Pool>, host: u8, amounts: &[usize]) -> Vec<Account> {
        let account = |&amount| {
            let ticket = Ticket::without_listener([10, 0, 0, host].into());
            let account = pool.account(&Arc::new(ticket));
            account.set(amount * MIB);
            account
        };
        amounts.iter().map(account).collect()
    }

    fn cut(accounts: &[Account]) -> Vec<bool> {
        let tickets = accounts.iter().map(|account| &account.entry.ticket);
        tickets
            .map(|ticket| ticket.control.is_close_requested())
            .collect()
    }

    fn pool() -> Arc<Pool> {
        let mib = |count: i64| count << 20;
        Pool::new("bytes", mib(32), mib(16))
    }

    #[test]
    fn the_largest_are_closed_until_three_quarters_remain() {
        let pool = pool();
        let addresses = [[1, 4, 4], [2, 3, 3], [1, 6, 4]];
        let all = [1, 2, 3].map(|host| connections(&pool, host, &addresses[usize::from(host) - 1]));
        assert_eq!(
            all.each_ref().map(|accounts| cut(accounts)),
            [[false; 3]; 3]
        );
        let more = connections(&pool, 4, &[5]);
        assert_eq!(cut(&more), [true], "too much in all");
        let [first, second, third] = all;
        assert_eq!(cut(&first), [false, false, false]);
        assert_eq!(cut(&second), [false, false, false]);
        assert_eq!(cut(&third), [false, true, false]);
        assert_eq!(pool.total.load(Relaxed), 22 << 20);
        more[0].set(9 * MIB);
        assert_eq!(pool.total.load(Relaxed), 22 << 20, "it is closed");
        drop((first, second, third, more));
        assert_eq!(pool.total.load(Relaxed), 0);
        assert!(pool.accounts.lock().open.is_empty() && pool.accounts.lock().by_block.is_empty());
    }

    #[test]
    fn an_address_has_at_most_half_of_the_budget() {
        let pool = pool();
        let others = connections(&pool, 1, &[12]);
        let greedy = connections(&pool, 2, &[4, 4, 4, 3, 2]);
        assert_eq!(cut(&others), [false]);
        assert_eq!(cut(&greedy).iter().filter(|cut| **cut).count(), 2);
        assert!(!cut(&greedy)[4], "it has least");
    }

    #[test]
    fn those_that_keep_much_are_not_read_while_all_keep_half() {
        let budget = Budget::default();
        let half = usize::try_from(TIGHT_TOTAL).expect("a size") / MIB;
        let accounts = connections(&budget.bytes, 1, &[half]);
        assert!(budget.has_room_for(TIGHT_PER_CONNECTION));
        let more = connections(&budget.bytes, 2, &[1]);
        assert!(!budget.has_room_for(TIGHT_PER_CONNECTION));
        assert!(budget.has_room_for(TIGHT_PER_CONNECTION - 1));
        drop(more);
        assert!(budget.has_room_for(TIGHT_PER_CONNECTION));
        drop(accounts);
    }

    #[test]
    fn bytes_of_closed_connections_count_until_they_are_dropped() {
        let budget = Budget::default();
        let per_address = usize::try_from(BYTES_PER_ADDRESS_MAX).expect("a size") / MIB;
        let greedy = connections(&budget.bytes, 1, &[per_address + 1]);
        assert_eq!(cut(&greedy), [true]);
        assert!(!budget.has_room_for(TIGHT_PER_CONNECTION));
        drop(greedy);
        assert!(budget.has_room_for(TIGHT_PER_CONNECTION));
    }
}
