//! The latest snapshot of one lock, for the calls that report queue positions.
//!
//! A broadcast channel wakes its receivers in the order in which they began to wait, so that a
//! simulation can repeat a run. `tokio::sync::watch` wakes them in a random order.

use std::sync::Arc;

use tokio::sync::broadcast::{
    self,
    error::{RecvError, TryRecvError},
};

use crate::lock::LockState;

/// Sender of the snapshots of one lock.
#[derive(Debug)]
pub(in crate::broker) struct SnapshotSender {
    latest: Option<Arc<LockState>>,
    channel: broadcast::Sender<Arc<LockState>>,
}

/// Receiver of the snapshots of one lock.
#[derive(Debug)]
pub(in crate::broker) struct SnapshotReceiver {
    latest: Option<Arc<LockState>>,
    channel: broadcast::Receiver<Arc<LockState>>,
}

impl Default for SnapshotSender {
    fn default() -> Self {
        Self {
            latest: None,
            channel: broadcast::Sender::new(1),
        }
    }
}

impl SnapshotSender {
    pub(in crate::broker) fn send(&mut self, state: LockState) {
        let state = Arc::new(state);
        self.latest = Some(Arc::clone(&state));
        // An error means that there are no receivers.
        let _ = self.channel.send(state);
    }

    /// Returns a receiver, which has the latest snapshot already.
    pub(in crate::broker) fn subscribe(&self) -> SnapshotReceiver {
        SnapshotReceiver {
            latest: self.latest.clone(),
            channel: self.channel.subscribe(),
        }
    }

    pub(in crate::broker) fn has_receivers(&self) -> bool {
        self.channel.receiver_count() > 0
    }
}

impl SnapshotReceiver {
    /// Waits for a snapshot that was not received yet. Cancel safe.
    pub(in crate::broker) async fn changed(&mut self) {
        loop {
            match self.channel.recv().await {
                Ok(state) => {
                    self.latest = Some(state);
                    return;
                }
                // The next value is the latest one.
                Err(RecvError::Lagged(_)) => {}
                // The sender exists as long as the call is registered.
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    /// Returns the latest snapshot; `None` before the first one.
    pub(in crate::broker) fn latest(&mut self) -> Option<Arc<LockState>> {
        loop {
            match self.channel.try_recv() {
                Ok(state) => self.latest = Some(state),
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return self.latest.clone(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn state(queue_length: u32) -> LockState {
        LockState {
            holders: Vec::new(),
            holder_count: 0,
            waiters: Vec::new(),
            queue_length,
            closure: None,
            permit_usage: None,
            last_fencing_token: 0,
        }
    }

    fn latest_length(receiver: &mut SnapshotReceiver) -> Option<u32> {
        receiver.latest().map(|state| state.queue_length)
    }

    #[test]
    fn a_receiver_gets_the_latest_snapshot_once() {
        let mut sender = SnapshotSender::default();
        assert!(!sender.has_receivers());
        let mut receiver = sender.subscribe();
        assert!(sender.has_receivers());
        assert!(receiver.changed().now_or_never().is_none());
        assert_eq!(latest_length(&mut receiver), None);
        sender.send(state(1));
        sender.send(state(2));
        assert!(receiver.changed().now_or_never().is_some());
        assert_eq!(latest_length(&mut receiver), Some(2));
        assert!(receiver.changed().now_or_never().is_none());
        sender.send(state(3));
        sender.send(state(4));
        assert_eq!(latest_length(&mut receiver), Some(4));
        assert!(receiver.changed().now_or_never().is_none());
    }

    #[test]
    fn a_new_receiver_has_the_latest_snapshot() {
        let mut sender = SnapshotSender::default();
        sender.send(state(1));
        sender.send(state(2));
        assert_eq!(latest_length(&mut sender.subscribe()), Some(2));
    }

    #[tokio::test]
    async fn a_waiting_receiver_is_woken() {
        let mut sender = SnapshotSender::default();
        let mut receiver = sender.subscribe();
        futures::future::join(receiver.changed(), async { sender.send(state(1)) }).await;
        assert_eq!(latest_length(&mut receiver), Some(1));
    }
}
