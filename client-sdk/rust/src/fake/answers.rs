//! What a fake broker says to those who get nothing, and to those who wait.

use leasehold_proto::v1::LockRef;

use super::locks::{Locks, Waiter, key, weight};
use crate::{
    error::{Busy, Error, Refusal},
    order::Ask,
    queue::Place,
    target::{lock, shown},
};

impl Locks {
    /// Why a call can never be granted.
    pub(super) fn never(&self, ask: &Ask) -> Option<Error> {
        let under = ask.under.as_ref().map(crate::guard::Held::lease_id);
        if let Some(held) = ask.under.as_ref().filter(|held| !held.is_valid()) {
            return held.lost_reason().map(Error::LeaseLost);
        }
        ask.call.targets.iter().find_map(|target| {
            let (weight, limit) = weight(target);
            let held = self.held.get(&key(&lock(target))).into_iter().flatten();
            let own = held
                .clone()
                .find(|held| Some(held.lease_id.as_str()) == under);
            let in_use = held.map(|held| held.limit).next();
            let limit = if limit == 0 {
                in_use.unwrap_or(1)
            } else {
                limit
            };
            if in_use.is_some_and(|in_use| in_use != limit) || weight > limit || weight < 1 {
                let why =
                    "another limit or mode is in use on this lock, or it has not so many permits";
                return Some(Error::LimitMismatch(Refusal::new(why)));
            }
            let is_upgrade = own.is_some_and(|own| own.weight() < weight);
            let why = "the lease shares the lock, and cannot have it alone";
            is_upgrade.then(|| Error::UpgradeDenied(Refusal::new(why)))
        })
    }

    pub(super) fn refuse(&mut self, request_id: &str, error: impl Fn(Busy) -> Error) {
        let waits = |waiter: &Waiter| waiter.ask.call.request_id == request_id;
        let Some(place) = self.line.iter().position(waits) else {
            return;
        };
        let Some(waiter) = self.line.remove(place) else {
            return;
        };
        let locks: Vec<_> = waiter.ask.call.targets.iter().map(lock).collect();
        let queue_length = locks.iter().map(|lock| self.queue_length(lock)).max();
        let busy = Busy {
            message: format!("{} is held", names(&locks)),
            holders: locks
                .iter()
                .flat_map(|lock| self.holders(lock))
                .take(5)
                .collect(),
            queue_length: queue_length
                .unwrap_or_default()
                .try_into()
                .unwrap_or(u32::MAX),
            retry_after: None,
        };
        // A caller that is gone needs no answer.
        let _ = waiter.ask.answer.send(Err(error(busy)));
    }

    pub(super) fn tell_place(&self, waiter: &Waiter) {
        let Some(first) = waiter.ask.call.targets.first() else {
            return;
        };
        let lock = lock(first);
        let before = self
            .line
            .iter()
            .take_while(|other| other.ask.call.request_id != waiter.ask.call.request_id);
        let before = before.filter(|other| other.wants(&key(&lock))).count();
        let told = Some(Place {
            position: u32::try_from(before + 1).unwrap_or(u32::MAX),
            queue_length: u32::try_from(self.queue_length(&lock)).unwrap_or(u32::MAX),
            holders: self.holders(&lock),
        });
        waiter.ask.place.send_if_modified(|place| {
            let is_new = *place != told;
            *place = told;
            is_new
        });
    }
}

fn names(locks: &[LockRef]) -> String {
    let names = locks.iter().map(shown);
    names.collect::<Vec<_>>().join(", ")
}
