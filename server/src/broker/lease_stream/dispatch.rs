//! Dispatch of a stream's renewals and attachments under concurrency permits.
//!
//! A stream requests at most [`PERMITS_PER_REQUEST`] permits at a time, so that streams are served
//! in turn. A client with one lease does not wait behind all leases of other clients, and every
//! client receives its first acknowledgements early.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use tokio::sync::OwnedSemaphorePermit;

use super::{LeaseStream, Phase, completions::completion, leases::LeasePhase};
use crate::{
    broker::{RENEWAL_PERMIT_HOLD_MAX, with_permit},
    lock::{LeaseId, PresentedLease},
    store::StorePart,
    trace::Span,
};

/// Maximum number of permits that a stream requests at once. Fewer permits cause more
/// acknowledgements for the same renewals, and more task wake-ups: with one permit at a time, a
/// broker renewed less than half as many leases.
const PERMITS_PER_REQUEST: usize = 64;
/// Maximum number of leases that are renewed together. Their acknowledgements wait for the last of
/// them.
const RENEWED_TOGETHER_MAX: usize = 64;

/// Leases that are renewed together, by the part of the store that has their locks.
#[derive(Default)]
struct RenewalGroups(BTreeMap<StorePart, RenewalGroup>);

struct RenewalGroup {
    lease_ids: Vec<LeaseId>,
    /// Permits, one for each lease.
    permits: OwnedSemaphorePermit,
}

impl RenewalGroups {
    /// Adds a lease to the group of its part. Removes and returns the group if it is full.
    fn add(
        &mut self,
        part: StorePart,
        lease_id: LeaseId,
        permit: OwnedSemaphorePermit,
    ) -> Option<RenewalGroup> {
        match self.0.entry(part) {
            Entry::Vacant(entry) => {
                entry.insert(RenewalGroup {
                    lease_ids: vec![lease_id],
                    permits: permit,
                });
                None
            }
            Entry::Occupied(mut entry) => {
                let group = entry.get_mut();
                group.lease_ids.push(lease_id);
                group.permits.merge(permit);
                (group.lease_ids.len() == RENEWED_TOGETHER_MAX).then(|| entry.remove())
            }
        }
    }
}

/// A command that waits for a permit.
pub(super) enum PendingCommand {
    Renew(LeaseId),
    Attach(Box<PendingAttach>),
}

/// A call that attaches a lease to the stream.
pub(super) struct PendingAttach {
    pub(super) call_id: i64,
    pub(super) lease: PresentedLease,
    pub(super) number: u32,
    pub(super) span: Span,
}

impl LeaseStream {
    /// Dispatches queued commands with these permits and with all permits that are available at
    /// once. Requests more permits if commands are left.
    pub(super) fn dispatch_pending(&mut self, mut permits: Option<OwnedSemaphorePermit>) {
        let mut groups = RenewalGroups::default();
        while let Some(pending) = self.pending_commands.pop_front() {
            if !self.is_still_pending(&pending) {
                continue;
            }
            let permit = permits.as_mut().and_then(|permits| permits.split(1));
            let try_acquire = || {
                Arc::clone(&self.broker.renewal_permits)
                    .try_acquire_owned()
                    .ok()
            };
            let Some(permit) = permit.or_else(try_acquire) else {
                self.pending_commands.push_front(pending);
                self.request_permits();
                break;
            };
            match pending {
                PendingCommand::Renew(lease_id) => {
                    let part = self.part_of(lease_id);
                    if let Some(full) = groups.add(part, lease_id, permit) {
                        self.renew(full.lease_ids, full.permits);
                    }
                }
                PendingCommand::Attach(attach) => self.attach(*attach, permit),
            }
        }
        for group in groups.0.into_values() {
            self.renew(group.lease_ids, group.permits);
        }
    }

    /// Returns the part of the store that has the first lock of a lease. A lease has few locks in
    /// other parts.
    fn part_of(&self, lease_id: LeaseId) -> StorePart {
        let lease = self.leases.get(&lease_id);
        let first = lease.and_then(|lease| lease.locks.first());
        first.map_or_else(StorePart::default, |held| {
            self.broker.store.part_of(&held.lock)
        })
    }

    fn request_permits(&mut self) {
        if !std::mem::replace(&mut self.is_waiting_for_permits, true) {
            let semaphore = Arc::clone(&self.broker.renewal_permits);
            let count = self.pending_commands.len().min(PERMITS_PER_REQUEST) as u32;
            self.jobs.push(Box::pin(async move {
                // The semaphore is never closed.
                let permits = semaphore.acquire_many_owned(count).await.ok();
                completion(|stream| {
                    stream.is_waiting_for_permits = false;
                    stream.dispatch_pending(permits);
                })
            }));
        }
    }

    fn is_still_pending(&mut self, pending: &PendingCommand) -> bool {
        match pending {
            PendingCommand::Renew(lease_id) => {
                let queued = self.leases.get_mut(lease_id);
                let Some(lease) = queued.filter(|lease| lease.phase == LeasePhase::RenewalQueued)
                else {
                    return false;
                };
                let is_due = self.phase == Phase::Open && lease.pending_heartbeat.is_some();
                if !is_due {
                    lease.phase = LeasePhase::Idle;
                }
                is_due
            }
            PendingCommand::Attach(_) => matches!(self.phase, Phase::Open | Phase::Closing),
        }
    }

    fn attach(&mut self, attach: PendingAttach, permit: OwnedSemaphorePermit) {
        let PendingAttach {
            call_id,
            lease,
            number,
            span,
        } = attach;
        let (broker, attachment) = (self.broker.clone(), self.attachment(number));
        let origin = span.origin();
        let future = async move {
            let attached = broker.attach(&lease.locks, attachment);
            let result = with_permit(permit, RENEWAL_PERMIT_HOLD_MAX, attached).await;
            completion(move |stream| stream.on_attached(call_id, number, lease, result, origin))
        };
        let future = Box::pin(span.run(future));
        match self.phase {
            Phase::Open => self.results.push(future),
            // The lease is released once it is attached.
            Phase::Closing | Phase::Broken | Phase::Ended => self.jobs.push(future),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream::{self, StreamExt as _};
    use tokio::time::sleep;

    use super::*;
    use crate::{
        broker::{
            Broker, RENEWALS_IN_FLIGHT_MAX,
            lease_stream::{LEASES_MAX, StreamCaller, StreamCommand},
        },
        lock::{FencingToken, LeaseRef, LeaseToken, Ttl},
        store::stub::{StubStore, lease_id, lock},
    };

    fn attach(number: usize) -> StreamCommand {
        let lease_id = lease_id(number);
        let held = LeaseRef {
            lock: lock(&number.to_string()),
            lease_id,
            fencing_token: FencingToken::after(0, 1),
        };
        StreamCommand::Attach {
            call_id: i64::try_from(number).expect("few"),
            lease: PresentedLease {
                lease_id,
                lease_token: LeaseToken::from_caller(number.to_string()),
                ttl: Ttl::from_stored(1_000),
                locks: vec![held],
            },
            number: 1,
            span: Span::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_attachments_are_bounded() {
        let store = Arc::new(StubStore::default());
        let broker = Broker::unlimited(store.clone());
        let numbers: Vec<_> = (0..=RENEWALS_IN_FLIGHT_MAX).collect();
        for of_stream in numbers.chunks(LEASES_MAX) {
            let caller = StreamCaller {
                name: Arc::default(),
                expires: None,
                reconnects_at: None,
            };
            let attachments: Vec<_> = of_stream.iter().copied().map(attach).collect();
            let commands = stream::iter(attachments).chain(stream::pending());
            let result = broker.hold(caller, commands.boxed(), Arc::new(|_| true));
            result.expect("there is room");
        }
        sleep(RENEWAL_PERMIT_HOLD_MAX / 2).await;
        assert_eq!(store.commands_sent(), RENEWALS_IN_FLIGHT_MAX);
        sleep(RENEWAL_PERMIT_HOLD_MAX).await;
        assert_eq!(
            store.commands_sent(),
            RENEWALS_IN_FLIGHT_MAX + 1,
            "late ones let others pass"
        );
    }
}
