//! Rejections and queue positions that a fake broker sends.

use leasehold_proto::v1::{LockMode, LockRef};

use super::locks::{Locks, Waiter, key, weight};
use crate::{
    command::AcquireCommand,
    error::{Contention, Error, ErrorDetail},
    queue_position::QueuePosition,
    target::{display_lock, lock_ref},
};

impl Locks {
    /// Returns the reason for which a call can never be granted, if there is one.
    pub(super) fn find_rejection(&self, command: &AcquireCommand) -> Option<Error> {
        let under = command.under.as_ref().map(crate::guard::Held::lease_id);
        if let Some(held) = command.under.as_ref().filter(|held| !held.is_valid()) {
            return held.lost_reason().map(Error::LeaseLost);
        }
        command.params.targets.iter().find_map(|target| {
            let (weight, limit) = weight(target);
            let key = key(&lock_ref(target));
            let mut held = self.held.get(&key).into_iter().flatten();
            let own = held.find(|held| Some(held.lease_id.as_str()) == under);
            let in_use = self.limit_in_use(&key);
            let follows = self.is_limit_set(&key) && target.mode() == LockMode::Semaphore;
            let limit = if limit == 0 || follows {
                in_use.unwrap_or(1)
            } else {
                limit
            };
            if in_use.is_some_and(|in_use| in_use != limit) || weight > limit || weight < 1 {
                let message =
                    "another limit or mode is in use on this lock, or the request exceeds its \
                     permits";
                return Some(Error::LimitMismatch(ErrorDetail::new(message)));
            }
            let is_upgrade = own.is_some_and(|own| own.weight() < weight);
            let message = "the lease holds the lock in a weaker mode and cannot upgrade it";
            is_upgrade.then(|| Error::UpgradeDenied(ErrorDetail::new(message)))
        })
    }

    pub(super) fn reject(&mut self, request_id: &str, error: impl Fn(Contention) -> Error) {
        let waits = |waiter: &Waiter| waiter.command.params.request_id == request_id;
        let Some(position) = self.queue.iter().position(waits) else {
            return;
        };
        let Some(waiter) = self.queue.remove(position) else {
            return;
        };
        let locks: Vec<_> = waiter.command.params.targets.iter().map(lock_ref).collect();
        let queue_length = locks.iter().map(|lock| self.queue_length(lock)).max();
        let contention = Contention {
            message: format!("{} is held", display_locks(&locks)),
            closure: None,
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
        // A caller that was dropped needs no response.
        let _ = waiter.command.reply.send(Err(error(contention)));
    }

    pub(super) fn notify_position(&self, waiter: &Waiter) {
        let Some(first) = waiter.command.params.targets.first() else {
            return;
        };
        let lock = lock_ref(first);
        let before = self.queue.iter().take_while(|earlier| {
            earlier.command.params.request_id != waiter.command.params.request_id
        });
        let before = before
            .filter(|earlier| earlier.waits_for(&key(&lock)))
            .count();
        let new_position = Some(QueuePosition {
            position: u32::try_from(before + 1).unwrap_or(u32::MAX),
            queue_length: u32::try_from(self.queue_length(&lock)).unwrap_or(u32::MAX),
            holders: self.holders(&lock),
            closure: None,
            recovery: None,
        });
        waiter.command.position.send_if_modified(|position| {
            let is_new = *position != new_position;
            *position = new_position;
            is_new
        });
    }
}

fn display_locks(locks: &[LockRef]) -> String {
    let names = locks.iter().map(display_lock);
    names.collect::<Vec<_>>().join(", ")
}
