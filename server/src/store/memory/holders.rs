//! The holders of one lock, each in a slot of its own, and the sums over all of them.

use std::collections::HashMap;

use super::{entry::Entry, queue::Queue};
use crate::lock::{
    Attachment, FencingToken, LeaseId, LeaseRef, Owner, RequestHash, Terms, Ttl, expiry_ms,
};

/// Who holds how much of the lock, and until when.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) lease_id: LeaseId,
    /// Never none. The strongest first; the holder weighs as much as that one.
    pub(super) entries: Vec<Entry>,
    pub(super) owner: Owner,
    pub(super) terms: Terms,
    /// Why an operator has it end.
    pub(super) revoked: Option<String>,
    /// Its lock_delay closes the lock even if it is given back.
    pub(super) closes: bool,
    /// The lease was there before this grant.
    pub(super) added: bool,
    pub(super) stream: Option<Attachment>,
    pub(super) fencing_token: FencingToken,
    pub(super) ttl_ms: u64,
    pub(super) acquired_ms: u64,
    pub(super) expires_ms: u64,
    /// The place in line that a provisional hand-off falls back to.
    pub(super) place: Option<u64>,
}

/// All holders. What left a slot free is taken first by the next.
#[derive(Debug, Default)]
pub(super) struct Holders {
    slots: Vec<Option<Held>>,
    spare: Vec<usize>,
    leases: HashMap<LeaseId, usize>,
    requests: HashMap<RequestHash, usize>,
    used: u32,
    /// No holder expires before; exact while there is one.
    earliest_ms: u64,
    /// No holder expires after.
    latest_ms: u64,
}

impl Held {
    pub(super) fn is(&self, lease: &LeaseRef) -> bool {
        (self.lease_id, self.fencing_token) == (lease.lease_id, lease.fencing_token)
    }

    pub(super) fn weight(&self) -> u32 {
        self.entries[0].weight
    }

    pub(super) fn hold_count(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn entry(&self, request: RequestHash) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.request == request)
    }

    /// Until when its lock_delay closes the lock, should it expire.
    pub(super) fn closes_until_ms(&self) -> Option<u64> {
        let delay_ms = self.terms.lock_delay_ms;
        (delay_ms > 0).then(|| self.expires_ms + delay_ms)
    }

    /// The validity to announce: `max_hold` cuts it. `None` if it leaves nothing.
    pub(super) fn validity(&self, now: u64) -> Option<Ttl> {
        let left_ms = match self.terms.max_hold_ms {
            0 => u64::MAX,
            max_hold_ms => (self.acquired_ms + max_hold_ms).saturating_sub(now),
        };
        (left_ms > 0).then(|| Ttl::from_stored(self.ttl_ms.min(left_ms)))
    }
}

impl Holders {
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// The weight of all.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    pub(super) fn earliest_ms(&self) -> u64 {
        self.earliest_ms
    }

    pub(super) fn latest_ms(&self) -> u64 {
        self.latest_ms
    }

    /// In the order of their slots; free ones are `None`.
    pub(super) fn slots(&self) -> impl Iterator<Item = Option<&Held>> {
        self.slots.iter().map(Option::as_ref)
    }

    pub(super) fn by_lease(&self, lease_id: LeaseId) -> Option<&Held> {
        self.slots[*self.leases.get(&lease_id)?].as_ref()
    }

    pub(super) fn by_lease_mut(&mut self, lease_id: LeaseId) -> Option<&mut Held> {
        self.slots[*self.leases.get(&lease_id)?].as_mut()
    }

    pub(super) fn by_request(&self, request: RequestHash) -> Option<&Held> {
        self.slots[*self.requests.get(&request)?].as_ref()
    }

    pub(super) fn entry(&mut self, request: RequestHash) -> Option<&mut Entry> {
        let held = self.slots[*self.requests.get(&request)?].as_mut()?;
        held.entries
            .iter_mut()
            .find(|entry| entry.request == request)
    }

    /// Adds an entry, no stronger than the strongest.
    pub(super) fn enter(&mut self, lease_id: LeaseId, entry: Entry) {
        let Some(&slot) = self.leases.get(&lease_id) else {
            return;
        };
        if let Some(held) = &mut self.slots[slot] {
            self.requests.insert(entry.request, slot);
            held.entries.push(entry);
        }
    }

    /// Takes an entry out, unless it is the last: then the holder is to be removed.
    pub(super) fn leave(&mut self, request: RequestHash) -> Option<LeaseId> {
        let slot = *self.requests.get(&request)?;
        let held = self.slots[slot].as_mut()?;
        if held.entries.len() == 1 {
            return Some(held.lease_id);
        }
        self.requests.remove(&request);
        self.used -= held.weight();
        held.entries.retain(|entry| entry.request != request);
        let strongest = held.entries.iter().map(|entry| entry.weight).max();
        let at = held
            .entries
            .iter()
            .position(|entry| Some(entry.weight) == strongest);
        held.entries[..=at.unwrap_or(0)].rotate_right(1);
        self.used += held.weight();
        None
    }

    pub(super) fn add(&mut self, held: Held) {
        let slot = self.spare.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.leases.insert(held.lease_id, slot);
        let requests = held.entries.iter().map(|entry| (entry.request, slot));
        self.requests.extend(requests);
        self.used += held.weight();
        self.earliest_ms = match self.len() {
            1 => held.expires_ms,
            _ => self.earliest_ms.min(held.expires_ms),
        };
        self.latest_ms = self.latest_ms.max(held.expires_ms);
        self.slots[slot] = Some(held);
    }

    pub(super) fn remove(&mut self, lease_id: LeaseId) -> Option<Held> {
        let slot = self.leases.remove(&lease_id)?;
        let held = self.slots[slot].take()?;
        for entry in &held.entries {
            self.requests.remove(&entry.request);
        }
        self.used -= held.weight();
        self.spare.push(slot);
        if self.leases.is_empty() {
            *self = Self::default();
        }
        Some(held)
    }

    /// Renews, and claims a provisional hand-off, which gives up its place in line. Never shortens,
    /// and does nothing past `max_hold`.
    pub(super) fn extend(
        &mut self,
        lease_id: LeaseId,
        queue: &mut Queue,
        now: u64,
        ttl: Option<Ttl>,
    ) -> Option<Ttl> {
        let alone = self.len() == 1;
        let held = self.slots[*self.leases.get(&lease_id)?].as_mut()?;
        held.validity(now)?;
        if let Some(place) = held.place.take() {
            queue.take(place);
        }
        held.ttl_ms = ttl.map_or(held.ttl_ms, Ttl::as_millis);
        let validity = held.validity(now)?;
        held.expires_ms = held.expires_ms.max(now + expiry_ms(validity.as_millis()));
        self.latest_ms = self.latest_ms.max(held.expires_ms);
        if alone {
            self.earliest_ms = held.expires_ms;
        }
        Some(validity)
    }

    /// Takes out those whose time is over, at most so many, in the order of their slots.
    pub(super) fn expire(&mut self, now: u64, most: usize) -> Vec<Held> {
        if self.leases.is_empty() || self.earliest_ms > now {
            return Vec::new();
        }
        let over = |held: &&Held| held.expires_ms <= now;
        let over = self.slots.iter().flatten().filter(over).take(most);
        let over: Vec<_> = over.map(|held| held.lease_id).collect();
        let over = over
            .into_iter()
            .filter_map(|lease_id| self.remove(lease_id));
        let over = over.collect();
        let left = self.slots.iter().flatten().map(|held| held.expires_ms);
        self.earliest_ms = left.min().unwrap_or(0);
        over
    }
}
