//! Queue position of a waiting call.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tracing::debug;

use crate::error::{Closure, Holder};

/// Position in the queue of a lock. A hint, which the broker updates at most once a second.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePosition {
    /// Position counted from 1, which is the next waiter. 0 if the call is not in the queue yet,
    /// because the store recovers: the client repeats the call until the end of its wait.
    pub position: u32,
    /// Number of all waiters.
    pub queue_length: u32,
    /// Some holders of the lock; at most 5.
    pub holders: Vec<Holder>,
    /// Closure of the lock, if the lock is closed.
    pub closure: Option<Box<Closure>>,
    /// Recovery of the store, while it grants nothing new.
    pub recovery: Option<Box<StoreRecovery>>,
}

/// A period after a loss of data in which the store grants nothing new.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreRecovery {
    /// Cause for people, as the rest of a sentence that begins with the name of the store: `was
    /// restarted`.
    pub cause: String,
    /// Beginning of the period by the clock of the store, if it is known.
    pub since: Option<SystemTime>,
    /// Time until the end of the period.
    pub remaining: Duration,
}

impl QueuePosition {
    /// Creates the report of a call that is not in the queue, because the store recovers.
    pub(crate) fn not_queued(recovery: StoreRecovery) -> Self {
        Self {
            position: 0,
            queue_length: 0,
            holders: Vec::new(),
            closure: None,
            recovery: Some(Box::new(recovery)),
        }
    }

    /// Returns true if both report the same, apart from the remaining time of the recovery.
    pub(crate) fn is_repeated_by(&self, next: &Self) -> bool {
        let mut next = next.clone();
        if let (Some(next), Some(last)) = (&mut next.recovery, &self.recovery) {
            next.remaining = last.remaining;
        }
        *self == next
    }
}

/// Sender of the queue positions of one acquire.
pub(crate) type QueuePositionSender = watch::Sender<Option<QueuePosition>>;

/// Receiver of the queue positions of one acquire.
pub(crate) struct QueuePositionReceiver(watch::Receiver<Option<QueuePosition>>);

/// Function of the caller that receives queue positions.
pub(crate) type QueuePositionHook = Box<dyn FnMut(&QueuePosition) + Send>;

/// Returns the two ends of a channel for the newest queue position.
pub(crate) fn queue_position_channel() -> (QueuePositionSender, QueuePositionReceiver) {
    let (sender, receiver) = watch::channel(None);
    (sender, QueuePositionReceiver(receiver))
}

impl QueuePositionReceiver {
    /// Passes new queue positions to `hook` until the sender is dropped.
    ///
    /// # Cancel safety
    /// A queue position that was not passed to the hook is passed by the next call.
    pub(crate) async fn notify(&mut self, hook: &mut Option<QueuePositionHook>) {
        while let Ok(()) = self.0.changed().await {
            let queue_position = self.0.borrow_and_update();
            let Some(queue_position) = queue_position.as_ref() else {
                continue;
            };
            debug!(
                queue_position.position,
                queue_position.queue_length, "queued"
            );
            if let Some(hook) = hook {
                hook(queue_position);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_is_reported_again_only_if_it_is_another_one() {
        let report = |cause: &str, remaining_s| {
            QueuePosition::not_queued(StoreRecovery {
                cause: cause.to_owned(),
                since: None,
                remaining: Duration::from_secs(remaining_s),
            })
        };
        let last = report("was restarted", 9);
        assert!(last.is_repeated_by(&report("was restarted", 8)));
        assert!(!last.is_repeated_by(&report("was found empty", 8)));
        let queued = QueuePosition {
            position: 1,
            ..last.clone()
        };
        assert!(!queued.is_repeated_by(&last));
    }
}
