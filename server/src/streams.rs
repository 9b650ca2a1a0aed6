//! The lease streams of this broker: their numbers, and who hears that a lease has moved.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::sync::Notify;

use crate::{
    lock::{BrokerId, LeaseId, StreamId},
    store::Moved,
};

/// All open streams.
#[derive(Debug, Default)]
pub struct Streams(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    last: u64,
    streams: HashMap<u64, Weak<Departures>>,
}

/// The leases that have left one stream and of which it was not told yet.
#[derive(Debug, Default)]
pub struct Departures {
    leases: Mutex<Vec<(LeaseId, u32)>>,
    came: Notify,
}

impl Streams {
    /// A stream with a number of its own, and the leases that will move away from it.
    pub fn open(&self, broker: BrokerId) -> (StreamId, Arc<Departures>) {
        let departures = Arc::default();
        let mut open = lock(&self.0);
        open.last += 1;
        let epoch = open.last;
        open.streams.insert(epoch, Arc::downgrade(&departures));
        (StreamId { broker, epoch }, departures)
    }

    /// Forgets a stream.
    pub fn close(&self, id: StreamId) {
        lock(&self.0).streams.remove(&id.epoch);
    }

    /// Tells the stream that a lease has left.
    pub fn moved(&self, moved: Moved) {
        let open = lock(&self.0);
        let departures = open.streams.get(&moved.from.stream.epoch);
        if let Some(departures) = departures.and_then(Weak::upgrade) {
            lock(&departures.leases).push((moved.lease_id, moved.from.number));
            departures.came.notify_one();
        }
    }
}

impl Departures {
    /// The next ones, and the number by which each was here. Cancel safe.
    pub async fn next(&self) -> Vec<(LeaseId, u32)> {
        self.came.notified().await;
        std::mem::take(&mut lock(&self.leases))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
