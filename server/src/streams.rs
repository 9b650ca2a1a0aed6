//! The lease streams of this broker: their numbers, and what others have done to their leases.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::sync::Notify;

use crate::{
    lock::{BrokerId, StreamId},
    store::{Moved, Revocation},
};

/// All open streams.
#[derive(Debug, Default)]
pub struct Streams(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    last: u64,
    streams: HashMap<u64, Weak<News>>,
}

/// What was done to leases of one stream from elsewhere, and it was not told yet.
#[derive(Debug, Default)]
pub struct News {
    list: Mutex<Vec<Elsewhere>>,
    came: Notify,
}

/// What was done to a lease from elsewhere.
#[derive(Debug)]
pub enum Elsewhere {
    /// It was put on another stream.
    Moved(Moved),
    /// An operator has it end.
    Revoked(Revocation),
}

impl Streams {
    /// A stream with a number of its own, and what will be done to its leases from elsewhere.
    pub fn open(&self, broker: BrokerId) -> (StreamId, Arc<News>) {
        let news = Arc::default();
        let mut open = lock(&self.0);
        open.last += 1;
        let epoch = open.last;
        open.streams.insert(epoch, Arc::downgrade(&news));
        (StreamId { broker, epoch }, news)
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        lock(&self.0).streams.len()
    }

    /// Forgets a stream.
    pub fn close(&self, id: StreamId) {
        lock(&self.0).streams.remove(&id.epoch);
    }

    /// Tells the stream that a lease has left.
    pub fn moved(&self, moved: Moved) {
        self.tell(moved.from.stream, Elsewhere::Moved(moved));
    }

    /// Tells the stream that a lease is to end.
    pub fn revoked(&self, revocation: Revocation) {
        self.tell(revocation.on.stream, Elsewhere::Revoked(revocation));
    }

    fn tell(&self, stream: StreamId, what: Elsewhere) {
        let open = lock(&self.0);
        let news = open.streams.get(&stream.epoch);
        if let Some(news) = news.and_then(Weak::upgrade) {
            lock(&news.list).push(what);
            news.came.notify_one();
        }
    }
}

impl News {
    /// The next ones. Cancel safe.
    pub async fn next(&self) -> Vec<Elsewhere> {
        self.came.notified().await;
        std::mem::take(&mut lock(&self.list))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
