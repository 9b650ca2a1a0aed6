//! How many connections are open: in all, from one address, and with certificates of one name.

use std::{
    collections::HashMap,
    hash::Hash,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::metrics::{Listener, Metrics, OpenConnection};

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

#[derive(Debug, Default)]
struct Taken {
    total: u32,
    by_address: HashMap<IpAddr, u32>,
    by_identity: HashMap<Arc<str>, u32>,
}

/// A place, free again when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    limits: ConnectionLimits,
    taken: Arc<Mutex<Taken>>,
    address: IpAddr,
    identity: Option<Arc<str>>,
    open: Option<OpenConnection>,
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
        let mut seat = self.take_one(address.to_canonical());
        let Connections { metrics, listener } = &self.counted;
        let open = metrics.connected(*listener, seat.is_some());
        if let Some(seat) = &mut seat {
            seat.open = open;
        }
        seat
    }

    fn take_one(&self, address: IpAddr) -> Option<Seat> {
        let mut taken = lock(&self.taken);
        if taken.total >= self.limits.total {
            return None;
        }
        if !one_more(&mut taken.by_address, address, self.limits.per_address) {
            return None;
        }
        taken.total += 1;
        Some(Seat {
            limits: self.limits,
            taken: Arc::clone(&self.taken),
            address,
            identity: None,
            open: None,
        })
    }
}

impl Seat {
    /// Who has it; false if there are too many connections of that name.
    pub(super) fn belongs_to(&mut self, identity: &Arc<str>) -> bool {
        let by_identity = &mut lock(&self.taken).by_identity;
        let may = one_more(by_identity, Arc::clone(identity), self.limits.per_identity);
        self.identity = may.then(|| Arc::clone(identity));
        may
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
        let mut taken = lock(&self.taken);
        taken.total -= 1;
        one_less(&mut taken.by_address, &self.address);
        if let Some(identity) = &self.identity {
            one_less(&mut taken.by_identity, identity);
        }
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_holds_and_places_come_back() {
        let limits = ConnectionLimits {
            total: 3,
            per_address: 2,
            per_identity: 1,
        };
        let counted = Connections {
            metrics: Metrics::off(),
            listener: Listener::Api,
        };
        let seats = Seats::new(limits, counted);
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
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
        assert!(lock(&seats.taken).by_address.is_empty());
        assert!(lock(&seats.taken).by_identity.is_empty());
        assert_eq!(lock(&seats.taken).total, 0);
    }
}
