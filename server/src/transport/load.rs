//! What the calls of one connection keep in the broker's memory: messages that are not whole yet, and
//! answers that the client does not read.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

use super::{
    backlog::{Received, memory_of_data},
    budget::{Account, Budget},
    bursts::{BYTES_MIN, CALLS_MIN},
    seats::Ticket,
};

/// Bytes of messages that are not whole.
const PARTIAL_MOST: usize = 1 << 20;
/// Bytes of answers that the client has not read; with more no lease stream of the connection is read.
const UNREAD_MAX: usize = 4 << 20;
/// Memory of a stream that is not read: what its client may send, by `http2.stream_window`, and the buffer of the decoder,
/// which grows to twice the largest frame.
const PAUSED_BYTES: usize = 96 << 10;
/// Lists that are made, or not read yet.
const LISTS_MOST: usize = 8;
/// Locks that are looked at, or not read yet: each look may wait for a store that does not answer, so
/// that few at a time would hold each other up.
const LOOKS_MOST: usize = 64;
/// Streams of health and reflection: one for each name that a client asks about.
const AUXILIARY_MAX: usize = 8;
/// Calls of a connection that wait for a place; more are refused.
const WAITING_MAX: u32 = 64;
/// How long an answer may wait for its client to read on.
const READ_WITHIN: Duration = Duration::from_secs(15);

/// A kind of calls of which only so many may be in progress, or not read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Costly {
    /// A page of locks.
    List,
    /// One lock with its holders and its line.
    Look,
    /// A stream of health or reflection, which lasts as long as its client wants.
    Auxiliary,
}

/// How many costly calls may be in progress, or not read yet, at a time.
#[derive(Debug)]
pub struct Places {
    lists: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    auxiliary: Arc<Semaphore>,
}

/// One connection's.
#[derive(Debug)]
pub struct Load {
    waiting: Mutex<Waiting>,
    places: Places,
    /// The client takes nothing of what is sent.
    is_stalled: watch::Sender<bool>,
    ticket: Arc<Ticket>,
    bytes: Account,
    /// Calls whose first message is not whole.
    incomplete_calls: Account,
    taken: Mutex<Taken>,
    /// Calls that wait for a place.
    waiting_for_place: AtomicU32,
}

/// What services have taken of what was received since the connection was opened.
#[derive(Debug, Default)]
struct Taken {
    received: Received,
    /// The connection's task waits for more.
    is_awaited: bool,
}

#[derive(Debug, Default)]
struct Waiting {
    partial: usize,
    /// Bytes of whole messages that are not decoded yet.
    undecoded: usize,
    /// Calls whose first message is not whole.
    calls: usize,
    unread: usize,
    /// Streams that are not read for now.
    paused: usize,
    /// Lease streams that wait until there is room for answers.
    without_room: Vec<Waker>,
    answers: HashMap<u64, Instant>,
    counted: u64,
}

/// A message that comes in pieces.
#[derive(Debug)]
pub struct Partial {
    load: Arc<Load>,
    bytes: usize,
    undecoded: usize,
    is_first: bool,
}

/// Bytes that the client has not read.
#[derive(Debug)]
pub struct Unread {
    load: Arc<Load>,
    bytes: usize,
}

/// A stream whose requests are not read, until dropped.
#[derive(Debug)]
pub struct Paused(Arc<Load>);

/// A call that waits for a place.
#[derive(Debug)]
pub struct WaitsForPlace(Arc<Load>);

/// A piece of an answer that keeps its bytes counted.
struct Piece {
    data: Bytes,
    _unread: Unread,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    load: Arc<Load>,
    number: u64,
}

impl Places {
    /// So many of each.
    pub fn new(max: impl Fn(Costly) -> usize) -> Self {
        let semaphore = |kind| Arc::new(Semaphore::new(max(kind)));
        Self {
            lists: semaphore(Costly::List),
            looks: semaphore(Costly::Look),
            auxiliary: semaphore(Costly::Auxiliary),
        }
    }

    /// Waits for one, which is taken until the permit is dropped.
    pub async fn take(&self, call: Costly) -> Option<OwnedSemaphorePermit> {
        let places = match call {
            Costly::List => &self.lists,
            Costly::Look => &self.looks,
            Costly::Auxiliary => &self.auxiliary,
        };
        Arc::clone(places).acquire_owned().await.ok()
    }
}

impl Load {
    /// Nothing is kept yet.
    pub(super) fn new(budget: &Budget, ticket: Arc<Ticket>) -> Self {
        Self {
            waiting: Mutex::default(),
            places: Places::new(|call| match call {
                Costly::List => LISTS_MOST,
                Costly::Look => LOOKS_MOST,
                Costly::Auxiliary => AUXILIARY_MAX,
            }),
            is_stalled: watch::Sender::new(false),
            bytes: budget.bytes.account(&ticket),
            incomplete_calls: budget.incomplete_calls.account(&ticket),
            ticket,
            taken: Mutex::default(),
            waiting_for_place: AtomicU32::new(0),
        }
    }

    /// Notes that a call has begun to be served.
    pub fn begun(&self) {
        self.take(Received { heads: 1, bytes: 0 });
    }

    /// Notes that a frame with so many bytes of messages was taken.
    pub(super) fn frame_taken(&self, length: usize) {
        let bytes = memory_of_data(length);
        self.take(Received { heads: 0, bytes });
    }

    fn take(&self, more: Received) {
        let mut taken = self.lock_taken();
        taken.received.add(more);
        if std::mem::take(&mut taken.is_awaited) {
            self.ticket.control().wake();
        }
    }

    /// Returns what services have taken. The connection's task is woken when that is more.
    pub(super) fn taken(&self) -> Received {
        let mut taken = self.lock_taken();
        taken.is_awaited = true;
        taken.received
    }

    /// Counts a call, which takes memory before its first message has begun.
    pub fn call(self: &Arc<Self>) -> Partial {
        let mut waiting = self.lock();
        waiting.calls += 1;
        self.incomplete_calls.set(waiting.calls);
        drop(waiting);
        Partial {
            load: Arc::clone(self),
            bytes: 0,
            undecoded: 0,
            is_first: true,
        }
    }

    /// Returns how many bytes the connection keeps.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.amount()
    }

    /// Returns how many bytes streams keep that are not read.
    pub(super) fn bytes_of_unread_streams(&self) -> i64 {
        let bytes = self.lock().paused * PAUSED_BYTES;
        i64::try_from(bytes).unwrap_or(i64::MAX / 2)
    }

    /// Returns whether much is incomplete. The connection's task is woken when it no longer is.
    pub(super) fn is_in_burst(&self) -> bool {
        self.lock().is_in_burst()
    }

    /// Counts bytes that the client has to read.
    pub fn unread(self: &Arc<Self>, bytes: usize) -> Unread {
        let mut unread = Unread {
            load: Arc::clone(self),
            bytes: 0,
        };
        unread.set(bytes);
        unread
    }

    /// Returns true if lease streams may be read. Else the task is woken when they may.
    pub fn has_room(&self, cx: &Context<'_>) -> bool {
        let mut waiting = self.lock();
        let has_room = waiting.unread <= UNREAD_MAX;
        if !has_room
            && !waiting
                .without_room
                .iter()
                .any(|task| task.will_wake(cx.waker()))
        {
            waiting.without_room.push(cx.waker().clone());
        }
        has_room
    }

    /// Counts a stream that is not read for now: its client may fill the stream's window.
    pub fn paused(self: &Arc<Self>) -> Paused {
        let mut waiting = self.lock();
        waiting.paused += 1;
        self.settle(&waiting);
        drop(waiting);
        Paused(Arc::clone(self))
    }

    /// A call of the connection was admitted.
    pub(super) fn admitted(&self) {
        self.ticket.admitted();
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

    /// Counts a call that waits for a place, until dropped. `None`: too many wait already.
    pub fn wait_for_place(self: &Arc<Self>) -> Option<WaitsForPlace> {
        let waits = WaitsForPlace(Arc::clone(self));
        let waiting = self.waiting_for_place.fetch_add(1, Relaxed);
        (waiting < WAITING_MAX).then_some(waits)
    }

    /// Waits until there is room for one more costly call, which it takes until the permit is dropped.
    /// There is none while the client takes nothing: answers that are made would wait before the socket.
    pub async fn place(&self, call: Costly) -> Option<OwnedSemaphorePermit> {
        let place = self.places.take(call).await;
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

    fn end_burst(&self, was_in_burst: bool, waiting: &Waiting) {
        if was_in_burst && !waiting.is_in_burst() {
            self.ticket.control().wake();
        }
    }

    fn settle(&self, waiting: &Waiting) {
        let paused = waiting.paused * PAUSED_BYTES;
        let messages = waiting.partial + waiting.undecoded + waiting.unread;
        self.bytes.set(messages + paused);
    }

    fn lock_taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn is_in_burst(&self) -> bool {
        self.calls >= CALLS_MIN || self.partial >= BYTES_MIN
    }
}

impl Partial {
    /// Notes that a frame of the call with so many bytes was taken.
    pub fn frame_taken(&self, length: usize) {
        self.load.frame_taken(length);
    }

    /// So much of it has come. False if the connection has too much of such.
    #[must_use]
    pub fn is(&mut self, bytes: usize) -> bool {
        if bytes == self.bytes {
            return true;
        }
        let mut waiting = self.load.lock();
        let was_in_burst = waiting.is_in_burst();
        waiting.partial = waiting.partial + bytes - self.bytes;
        self.bytes = bytes;
        self.load.settle(&waiting);
        self.load.end_burst(was_in_burst, &waiting);
        waiting.partial <= PARTIAL_MOST
    }

    /// So many bytes of whole messages wait to be decoded.
    pub fn undecoded(&mut self, bytes: usize) {
        if bytes != self.undecoded {
            let mut waiting = self.load.lock();
            waiting.undecoded = waiting.undecoded + bytes - self.undecoded;
            self.undecoded = bytes;
            self.load.settle(&waiting);
        }
    }

    /// The first message is whole.
    pub fn arrived(&mut self) {
        if std::mem::take(&mut self.is_first) {
            let mut waiting = self.load.lock();
            let was_in_burst = waiting.is_in_burst();
            waiting.calls -= 1;
            self.load.incomplete_calls.set(waiting.calls);
            self.load.end_burst(was_in_burst, &waiting);
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        self.arrived();
        self.undecoded(0);
        let _ = self.is(0);
    }
}

impl Unread {
    /// So many bytes are unread now.
    pub fn set(&mut self, bytes: usize) {
        let mut waiting = self.load.lock();
        waiting.unread = waiting.unread + bytes - self.bytes;
        self.bytes = bytes;
        self.load.settle(&waiting);
        let has_room = waiting.unread <= UNREAD_MAX;
        let tasks = has_room.then(|| std::mem::take(&mut waiting.without_room));
        drop(waiting);
        tasks.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Drop for WaitsForPlace {
    fn drop(&mut self) {
        self.0.waiting_for_place.fetch_sub(1, Relaxed);
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.paused -= 1;
        self.0.settle(&waiting);
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Answer {
    /// The client is to read what was made.
    pub fn waits(&self) {
        let mut waiting = self.load.lock();
        waiting.answers.insert(self.number, Instant::now());
    }

    /// Counts a piece of the answer until it was sent, or its stream was reset.
    pub fn piece(&self, data: Bytes) -> Bytes {
        let unread = self.load.unread(data.len());
        Bytes::from_owner(Piece {
            data,
            _unread: unread,
        })
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
        let ticket = Ticket::alone([127, 0, 0, 1].into());
        Arc::new(Load::new(&Budget::default(), Arc::new(ticket)))
    }

    #[test]
    fn partial_messages_are_counted_until_they_are_whole_or_gone() {
        let load = load();
        let (mut one, mut other) = (load.call(), load.call());
        assert!(one.is(PARTIAL_MOST));
        assert!(!other.is(1), "one byte too many");
        assert!(one.is(0), "it is whole");
        assert!(other.is(PARTIAL_MOST));
        drop(other);
        assert!(one.is(PARTIAL_MOST));
    }

    #[test]
    fn a_call_is_incomplete_until_its_first_message_is_whole() {
        let load = load();
        let counted = || (load.incomplete_calls.amount(), load.bytes.amount());
        let (mut whole, dropped) = (load.call(), load.call());
        assert_eq!(counted(), (2, 0));
        assert!(whole.is(100));
        assert_eq!(counted(), (2, 100));
        whole.arrived();
        assert!(whole.is(0));
        assert_eq!(counted(), (1, 0));
        drop(dropped);
        assert_eq!(counted(), (0, 0));
    }

    #[test]
    fn so_many_calls_wait_for_a_place() {
        let load = load();
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| load.wait_for_place()).collect();
        assert!(waiting.iter().all(Option::is_some));
        assert!(load.wait_for_place().is_none());
        waiting.pop();
        assert!(load.wait_for_place().is_some());
        assert!(load.wait_for_place().is_some(), "the one before has ended");
    }

    #[test]
    fn so_many_costly_calls_have_a_place() {
        let load = load();
        let place = |call| futures::FutureExt::now_or_never(load.place(call));
        for (call, most) in [
            (Costly::List, LISTS_MOST),
            (Costly::Look, LOOKS_MOST),
            (Costly::Auxiliary, AUXILIARY_MAX),
        ] {
            let mut places: Vec<_> = (0..most).map(|_| place(call)).collect();
            assert!(places.iter().all(Option::is_some), "{call:?}");
            assert!(place(call).is_none(), "{call:?}: one too many");
            places.pop();
            assert!(place(call).is_some(), "{call:?}: it is free again");
        }
    }

    #[test]
    fn much_that_is_incomplete_is_a_burst() {
        let load = load();
        let mut calls: Vec<_> = (0..CALLS_MIN).map(|_| load.call()).collect();
        assert!(load.is_in_burst());
        calls[0].arrived();
        assert!(!load.is_in_burst());
        assert!(calls[1].is(BYTES_MIN));
        assert!(load.is_in_burst());
        drop(calls);
        assert!(!load.is_in_burst());
    }

    #[test]
    fn pieces_of_answers_are_unread_until_they_are_dropped() {
        let load = load();
        let answer = load.answer();
        let piece = answer.piece(vec![1; UNREAD_MAX].into());
        drop(answer);
        let cx = Context::from_waker(Waker::noop());
        assert!(load.has_room(&cx));
        let mut more = load.unread(1);
        assert!(!load.has_room(&cx));
        assert_eq!(load.lock().without_room.len(), 1);
        drop(piece.slice(..1));
        assert!(!load.has_room(&cx), "the rest is unread");
        drop(piece);
        assert!(load.has_room(&cx));
        assert!(load.lock().without_room.is_empty(), "it was woken");
        more.set(0);
        assert_eq!(load.lock().unread, 0);
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
