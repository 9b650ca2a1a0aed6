//! Queue position of a waiting call.

use tokio::sync::watch;
use tracing::debug;

use crate::error::{Closure, Holder};

/// Position in the queue of a lock. A hint, which the broker updates at most once a second.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePosition {
    /// Position counted from 1, which is the next waiter.
    pub position: u32,
    /// Number of all waiters.
    pub queue_length: u32,
    /// Some holders of the lock; at most 5.
    pub holders: Vec<Holder>,
    /// Closure of the lock, if the lock is closed.
    pub closure: Option<Box<Closure>>,
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
