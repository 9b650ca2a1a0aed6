//! What the calls of one connection keep in the broker's memory: messages that are not whole yet, and
//! answers that the client does not read.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

use super::seats::Ticket;

/// Bytes of messages that are not whole.
const PARTIAL_MOST: usize = 4 << 20;
/// Lists that are made, or not read yet.
const LISTS_MOST: usize = 8;
/// Locks that are looked at, or not read yet: each look may wait for a store that does not answer, so
/// that few at a time would hold each other up.
const LOOKS_MOST: usize = 64;
/// How long an answer may wait for its client to read on.
const READ_WITHIN: Duration = Duration::from_secs(15);

/// What may be large in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Large {
    /// A page of locks.
    List,
    /// One lock with its holders and its line.
    Look,
}

/// So many large answers are made, or not read yet, at a time.
#[derive(Debug)]
pub struct Places {
    lists: Arc<Semaphore>,
    looks: Arc<Semaphore>,
}

/// One connection's.
#[derive(Debug)]
pub struct Load {
    waiting: Mutex<Waiting>,
    places: Places,
    /// The client takes nothing of what is sent.
    is_stalled: watch::Sender<bool>,
    ticket: Arc<Ticket>,
}

#[derive(Debug, Default)]
struct Waiting {
    partial: usize,
    answers: HashMap<u64, Instant>,
    counted: u64,
}

/// A message that comes in pieces.
#[derive(Debug)]
pub struct Partial {
    load: Arc<Load>,
    bytes: usize,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    load: Arc<Load>,
    number: u64,
}

impl Places {
    /// So many of each.
    pub fn new(lists: usize, looks: usize) -> Self {
        Self {
            lists: Arc::new(Semaphore::new(lists)),
            looks: Arc::new(Semaphore::new(looks)),
        }
    }

    /// Waits for one, which is taken until the permit is dropped.
    pub async fn take(&self, answer: Large) -> Option<OwnedSemaphorePermit> {
        let places = match answer {
            Large::List => &self.lists,
            Large::Look => &self.looks,
        };
        Arc::clone(places).acquire_owned().await.ok()
    }
}

impl Load {
    /// Nothing is kept yet.
    pub(super) fn new(ticket: Arc<Ticket>) -> Self {
        Self {
            waiting: Mutex::default(),
            places: Places::new(LISTS_MOST, LOOKS_MOST),
            is_stalled: watch::Sender::new(false),
            ticket,
        }
    }

    /// A call of the connection was admitted.
    pub(super) fn admitted(&self) {
        self.ticket.admitted();
    }

    /// Nothing has come of it yet.
    pub fn partial(self: &Arc<Self>) -> Partial {
        Partial {
            load: Arc::clone(self),
            bytes: 0,
        }
    }

    /// The client is to read it from now on.
    pub fn answer(self: &Arc<Self>) -> Answer {
        let mut waiting = self.lock();
        waiting.counted += 1;
        let number = waiting.counted;
        waiting.answers.insert(number, Instant::now());
        drop(waiting);
        Answer {
            load: Arc::clone(self),
            number,
        }
    }

    /// Waits until there is room for one more large answer, which it takes until the permit is dropped.
    /// There is none while the client takes nothing: answers that are made would wait before the socket.
    pub async fn large(&self, answer: Large) -> Option<OwnedSemaphorePermit> {
        let place = self.places.take(answer).await;
        let mut is_stalled = self.is_stalled.subscribe();
        let _ = is_stalled.wait_for(|is_stalled| !is_stalled).await;
        place
    }

    /// Whether the client takes what is sent.
    pub(super) fn stalled(&self, is_stalled: bool) {
        self.is_stalled
            .send_if_modified(|was| std::mem::replace(was, is_stalled) != is_stalled);
    }

    /// Whether an answer has waited for its client for too long.
    pub(super) fn is_left_alone(&self) -> bool {
        let waiting = self.lock();
        let mut answers = waiting.answers.values();
        answers.any(|since| since.elapsed() > READ_WITHIN)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Partial {
    /// So much of it has come. False if the connection has too much of such.
    #[must_use]
    pub fn is(&mut self, bytes: usize) -> bool {
        let mut waiting = self.load.lock();
        waiting.partial = waiting.partial + bytes - self.bytes;
        self.bytes = bytes;
        waiting.partial <= PARTIAL_MOST
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        self.load.lock().partial -= self.bytes;
    }
}

impl Answer {
    /// The client is to read what was made.
    pub fn waits(&self) {
        let mut waiting = self.load.lock();
        waiting.answers.insert(self.number, Instant::now());
    }

    /// The client has read all there is so far.
    pub fn is_read(&self) {
        self.load.lock().answers.remove(&self.number);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.is_read();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::seats::Ticket, *};

    fn load() -> Arc<Load> {
        Arc::new(Load::new(Arc::new(Ticket::alone())))
    }

    #[test]
    fn partial_messages_are_counted_until_they_are_whole_or_gone() {
        let load = load();
        let (mut one, mut other) = (load.partial(), load.partial());
        assert!(one.is(PARTIAL_MOST));
        assert!(!other.is(1), "one byte too many");
        assert!(one.is(0), "it is whole");
        assert!(other.is(PARTIAL_MOST));
        drop(other);
        assert!(one.is(PARTIAL_MOST));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_wait_for_so_long() {
        let load = load();
        let (read, unread) = (load.answer(), load.answer());
        read.is_read();
        tokio::time::advance(READ_WITHIN).await;
        assert!(!load.is_left_alone());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(load.is_left_alone());
        drop(unread);
        assert!(!load.is_left_alone());
        read.waits();
        assert!(!load.is_left_alone(), "from now on");
    }
}
