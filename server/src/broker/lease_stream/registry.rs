//! Registry of this broker's lease streams: assigns stream numbers and forwards changes of leases
//! that were made elsewhere.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    lock::{BrokerId, StreamId},
    store::{MovedLease, Revocation},
};

#[derive(Debug, Default)]
pub(in crate::broker) struct StreamRegistry(Mutex<RegistryState>);

#[derive(Debug, Default)]
struct RegistryState {
    last: u64,
    streams: HashMap<u64, Weak<Inbox>>,
}

/// Queue of changes to leases of one stream that were made elsewhere.
#[derive(Debug, Default)]
pub(in crate::broker) struct Inbox {
    events: Mutex<Vec<RemoteLeaseEvent>>,
    notify: Notify,
}

/// A change to a lease that was made elsewhere.
#[derive(Debug)]
pub(in crate::broker) enum RemoteLeaseEvent {
    /// The lease was attached to another stream.
    Moved(MovedLease),
    /// An operator revoked the lease.
    Revoked(Revocation),
}

impl StreamRegistry {
    /// Registers a stream. Returns its id and the queue of changes to its leases.
    pub(in crate::broker) fn open(&self, broker: BrokerId) -> (StreamId, Arc<Inbox>) {
        let inbox = Arc::default();
        let mut state = self.0.lock();
        state.last += 1;
        let epoch = state.last;
        state.streams.insert(epoch, Arc::downgrade(&inbox));
        (StreamId { broker, epoch }, inbox)
    }

    /// Returns the number of open streams.
    pub(in crate::broker) fn count(&self) -> usize {
        self.0.lock().streams.len()
    }

    pub(in crate::broker) fn close(&self, id: StreamId) {
        self.0.lock().streams.remove(&id.epoch);
    }

    /// Notifies the stream that a lease was attached to another stream.
    pub(in crate::broker) fn moved(&self, moved: MovedLease) {
        self.send(moved.from.stream, RemoteLeaseEvent::Moved(moved));
    }

    /// Notifies the stream that a lease was revoked.
    pub(in crate::broker) fn revoked(&self, revocation: Revocation) {
        self.send(
            revocation.attachment.stream,
            RemoteLeaseEvent::Revoked(revocation),
        );
    }

    fn send(&self, stream: StreamId, event: RemoteLeaseEvent) {
        let state = self.0.lock();
        let inbox = state.streams.get(&stream.epoch);
        if let Some(inbox) = inbox.and_then(Weak::upgrade) {
            inbox.events.lock().push(event);
            inbox.notify.notify_one();
        }
    }
}

impl Inbox {
    /// Waits for at least one change and returns all queued changes. Cancel safe.
    pub(in crate::broker) async fn next(&self) -> Vec<RemoteLeaseEvent> {
        self.notify.notified().await;
        std::mem::take(&mut self.events.lock())
    }
}
