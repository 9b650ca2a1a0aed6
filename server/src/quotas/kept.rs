//! Leases that are on no stream of this broker: nobody says when one of them has run out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use super::Place;
use crate::lock::{LeaseId, LockKey};

/// What such leases have, until they end.
#[derive(Debug, Default)]
pub(super) struct Kept {
    leases: HashMap<LeaseId, (Instant, Vec<Place>)>,
    by_end: BTreeSet<(Instant, LeaseId)>,
    /// Locks that the store holds on for leases of which nothing is kept.
    held_on: BTreeMap<(Instant, LeaseId), Vec<LockKey>>,
    /// Locks of leases that have run out, and that nobody has asked for yet.
    run_out: Vec<LockKey>,
}

/// Expired locks to check of each kind, and leases whose locks the store holds on. Beyond that the next command for the
/// lock finds its end.
const RUN_OUT_MAX: usize = 10_000;

impl Kept {
    /// One more, or more of one.
    pub(super) fn keep(&mut self, lease_id: LeaseId, mut places: Vec<Place>, ends_in: Duration) {
        for place in self.taken(lease_id) {
            if places.iter().all(|new| new.lock() != place.lock()) {
                places.push(place);
            }
        }
        let end = Instant::now() + ends_in;
        self.by_end.insert((end, lease_id));
        self.leases.insert(lease_id, (end, places));
    }

    pub(super) fn renewed(&mut self, lease_id: LeaseId, ends_in: Duration) {
        let places = self.taken(lease_id);
        if !places.is_empty() {
            self.keep(lease_id, places, ends_in);
        }
    }

    pub(super) fn released(&mut self, lease_id: LeaseId, lock: &LockKey) {
        let Some((_, places)) = self.leases.get_mut(&lease_id) else {
            return;
        };
        places.retain(|place| place.lock() != lock);
        if places.is_empty() {
            self.taken(lease_id);
        }
    }

    /// What a lease has, which is kept here no more.
    pub(super) fn taken(&mut self, lease_id: LeaseId) -> Vec<Place> {
        let Some((end, places)) = self.leases.remove(&lease_id) else {
            return Vec::new();
        };
        self.by_end.remove(&(end, lease_id));
        places
    }

    pub(super) fn forget_expired(&mut self) {
        let now = Instant::now();
        while let Some(&(_, lease_id)) = self.by_end.first().filter(|(end, _)| *end <= now) {
            let over = self.taken(lease_id);
            let room = RUN_OUT_MAX.saturating_sub(self.run_out.len());
            let locks = over.iter().take(room).map(|place| place.lock().clone());
            self.run_out.extend(locks);
        }
    }

    /// These locks of a lease are free then at last.
    pub(super) fn held_on(&mut self, lease_id: LeaseId, locks: Vec<LockKey>, ends_in: Duration) {
        if self.held_on.len() >= RUN_OUT_MAX {
            return;
        }
        let end = Instant::now() + ends_in;
        self.held_on.insert((end, lease_id), locks);
    }

    /// Locks whose leases have run out since this was asked last.
    pub(super) fn run_out(&mut self) -> Vec<LockKey> {
        self.forget_expired();
        let now = Instant::now();
        let mut run_out = std::mem::take(&mut self.run_out);
        while let Some(first) = self
            .held_on
            .first_entry()
            .filter(|first| first.key().0 <= now)
        {
            run_out.extend(first.remove());
        }
        run_out
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        quotas::Quotas,
        store::stub::{lease_id, lock},
    };

    #[test]
    fn so_many_locks_of_leases_that_have_run_out_are_kept() {
        let (quotas, caller) = (Quotas::ample(), Arc::default());
        let place = |number: usize| quotas.place(&caller, &lock(&number.to_string()));
        let places = (0..=RUN_OUT_MAX).map(place).collect();
        quotas.keep(lease_id(0), places, Duration::ZERO);
        assert_eq!(quotas.run_out().len(), RUN_OUT_MAX);
        quotas.keep(lease_id(0), vec![place(0)], Duration::ZERO);
        assert_eq!(quotas.run_out(), [lock("0")], "there is room again");
    }

    #[test]
    fn so_many_leases_are_kept_that_the_store_holds_on() {
        let quotas = Quotas::ample();
        for number in 0..=RUN_OUT_MAX {
            quotas.held_on(lease_id(number), vec![lock("a")], Duration::ZERO);
        }
        assert_eq!(quotas.run_out().len(), RUN_OUT_MAX);
    }
}
