//! Holders of one lock in numbered slots, with their total weight and their expiry bounds.

use std::collections::BTreeMap;

use super::{context::Context, entry::Entry, queue::Queue};
use crate::{
    lock::{
        Attachment, FencingToken, LeaseId, LeaseOptions, LeaseRef, Owner, RequestHash, Ttl,
        expiry_ms,
    },
    store::Rejected,
};

/// A holder: its lease, its entries and its expiry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct HolderSlot {
    pub(super) lease_id: LeaseId,
    /// Entries of the lease, never empty. The strongest entry is first and determines the weight of
    /// the holder.
    pub(super) entries: Vec<Entry>,
    pub(super) owner: Owner,
    pub(super) options: LeaseOptions,
    /// Reason of the revocation, if an operator has revoked the lease.
    pub(super) revoke_reason: Option<String>,
    /// True if the lock delay starts even if the holder releases the lock.
    pub(super) has_lock_delay: bool,
    /// True if the lease existed before this grant.
    pub(super) added_to_lease: bool,
    pub(super) stream: Option<Attachment>,
    pub(super) fencing_token: FencingToken,
    pub(super) ttl_ms: u64,
    pub(super) acquired_ms: u64,
    pub(super) expires_ms: u64,
    /// Queue sequence number to which a provisional hand-off returns when it lapses.
    pub(super) queue_sequence: Option<u64>,
}

/// Weight of a holder after the removal of its strongest entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WeightChange {
    /// The weight is that of the strongest remaining entry.
    ToRemaining,
    /// The weight does not change.
    None,
}

/// All holders. A new holder uses the slot that became free last, if there is a free slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Holders {
    slots: Vec<Option<HolderSlot>>,
    free_slots: Vec<usize>,
    leases: BTreeMap<LeaseId, usize>,
    requests: BTreeMap<RequestHash, usize>,
    used: u32,
    /// Lower bound of the expiry of all holders; exact while there is only one.
    earliest_ms: u64,
    /// Upper bound of the expiry of all holders.
    latest_ms: u64,
}

impl HolderSlot {
    pub(super) fn matches(&self, lease: &LeaseRef) -> bool {
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

    /// Returns the validity to report, limited by `max_hold` and by the limit of spans. Returns
    /// `None` if `max_hold` has been reached.
    pub(super) fn validity(&self, context: &Context) -> Option<Ttl> {
        let remaining_ms = match self.options.max_hold_ms {
            None => u64::MAX,
            Some(max_hold_ms) => (self.acquired_ms + max_hold_ms).saturating_sub(context.now()),
        };
        let ttl_ms = context.cut_ttl_ms(self.ttl_ms, self.options.lock_delay_ms);
        (remaining_ms > 0).then(|| Ttl::from_stored(ttl_ms.min(remaining_ms)))
    }

    /// Rejects a renewal, with another ttl if there is one, whose span is over the limit.
    pub(super) fn check_span(&self, context: &Context, ttl: Option<Ttl>) -> Result<(), Rejected> {
        let ttl_ms = ttl.map_or(self.ttl_ms, Ttl::as_millis);
        context.check_span(ttl_ms, self.options.lock_delay_ms)
    }
}

impl Holders {
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Returns the total weight of all holders.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    pub(super) fn earliest_ms(&self) -> u64 {
        self.earliest_ms
    }

    pub(super) fn latest_ms(&self) -> u64 {
        self.latest_ms
    }

    /// Returns all slots in their order; free slots are `None`.
    pub(super) fn slots(&self) -> impl Iterator<Item = Option<&HolderSlot>> {
        self.slots.iter().map(Option::as_ref)
    }

    pub(super) fn by_lease(&self, lease_id: LeaseId) -> Option<&HolderSlot> {
        self.slots[*self.leases.get(&lease_id)?].as_ref()
    }

    pub(super) fn by_lease_mut(&mut self, lease_id: LeaseId) -> Option<&mut HolderSlot> {
        self.slots[*self.leases.get(&lease_id)?].as_mut()
    }

    pub(super) fn by_request(&self, request: RequestHash) -> Option<&HolderSlot> {
        self.slots[*self.requests.get(&request)?].as_ref()
    }

    pub(super) fn entry(&mut self, request: RequestHash) -> Option<&mut Entry> {
        let held = self.slots[*self.requests.get(&request)?].as_mut()?;
        held.entries
            .iter_mut()
            .find(|entry| entry.request == request)
    }

    /// Adds an entry, which must not be stronger than the strongest entry.
    pub(super) fn add_entry(&mut self, lease_id: LeaseId, entry: Entry) {
        let Some(&slot) = self.leases.get(&lease_id) else {
            return;
        };
        if let Some(held) = &mut self.slots[slot] {
            self.requests.insert(entry.request, slot);
            held.entries.push(entry);
        }
    }

    /// Removes an entry. If the entry is the only one it is kept, and the lease is returned for the
    /// caller to remove.
    pub(super) fn remove_entry(
        &mut self,
        request: RequestHash,
        change: WeightChange,
    ) -> Option<LeaseId> {
        let slot = *self.requests.get(&request)?;
        let held = self.slots[slot].as_mut()?;
        if held.entries.len() == 1 {
            return Some(held.lease_id);
        }
        self.requests.remove(&request);
        let former_weight = held.weight();
        self.used -= former_weight;
        held.entries.retain(|entry| entry.request != request);
        let strongest = held.entries.iter().map(|entry| entry.weight).max();
        let at = held
            .entries
            .iter()
            .position(|entry| Some(entry.weight) == strongest);
        held.entries[..=at.unwrap_or(0)].rotate_right(1);
        if change == WeightChange::None {
            held.entries[0].weight = former_weight;
        }
        self.used += held.weight();
        None
    }

    pub(super) fn add(&mut self, held: HolderSlot) {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
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

    pub(super) fn remove(&mut self, lease_id: LeaseId) -> Option<HolderSlot> {
        let slot = self.leases.remove(&lease_id)?;
        let held = self.slots[slot].take()?;
        for entry in &held.entries {
            self.requests.remove(&entry.request);
        }
        self.used -= held.weight();
        self.free_slots.push(slot);
        if self.leases.is_empty() {
            *self = Self::default();
        }
        Some(held)
    }

    /// Renews a lease. Claims a provisional hand-off, whose queue position is then removed. Never
    /// shortens a lease, and changes nothing after `max_hold`.
    pub(super) fn extend(
        &mut self,
        lease_id: LeaseId,
        queue: &mut Queue,
        context: &Context,
        ttl: Option<Ttl>,
    ) -> Option<Ttl> {
        let is_only_holder = self.len() == 1;
        let held = self.slots[*self.leases.get(&lease_id)?].as_mut()?;
        held.validity(context)?;
        if let Some(sequence) = held.queue_sequence.take() {
            queue.remove_at(sequence);
        }
        held.ttl_ms = ttl.map_or(held.ttl_ms, Ttl::as_millis);
        let validity = held.validity(context)?;
        let expires_ms = context.now() + expiry_ms(validity.as_millis());
        held.expires_ms = held.expires_ms.max(expires_ms);
        self.latest_ms = self.latest_ms.max(held.expires_ms);
        if is_only_holder {
            self.earliest_ms = held.expires_ms;
        }
        Some(validity)
    }

    /// Removes at most `holders_max` expired holders, in the order of their slots, and returns
    /// them.
    pub(super) fn expire(&mut self, now: u64, holders_max: usize) -> Vec<HolderSlot> {
        if self.leases.is_empty() || self.earliest_ms > now {
            return Vec::new();
        }
        let expired = |held: &&HolderSlot| held.expires_ms <= now;
        let expired = self
            .slots
            .iter()
            .flatten()
            .filter(expired)
            .take(holders_max);
        let expired: Vec<_> = expired.map(|held| held.lease_id).collect();
        let expired = expired
            .into_iter()
            .filter_map(|lease_id| self.remove(lease_id));
        let expired = expired.collect();
        let expiries = self.slots.iter().flatten().map(|held| held.expires_ms);
        self.earliest_ms = expiries.min().unwrap_or(0);
        expired
    }
}
