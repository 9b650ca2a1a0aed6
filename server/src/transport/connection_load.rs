//! Memory and concurrency of the calls of one connection: incomplete messages, and responses that
//! the client has not read.

use std::{
    collections::HashMap,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

use super::{
    backlog::{Received, memory_of_data},
    budget::{Account, Budget},
    bursts::{BYTES_MIN, CALLS_MIN},
    connection_limit::Ticket,
};

/// Maximum size of all incomplete messages, in bytes.
const INCOMPLETE_BYTES_MAX: usize = 1 << 20;
/// Bytes of unread responses above which no lease stream of the connection is read (backpressure).
const UNREAD_MAX: usize = 4 << 20;
/// Memory counted for a stream that is not read: data that its client may send within
/// `http2.stream_window`, and the buffer of the decoder, which grows to twice the largest frame.
const PAUSED_BYTES: usize = 96 << 10;
/// Maximum number of `ListLocks` calls in progress or with unread responses.
const LISTS_MAX: usize = 8;
/// Maximum number of `GetLock` calls in progress or with unread responses. Each may wait for a
/// store that does not answer, so a small limit would make calls wait for each other.
const GETS_MAX: usize = 64;
/// Maximum number of health and reflection streams. A client needs one for each service name that
/// it requests.
const AUXILIARY_MAX: usize = 8;
/// Maximum number of calls that wait for a permit; further calls are rejected.
const WAITING_MAX: usize = 64;
/// Time in which the client must read a response.
const RESPONSE_READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Kind of expensive calls, each with a concurrency limit. A call counts until its response was
/// read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpensiveCall {
    /// `ListLocks`: a page of locks.
    List,
    /// `GetLock`: one lock with its holders and its queue.
    Get,
    /// A stream of health checks or reflection, which lasts until its client ends it.
    Auxiliary,
}

/// Semaphores that limit expensive calls, one for each kind. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ExpensiveCallLimits {
    lists: Arc<Semaphore>,
    gets: Arc<Semaphore>,
    auxiliary: Arc<Semaphore>,
}

/// Memory and concurrency state of one connection.
#[derive(Debug)]
pub struct ConnectionLoad {
    state: Mutex<LoadState>,
    limits: ExpensiveCallLimits,
    /// True while the client does not read what is sent.
    is_stalled: watch::Sender<bool>,
    ticket: Arc<Ticket>,
    bytes: Account,
    /// Number of calls whose first message is incomplete.
    incomplete_calls: Account,
    consumed: Mutex<Consumed>,
    /// Permits of the calls that wait for a permit of an expensive call.
    waiting_for_permit: Arc<Semaphore>,
}

/// Data that services have consumed since the connection was opened.
#[derive(Debug, Default)]
struct Consumed {
    received: Received,
    /// True if the connection's task waits for more consumption.
    is_awaited: bool,
}

#[derive(Debug, Default)]
struct LoadState {
    partial: usize,
    /// Bytes of complete messages that are not decoded yet.
    undecoded: usize,
    /// Number of calls whose first message is incomplete.
    calls: usize,
    unread: usize,
    /// Number of streams that are not read at present.
    paused: usize,
    /// Wakers of lease streams that wait until the client has read enough.
    room_wakers: Vec<Waker>,
    unread_since: HashMap<u64, Instant>,
    counted: u64,
}

/// Counted request data of one call.
#[derive(Debug)]
pub struct IncomingCall {
    load: Arc<ConnectionLoad>,
    bytes: usize,
    undecoded: usize,
    is_first: bool,
}

/// Counted response bytes that the client has not read.
#[derive(Debug)]
pub struct UnreadBytes {
    load: Arc<ConnectionLoad>,
    bytes: usize,
}

/// Guard that counts a stream as not read until dropped.
#[derive(Debug)]
pub struct Paused(Arc<ConnectionLoad>);

/// Data of a response that counts as unread until dropped.
struct Piece {
    data: Bytes,
    _unread: UnreadBytes,
}

/// Read state of a response.
#[derive(Debug)]
pub struct UnreadResponse {
    load: Arc<ConnectionLoad>,
    number: u64,
}

impl ExpensiveCallLimits {
    /// Creates semaphores with `max` permits for each kind.
    pub fn new(max: impl Fn(ExpensiveCall) -> usize) -> Self {
        let semaphore = |kind| Arc::new(Semaphore::new(max(kind)));
        Self {
            lists: semaphore(ExpensiveCall::List),
            gets: semaphore(ExpensiveCall::Get),
            auxiliary: semaphore(ExpensiveCall::Auxiliary),
        }
    }

    /// Waits for a permit for a call of this kind.
    pub async fn acquire(&self, call: ExpensiveCall) -> Option<OwnedSemaphorePermit> {
        let semaphore = match call {
            ExpensiveCall::List => &self.lists,
            ExpensiveCall::Get => &self.gets,
            ExpensiveCall::Auxiliary => &self.auxiliary,
        };
        Arc::clone(semaphore).acquire_owned().await.ok()
    }
}

impl ConnectionLoad {
    pub(super) fn new(budget: &Budget, ticket: Arc<Ticket>) -> Self {
        Self {
            state: Mutex::default(),
            limits: ExpensiveCallLimits::new(|call| match call {
                ExpensiveCall::List => LISTS_MAX,
                ExpensiveCall::Get => GETS_MAX,
                ExpensiveCall::Auxiliary => AUXILIARY_MAX,
            }),
            is_stalled: watch::Sender::new(false),
            bytes: budget.bytes.account(&ticket),
            incomplete_calls: budget.incomplete_calls.account(&ticket),
            ticket,
            consumed: Mutex::default(),
            waiting_for_permit: Arc::new(Semaphore::new(WAITING_MAX)),
        }
    }

    /// Records that a call has started.
    pub fn call_started(&self) {
        self.add_consumed(Received {
            header_count: 1,
            bytes: 0,
        });
    }

    /// Records that a service has consumed a frame with `length` bytes of messages.
    pub(super) fn frame_consumed(&self, length: usize) {
        let bytes = memory_of_data(length);
        self.add_consumed(Received {
            header_count: 0,
            bytes,
        });
    }

    fn add_consumed(&self, more: Received) {
        let mut consumed = self.consumed.lock();
        consumed.received.add(more);
        if std::mem::take(&mut consumed.is_awaited) {
            self.ticket.control.task.wake();
        }
    }

    /// Returns the data that services have consumed. The connection's task is woken when more is
    /// consumed.
    pub(super) fn consumed(&self) -> Received {
        let mut consumed = self.consumed.lock();
        consumed.is_awaited = true;
        consumed.received
    }

    /// Counts a call as incomplete. A call needs memory before its first message has begun.
    pub fn call(self: &Arc<Self>) -> IncomingCall {
        self.update(|state| state.calls += 1);
        IncomingCall {
            load: Arc::clone(self),
            bytes: 0,
            undecoded: 0,
            is_first: true,
        }
    }

    /// Returns the number of bytes that the connection uses.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.amount()
    }

    /// Returns the number of bytes counted for streams that are not read.
    pub(super) fn bytes_of_unread_streams(&self) -> i64 {
        let bytes = self.state.lock().paused * PAUSED_BYTES;
        i64::try_from(bytes).unwrap_or(i64::MAX / 2)
    }

    /// Returns true if the connection is in a burst. Its task is woken when the burst has ended.
    pub(super) fn is_in_burst(&self) -> bool {
        self.state.lock().is_in_burst()
    }

    /// Counts response bytes until the client has read them.
    pub fn count_unread(self: &Arc<Self>, bytes: usize) -> UnreadBytes {
        let mut unread = UnreadBytes {
            load: Arc::clone(self),
            bytes: 0,
        };
        unread.set(bytes);
        unread
    }

    /// Returns true if lease streams may be read. Otherwise the task is woken when they may.
    pub fn has_room(&self, cx: &Context<'_>) -> bool {
        let mut waiting = self.state.lock();
        let has_room = waiting.unread <= UNREAD_MAX;
        if !has_room
            && !waiting
                .room_wakers
                .iter()
                .any(|task| task.will_wake(cx.waker()))
        {
            waiting.room_wakers.push(cx.waker().clone());
        }
        has_room
    }

    /// Counts a stream that is not read at present: its client may fill the stream's window.
    pub fn count_paused(self: &Arc<Self>) -> Paused {
        self.update(|state| state.paused += 1);
        Paused(Arc::clone(self))
    }

    /// Records that a call of the connection was authenticated.
    pub fn mark_admitted(&self) {
        self.ticket.mark_admitted();
    }

    /// Tracks a response, which counts as unread from now on.
    pub fn track_response(self: &Arc<Self>) -> UnreadResponse {
        let mut waiting = self.state.lock();
        waiting.counted += 1;
        let number = waiting.counted;
        waiting.unread_since.insert(number, Instant::now());
        drop(waiting);
        UnreadResponse {
            load: Arc::clone(self),
            number,
        }
    }

    /// Counts a call that waits for a permit, until dropped. Returns `None` if `WAITING_MAX`
    /// calls wait already.
    pub fn count_waiting(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.waiting_for_permit)
            .try_acquire_owned()
            .ok()
    }

    /// Waits for a permit for an expensive call of the connection.
    ///
    /// Also waits while the client reads nothing, because further responses would pile up in front
    /// of the socket.
    pub async fn acquire_permit(&self, call: ExpensiveCall) -> Option<OwnedSemaphorePermit> {
        let permit = self.limits.acquire(call).await;
        let mut is_stalled = self.is_stalled.subscribe();
        let _ = is_stalled.wait_for(|is_stalled| !is_stalled).await;
        permit
    }

    /// Records whether the client reads what is sent.
    pub(super) fn set_stalled(&self, is_stalled: bool) {
        self.is_stalled
            .send_if_modified(|was| std::mem::replace(was, is_stalled) != is_stalled);
    }

    /// Returns true if a response has been unread for more than [`RESPONSE_READ_TIMEOUT`].
    pub(super) fn has_stale_response(&self) -> bool {
        let waiting = self.state.lock();
        let mut start_times = waiting.unread_since.values();
        start_times.any(|since| since.elapsed() > RESPONSE_READ_TIMEOUT)
    }

    /// Changes the state, updates the accounts, and wakes the connection's task after a burst.
    fn update<T>(&self, change: impl FnOnce(&mut LoadState) -> T) -> T {
        let mut state = self.state.lock();
        let was_in_burst = state.is_in_burst();
        let result = change(&mut state);
        let paused = state.paused * PAUSED_BYTES;
        let messages = state.partial + state.undecoded + state.unread;
        self.bytes.set(messages + paused);
        self.incomplete_calls.set(state.calls);
        if was_in_burst && !state.is_in_burst() {
            self.ticket.control.task.wake();
        }
        result
    }
}

impl LoadState {
    fn is_in_burst(&self) -> bool {
        self.calls >= CALLS_MIN || self.partial >= BYTES_MIN
    }
}

impl IncomingCall {
    /// Records that a frame with `length` bytes of the call was consumed.
    pub fn frame_consumed(&self, length: usize) {
        self.load.frame_consumed(length);
    }

    /// Sets the number of received bytes of incomplete messages. Returns false if the connection
    /// exceeds `INCOMPLETE_BYTES_MAX`.
    #[must_use]
    pub fn set_incomplete(&mut self, bytes: usize) -> bool {
        if bytes == self.bytes {
            return true;
        }
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.load.update(|state| {
            state.partial = state.partial + bytes - before;
            state.partial <= INCOMPLETE_BYTES_MAX
        })
    }

    /// Sets the number of bytes of complete messages that wait to be decoded.
    pub fn set_undecoded(&mut self, bytes: usize) {
        if bytes != self.undecoded {
            let before = std::mem::replace(&mut self.undecoded, bytes);
            self.load
                .update(|state| state.undecoded = state.undecoded + bytes - before);
        }
    }

    /// Records that the first message is complete.
    pub fn message_complete(&mut self) {
        if std::mem::take(&mut self.is_first) {
            self.load.update(|state| state.calls -= 1);
        }
    }
}

impl Drop for IncomingCall {
    fn drop(&mut self) {
        self.message_complete();
        self.set_undecoded(0);
        let _ = self.set_incomplete(0);
    }
}

impl UnreadBytes {
    /// Sets the number of unread bytes.
    pub fn set(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let tasks = self.load.update(|state| {
            state.unread = state.unread + bytes - before;
            let has_room = state.unread <= UNREAD_MAX;
            has_room.then(|| std::mem::take(&mut state.room_wakers))
        });
        tasks.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Drop for UnreadBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.update(|state| state.paused -= 1);
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl UnreadResponse {
    /// Marks the response as unread from now on.
    pub fn mark_unread(&self) {
        let mut waiting = self.load.state.lock();
        waiting.unread_since.insert(self.number, Instant::now());
    }

    /// Counts a piece of the response as unread until it was sent or its stream was reset.
    pub fn piece(&self, data: Bytes) -> Bytes {
        let unread = self.load.count_unread(data.len());
        Bytes::from_owner(Piece {
            data,
            _unread: unread,
        })
    }

    /// Marks all data produced so far as read.
    pub fn mark_read(&self) {
        self.load.state.lock().unread_since.remove(&self.number);
    }
}

impl Drop for UnreadResponse {
    fn drop(&mut self) {
        self.mark_read();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::connection_limit::Ticket, *};

    fn load() -> Arc<ConnectionLoad> {
        let ticket = Ticket::without_listener([127, 0, 0, 1].into());
        Arc::new(ConnectionLoad::new(&Budget::default(), Arc::new(ticket)))
    }

    #[test]
    fn partial_messages_are_counted_until_complete_or_dropped() {
        let load = load();
        let (mut first, mut second) = (load.call(), load.call());
        assert!(first.set_incomplete(INCOMPLETE_BYTES_MAX));
        assert!(!second.set_incomplete(1), "one byte too many");
        assert!(first.set_incomplete(0), "it is whole");
        assert!(second.set_incomplete(INCOMPLETE_BYTES_MAX));
        drop(second);
        assert!(first.set_incomplete(INCOMPLETE_BYTES_MAX));
    }

    #[test]
    fn a_call_is_incomplete_until_its_first_message_is_whole() {
        let load = load();
        let counted = || (load.incomplete_calls.amount(), load.bytes.amount());
        let (mut complete, dropped) = (load.call(), load.call());
        assert_eq!(counted(), (2, 0));
        assert!(complete.set_incomplete(100));
        assert_eq!(counted(), (2, 100));
        complete.message_complete();
        assert!(complete.set_incomplete(0));
        assert_eq!(counted(), (1, 0));
        drop(dropped);
        assert_eq!(counted(), (0, 0));
    }

    #[test]
    fn waiting_calls_are_bounded() {
        let load = load();
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| load.count_waiting()).collect();
        assert!(waiting.iter().all(Option::is_some));
        assert!(load.count_waiting().is_none());
        waiting.pop();
        assert!(load.count_waiting().is_some());
        assert!(load.count_waiting().is_some(), "the one before has ended");
    }

    #[test]
    fn concurrent_costly_calls_are_bounded() {
        let load = load();
        let acquire = |call| futures::FutureExt::now_or_never(load.acquire_permit(call));
        for (call, max) in [
            (ExpensiveCall::List, LISTS_MAX),
            (ExpensiveCall::Get, GETS_MAX),
            (ExpensiveCall::Auxiliary, AUXILIARY_MAX),
        ] {
            let mut permits: Vec<_> = (0..max).map(|_| acquire(call)).collect();
            assert!(permits.iter().all(Option::is_some), "{call:?}");
            assert!(acquire(call).is_none(), "{call:?}: one too many");
            permits.pop();
            assert!(acquire(call).is_some(), "{call:?}: it is free again");
        }
    }

    #[test]
    fn much_that_is_incomplete_is_a_burst() {
        let load = load();
        let mut calls: Vec<_> = (0..CALLS_MIN).map(|_| load.call()).collect();
        assert!(load.is_in_burst());
        calls[0].message_complete();
        assert!(!load.is_in_burst());
        assert!(calls[1].set_incomplete(BYTES_MIN));
        assert!(load.is_in_burst());
        drop(calls);
        assert!(!load.is_in_burst());
    }

    #[test]
    fn pieces_of_answers_are_unread_until_they_are_dropped() {
        let load = load();
        let response = load.track_response();
        let piece = response.piece(vec![1; UNREAD_MAX].into());
        drop(response);
        let cx = Context::from_waker(Waker::noop());
        assert!(load.has_room(&cx));
        let mut more = load.count_unread(1);
        assert!(!load.has_room(&cx));
        assert_eq!(load.state.lock().room_wakers.len(), 1);
        drop(piece.slice(..1));
        assert!(!load.has_room(&cx), "the rest is unread");
        drop(piece);
        assert!(load.has_room(&cx));
        assert!(load.state.lock().room_wakers.is_empty(), "it was woken");
        more.set(0);
        assert_eq!(load.state.lock().unread, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_wait_for_so_long() {
        let load = load();
        let (read, unread) = (load.track_response(), load.track_response());
        read.mark_read();
        tokio::time::advance(RESPONSE_READ_TIMEOUT).await;
        assert!(!load.has_stale_response());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(load.has_stale_response());
        drop(unread);
        assert!(!load.has_stale_response());
        read.mark_unread();
        assert!(!load.has_stale_response(), "from now on");
    }
}
