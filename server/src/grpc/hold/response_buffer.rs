//! Buffer of responses that the client of a stream has not read. While it contains many or large
//! responses, the requests of the stream are not read.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures::stream::Stream;
use leasehold_proto::v1::{HoldResponse, hold_response::Message};
use parking_lot::Mutex;
use prost::Message as _;
use tonic::Status;

use crate::transport::{ConnectionLoad, Paused, UnreadBytes};

/// Number of unread messages at which the stream stops reading requests.
const MESSAGES_MAX: usize = 32;
/// Size of unread messages in bytes at which the stream stops reading requests.
const BYTES_MAX: usize = 256 << 10;
/// Memory of a message in addition to its encoding.
const MESSAGE_BYTES: usize = 256;

/// The sending half of the buffer. Sending never waits: the end of a lease is sent regardless of
/// the number of unread messages.
#[derive(Clone)]
pub(super) struct Sender(Arc<SendingHalf>);

/// Backpressure for the requests of a stream, which are read while there is room for responses.
pub(super) struct RequestBackpressure(Arc<Mutex<Buffer>>);

/// The receiving half of the buffer: the response stream of the call.
pub(super) struct Receiver(Arc<Mutex<Buffer>>);

/// Closes the buffer when the last [`Sender`] is dropped.
struct SendingHalf(Arc<Mutex<Buffer>>);

struct Buffer {
    messages: VecDeque<Result<Box<HoldResponse>, Status>>,
    /// Number of messages that were read.
    read: u64,
    /// Sequence number of the unread message with the queue position of each waiting call.
    positions: HashMap<i64, u64>,
    bytes: usize,
    /// Load of the connection; `None` without a connection, where nothing is counted.
    load: Option<Arc<ConnectionLoad>>,
    unread: Option<UnreadBytes>,
    paused: Option<Paused>,
    sender: HalfState,
    receiver: HalfState,
    /// Task that waits for messages.
    reader_waker: Option<Waker>,
    /// Task that waits for room.
    request_waker: Option<Waker>,
}

#[derive(PartialEq, Eq)]
enum HalfState {
    Open,
    Dropped,
}

/// Creates a buffer that counts its unread bytes in `load`, and returns its ends.
pub(super) fn buffer(load: Option<Arc<ConnectionLoad>>) -> (Sender, RequestBackpressure, Receiver) {
    let buffer = Arc::new(Mutex::new(Buffer {
        messages: VecDeque::new(),
        read: 0,
        positions: HashMap::new(),
        bytes: 0,
        unread: load.as_ref().map(|load| load.count_unread(0)),
        load,
        paused: None,
        sender: HalfState::Open,
        receiver: HalfState::Open,
        reader_waker: None,
        request_waker: None,
    }));
    let sender = Sender(Arc::new(SendingHalf(Arc::clone(&buffer))));
    (
        sender,
        RequestBackpressure(Arc::clone(&buffer)),
        Receiver(buffer),
    )
}

impl Sender {
    /// Sends a message. Returns false if the client has disconnected.
    pub(super) fn send(&self, response: Box<HoldResponse>) -> bool {
        let mut buffer = self.0.0.lock();
        if buffer.receiver == HalfState::Dropped {
            return false;
        }
        buffer.push(response);
        buffer.wake_reader();
        true
    }

    /// Ends the call with an error after the messages that were sent.
    pub(super) fn fail(&self, status: Status) {
        let mut buffer = self.0.0.lock();
        buffer.messages.push_back(Err(status));
        buffer.wake_reader();
    }
}

impl RequestBackpressure {
    /// Waits until there is room for responses, or the client has disconnected.
    pub(super) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        let buffer = &mut *self.0.lock();
        let load = buffer.load.as_ref();
        let has_room = !buffer.is_full() && load.is_none_or(|load| load.has_room(cx));
        if has_room || buffer.receiver == HalfState::Dropped {
            buffer.paused = None;
            return Poll::Ready(());
        }
        if buffer.paused.is_none() {
            buffer.paused = load.map(ConnectionLoad::count_paused);
        }
        buffer.request_waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Stream for Receiver {
    type Item = Result<HoldResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut buffer = self.0.lock();
        match buffer.pop() {
            Some(message) => Poll::Ready(Some(message.map(|message| *message))),
            None if buffer.sender == HalfState::Dropped => Poll::Ready(None),
            None => {
                buffer.reader_waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Buffer {
    fn is_full(&self) -> bool {
        self.messages.len() >= MESSAGES_MAX || self.bytes >= BYTES_MAX
    }

    /// Appends a message. While the buffer is full, a new queue position of a call replaces the
    /// unread position of the call.
    fn push(&mut self, mut response: Box<HoldResponse>) {
        let is_full = self.is_full();
        let newest_index = self.read + u64::try_from(self.messages.len()).unwrap_or(u64::MAX);
        if let Some(Message::Queued(update)) = &mut response.message {
            if self.bytes >= BYTES_MAX {
                update.holders.clear();
                update
                    .closure
                    .iter_mut()
                    .for_each(|closure| closure.owner = None);
            }
            let unread_index = self.positions.entry(update.call_id).or_insert(newest_index);
            if is_full && *unread_index != newest_index {
                let offset = usize::try_from(*unread_index - self.read).unwrap_or(usize::MAX);
                if let Some(Ok(older)) = self.messages.get_mut(offset) {
                    let (added, removed) = (size(&response), size(older));
                    *older = response;
                    return self.count(added, removed);
                }
                return;
            }
            *unread_index = newest_index;
        }
        self.count(size(&response), 0);
        self.messages.push_back(Ok(response));
    }

    fn pop(&mut self) -> Option<Result<Box<HoldResponse>, Status>> {
        let message = self.messages.pop_front()?;
        if let Ok(response) = &message {
            if let Some(Message::Queued(update)) = &response.message
                && self.positions.get(&update.call_id) == Some(&self.read)
            {
                self.positions.remove(&update.call_id);
            }
            self.count(0, size(response));
        }
        self.read += 1;
        if !self.is_full()
            && let Some(waker) = self.request_waker.take()
        {
            waker.wake();
        }
        Some(message)
    }

    fn count(&mut self, added: usize, removed: usize) {
        self.bytes = self.bytes + added - removed;
        if let Some(unread) = &mut self.unread {
            unread.set(self.bytes);
        }
    }

    fn wake_reader(&mut self) {
        if let Some(waker) = self.reader_waker.take() {
            waker.wake();
        }
    }
}

impl Drop for SendingHalf {
    fn drop(&mut self) {
        let mut buffer = self.0.lock();
        buffer.sender = HalfState::Dropped;
        buffer.wake_reader();
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut buffer = self.0.lock();
        buffer.receiver = HalfState::Dropped;
        buffer.messages.clear();
        let bytes = buffer.bytes;
        buffer.count(0, bytes);
        buffer.paused = None;
        if let Some(waker) = buffer.request_waker.take() {
            waker.wake();
        }
    }
}

fn size(response: &HoldResponse) -> usize {
    response.encoded_len() + MESSAGE_BYTES
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};
    use leasehold_proto::v1::{Done, Holder, Queued, Refused};

    use super::*;

    fn response(message: Message) -> Box<HoldResponse> {
        Box::new(HoldResponse {
            message: Some(message),
        })
    }

    fn done(call_id: i64) -> Box<HoldResponse> {
        response(Message::Done(Done { call_id }))
    }

    fn queued(call_id: i64, position: i32) -> Box<HoldResponse> {
        response(Message::Queued(Queued {
            call_id,
            position,
            holders: vec![Holder::default()],
            ..Queued::default()
        }))
    }

    fn has_room(requests: &RequestBackpressure) -> bool {
        let cx = Context::from_waker(Waker::noop());
        requests.poll_room(&cx).is_ready()
    }

    async fn read(receiver: &mut Receiver) -> Message {
        let message = receiver.next().now_or_never().expect("a message");
        let response = message.expect("not the end").expect("no error");
        response.message.expect("a kind")
    }

    #[tokio::test]
    async fn requests_are_read_again_when_messages_were() {
        let (sender, requests, mut receiver) = buffer(None);
        for call in 0..MESSAGES_MAX {
            assert!(has_room(&requests), "{call}");
            assert!(sender.send(done(call as i64)));
        }
        assert!(!has_room(&requests));
        read(&mut receiver).await;
        assert!(has_room(&requests));
        drop(sender);
        let remaining = receiver.collect::<Vec<_>>().await;
        assert_eq!(remaining.len(), MESSAGES_MAX - 1);
        assert!(has_room(&requests), "to see that the client is gone");
    }

    #[tokio::test]
    async fn large_messages_leave_no_room_and_nothing_is_lost() {
        let (sender, requests, mut receiver) = buffer(None);
        let large = response(Message::Refused(Refused {
            message: "x".repeat(BYTES_MAX),
            ..Refused::default()
        }));
        sender.send(large);
        assert!(!has_room(&requests));
        for call in 0..1_000 {
            assert!(sender.send(done(call)));
        }
        read(&mut receiver).await;
        for call in 0..1_000 {
            assert_eq!(
                read(&mut receiver).await,
                Message::Done(Done { call_id: call })
            );
        }
        assert_eq!(receiver.0.lock().bytes, 0);
        drop(receiver);
        assert!(!sender.send(done(1)), "the client is gone");
    }

    #[tokio::test]
    async fn only_the_newest_position_of_a_call_waits_for_a_slow_client() {
        let (sender, _requests, mut receiver) = buffer(None);
        sender.send(queued(1, 9));
        sender.send(queued(1, 8));
        for call in 2..MESSAGES_MAX {
            sender.send(queued(call as i64, 9));
        }
        for position in (1..=8).rev() {
            for call in 1..=120 {
                sender.send(queued(call, position));
            }
        }
        let Message::Queued(first) = read(&mut receiver).await else {
            panic!("another message");
        };
        assert_eq!(
            (first.call_id, first.position),
            (1, 9),
            "before it was slow"
        );
        for call in 1..=120 {
            let Message::Queued(next) = read(&mut receiver).await else {
                panic!("another message");
            };
            assert_eq!((next.call_id, next.position), (call, 1));
        }
        assert!(receiver.0.lock().positions.is_empty());
        assert!(receiver.0.lock().messages.is_empty());
    }
}
