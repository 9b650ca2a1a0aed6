//! What was read from a connection and is not taken by services yet: heads of calls that have not begun, and frames of
//! messages. HTTP/2 is read on until the socket is empty, and flow control alone would allow as much as the window of the
//! connection.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use super::load::Load;

/// Calls of a connection that may have to begin; with more it is not read.
const BACKLOG_MAX: i32 = 16;
/// Memory of frames that may have to be taken; with more it is not read.
const UNTAKEN_BYTES_MAX: i64 = 64 << 10;
/// Memory of a frame besides its bytes.
const FRAME_BYTES: usize = 256;
/// How long it waits for them at most. Not everything is taken: some heads are refused by HTTP/2, some are trailers, and
/// messages of calls that have ended are thrown away.
const WAITS_MAX: Duration = Duration::from_millis(20);

/// Heads of calls, and memory of frames with messages.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Received {
    pub(super) heads: u32,
    pub(super) bytes: u64,
}

/// The backlog of a connection.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// What was read, less what is not expected to be taken.
    received: Received,
    waits: Option<Pin<Box<Sleep>>>,
}

/// Returns the memory of a frame with so many bytes of messages.
pub(super) fn memory_of_data(length: usize) -> u64 {
    (length + FRAME_BYTES) as u64
}

impl Received {
    /// Adds more.
    pub(super) fn add(&mut self, more: Self) {
        self.heads = self.heads.wrapping_add(more.heads);
        self.bytes = self.bytes.wrapping_add(more.bytes);
    }

    /// Whether little of it is not taken, besides what unread streams may keep. Below zero for what was not expected and
    /// is taken later.
    fn is_little_more_than(self, taken: Self, unread: i64) -> bool {
        self.heads.wrapping_sub(taken.heads).cast_signed() < BACKLOG_MAX
            && self.bytes.wrapping_sub(taken.bytes).cast_signed() < UNTAKEN_BYTES_MAX + unread
    }
}

impl Backlog {
    /// Notes what was read.
    pub(super) fn read(&mut self, more: Received) {
        self.received.add(more);
    }

    /// Waits until little has to be taken. While a stream is not read its frames are neither taken nor thrown away, and the
    /// wait has no end but that of the stream.
    pub(super) fn poll_short(&mut self, load: &Load, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let (taken, unread) = (load.taken(), load.bytes_of_unread_streams());
            if taken.bytes.wrapping_sub(self.received.bytes).cast_signed() > 0 {
                self.received.bytes = taken.bytes;
            }
            if self.received.is_little_more_than(taken, unread) {
                self.waits = None;
                return Poll::Ready(());
            }
            let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(WAITS_MAX)));
            ready!(waits.as_mut().poll(cx));
            self.waits = None;
            self.received.heads = taken.heads;
            self.forget_bytes(load);
        }
    }

    /// Expects no more of the frames that were read to be taken, unless a stream is not read: those of calls that have ended
    /// were thrown away.
    pub(super) fn forget_bytes(&mut self, load: &Load) {
        if load.bytes_of_unread_streams() == 0 {
            self.received.bytes = load.taken().bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::Arc};

    use tokio::time::advance;

    use super::{
        super::{budget::Budget, seats::Ticket},
        *,
    };

    fn load() -> Load {
        let ticket = Ticket::alone([127, 0, 0, 1].into());
        Load::new(&Budget::default(), Arc::new(ticket))
    }

    fn heads(heads: i32) -> Received {
        let heads = heads.cast_unsigned();
        Received { heads, bytes: 0 }
    }

    async fn is_short(backlog: &mut Backlog, load: &Load) -> bool {
        poll_fn(|cx| Poll::Ready(backlog.poll_short(load, cx).is_ready())).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_read_on_when_its_calls_have_begun_or_do_not_begin() {
        let (load, mut backlog) = (load(), Backlog::default());
        backlog.read(heads(BACKLOG_MAX - 1));
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(heads(1));
        assert!(!is_short(&mut backlog, &load).await);
        load.begun();
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(heads(1));
        assert!(!is_short(&mut backlog, &load).await);
        advance(WAITS_MAX).await;
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(heads(BACKLOG_MAX - 1));
        assert!(
            is_short(&mut backlog, &load).await,
            "the others are not expected"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_read_on_when_its_frames_were_taken() {
        const LENGTH: usize = 1_000;
        let (load, mut backlog) = (load(), Backlog::default());
        let bytes = memory_of_data(LENGTH);
        let mut frames = 0;
        while is_short(&mut backlog, &load).await {
            backlog.read(Received { heads: 0, bytes });
            frames += 1;
        }
        assert_eq!(frames, UNTAKEN_BYTES_MAX.cast_unsigned().div_ceil(bytes));
        load.frame_taken(LENGTH);
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(Received { heads: 0, bytes });
        assert!(!is_short(&mut backlog, &load).await);
        advance(WAITS_MAX).await;
        assert!(is_short(&mut backlog, &load).await, "they are thrown away");
    }

    #[tokio::test(start_paused = true)]
    async fn frames_of_a_stream_that_is_not_read_are_not_forgotten() {
        let (load, mut backlog) = (Arc::new(load()), Backlog::default());
        let unread = load.paused();
        let most = UNTAKEN_BYTES_MAX + load.bytes_of_unread_streams();
        let bytes = most.cast_unsigned() - 1;
        backlog.read(Received { heads: 0, bytes });
        backlog.forget_bytes(&load);
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(Received { heads: 0, bytes: 1 });
        for _ in 0..3 {
            assert!(!is_short(&mut backlog, &load).await);
            advance(WAITS_MAX).await;
        }
        drop(unread);
        assert!(is_short(&mut backlog, &load).await);
    }
}
