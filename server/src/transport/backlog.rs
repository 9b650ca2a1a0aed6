//! Backlog of a connection: data that was read but not yet consumed by services, which is headers
//! of calls that have not started and frames of messages. The HTTP/2 server reads until the socket
//! is empty, and flow control alone would allow as much as the connection window.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use super::{
    connection_load::ConnectionLoad,
    read_permits::{ReadPermit, ReadPermits},
};

/// Number of calls that have not started from which the connection is not read.
const BACKLOG_MAX: i32 = 16;
/// Number of calls in one read from which the connection is crowded. It then needs a turn to read.
const CROWDED_CALLS: u32 = 4;
/// Number of crowded connections that have a turn at the same time, for each worker of the runtime.
/// Their calls start before further crowded connections are read, so that calls of other
/// connections wait for few calls at a time.
pub(super) const PERMITS_PER_WORKER: usize = 4;
/// Memory of unconsumed frames from which the connection is not read, in bytes.
const UNCONSUMED_BYTES_MAX: i64 = 16 << 10;
/// Memory of a frame besides its payload, in bytes.
const FRAME_BYTES: usize = 256;
/// Maximum time to wait until data is consumed. Some data never is: HTTP/2 rejects some headers,
/// some headers are trailers, and messages of calls that have ended are discarded.
const CONSUME_TIMEOUT: Duration = Duration::from_millis(20);

/// Number of received or consumed request headers, and memory of frames with messages.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Received {
    pub(super) header_count: u32,
    pub(super) bytes: u64,
}

/// Unconsumed data of a connection, and its turn to read.
pub(super) struct Backlog {
    /// Data that was read, without data that is no longer expected to be consumed.
    received: Received,
    consume_timer: Option<Pin<Box<Sleep>>>,
    /// True if at least [`CROWDED_CALLS`] calls arrived in the last read.
    is_crowded: bool,
    permit: ReadPermit,
    /// True if the connection has read in its turn and calls of that read have not started.
    has_read: bool,
}

/// Returns the memory of a frame with `length` bytes of messages.
pub(super) fn memory_of_data(length: usize) -> u64 {
    (length + FRAME_BYTES) as u64
}

impl Received {
    pub(super) fn add(&mut self, more: Self) {
        self.header_count = self.header_count.wrapping_add(more.header_count);
        self.bytes = self.bytes.wrapping_add(more.bytes);
    }

    /// Returns true if less than [`UNCONSUMED_BYTES_MAX`] is not consumed, besides the `unread`
    /// bytes of paused streams.
    ///
    /// The difference is negative if data is consumed later that was no longer expected to be.
    fn has_few_bytes_more_than(self, consumed: Self, unread: i64) -> bool {
        self.bytes.wrapping_sub(consumed.bytes).cast_signed() < UNCONSUMED_BYTES_MAX + unread
    }
}

impl Backlog {
    /// Creates the backlog of a new connection.
    pub(super) fn new(permits: &ReadPermits) -> Self {
        Self {
            received: Received::default(),
            consume_timer: None,
            is_crowded: false,
            permit: ReadPermit::new(permits),
            has_read: false,
        }
    }

    /// Records data that was read.
    pub(super) fn read(&mut self, more: Received) {
        self.received.add(more);
        self.is_crowded = more.header_count >= CROWDED_CALLS;
        self.has_read = self.permit.is_held();
    }

    /// Returns true if at least [`CROWDED_CALLS`] calls arrived in the last read.
    pub(super) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// Records that the socket is empty.
    pub(super) fn read_all(&mut self, load: &ConnectionLoad) {
        self.discard_expected(load);
        self.is_crowded = false;
        self.release_permit();
    }

    /// Waits for a turn to read once if the connection is crowded, otherwise returns at once.
    pub(super) fn poll_permit(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_crowded {
            self.release_permit();
            return Poll::Ready(());
        }
        self.permit.poll_acquire(cx)
    }

    /// Releases the turn, because something else keeps the connection from reading.
    pub(super) fn release_permit(&mut self) {
        self.permit.release();
        self.has_read = false;
    }

    /// Releases the turn if the connection has read in it.
    fn release_used_permit(&mut self) {
        if self.has_read {
            self.release_permit();
        }
    }

    /// Waits until the backlog is below its limits and the calls read in the connection's turn have
    /// started.
    ///
    /// Frames of a paused stream are neither consumed nor discarded, so the wait for them lasts as
    /// long as the pause.
    pub(super) fn poll_below_limits(
        &mut self,
        load: &ConnectionLoad,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            let (consumed, unread) = (load.consumed(), load.bytes_of_unread_streams());
            if consumed
                .bytes
                .wrapping_sub(self.received.bytes)
                .cast_signed()
                > 0
            {
                self.received.bytes = consumed.bytes;
            }
            let heads = self
                .received
                .header_count
                .wrapping_sub(consumed.header_count)
                .cast_signed();
            if heads <= 0 {
                self.release_used_permit();
            }
            let waits_for_calls = self.has_read || heads >= BACKLOG_MAX;
            if !waits_for_calls && self.received.has_few_bytes_more_than(consumed, unread) {
                self.consume_timer = None;
                return Poll::Ready(());
            }
            if !self.has_read {
                self.release_permit();
            }
            let waits = self
                .consume_timer
                .get_or_insert_with(|| Box::pin(sleep(CONSUME_TIMEOUT)));
            ready!(waits.as_mut().poll(cx));
            self.consume_timer = None;
            self.release_used_permit();
            self.received.header_count = consumed.header_count;
            self.discard_expected(load);
        }
    }

    /// Stops expecting the consumption of frames that were read, unless a stream is paused. The
    /// remaining frames belong to calls that have ended, and were discarded.
    fn discard_expected(&mut self, load: &ConnectionLoad) {
        if load.bytes_of_unread_streams() == 0 {
            self.received.bytes = load.consumed().bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::Arc};

    use tokio::time::advance;

    use super::{
        super::{budget::Budget, connection_limit::Ticket},
        *,
    };

    fn load() -> ConnectionLoad {
        let ticket = Ticket::without_listener([127, 0, 0, 1].into());
        ConnectionLoad::new(&Budget::default(), Arc::new(ticket))
    }

    fn permits() -> ReadPermits {
        ReadPermits::per_worker(PERMITS_PER_WORKER)
    }

    fn heads(heads: i32) -> Received {
        let heads = heads.cast_unsigned();
        Received {
            header_count: heads,
            bytes: 0,
        }
    }

    async fn is_short(backlog: &mut Backlog, load: &ConnectionLoad) -> bool {
        poll_fn(|cx| Poll::Ready(backlog.poll_below_limits(load, cx).is_ready())).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_read_on_when_its_calls_have_begun_or_do_not_begin() {
        let (load, mut backlog) = (load(), Backlog::new(&permits()));
        backlog.read(heads(BACKLOG_MAX - 1));
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(heads(1));
        assert!(!is_short(&mut backlog, &load).await);
        load.call_started();
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(heads(1));
        assert!(!is_short(&mut backlog, &load).await);
        advance(CONSUME_TIMEOUT).await;
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(heads(BACKLOG_MAX - 1));
        assert!(
            is_short(&mut backlog, &load).await,
            "the others are not expected"
        );
    }

    async fn has_permit(backlog: &mut Backlog) -> bool {
        poll_fn(|cx| Poll::Ready(backlog.poll_permit(cx).is_ready())).await
    }

    #[tokio::test(start_paused = true)]
    async fn few_connections_are_read_at_a_time_whose_calls_come_together() {
        let (load, permits) = (load(), permits());
        let mut all: Vec<_> = (0..=PERMITS_PER_WORKER)
            .map(|_| Backlog::new(&permits))
            .collect();
        let together = CROWDED_CALLS.cast_signed();
        for backlog in &mut all {
            backlog.read(heads(together - 1));
            assert!(has_permit(backlog).await, "it needs none");
            backlog.read(heads(together));
        }
        let (last, others) = all.split_last_mut().expect("five");
        for backlog in others.iter_mut() {
            assert!(has_permit(backlog).await);
        }
        assert!(!has_permit(last).await, "all turns are taken");
        others[0].read(heads(together));
        assert!(!is_short(&mut others[0], &load).await);
        assert!(
            !has_permit(last).await,
            "calls of the first one have to begin"
        );
        for _ in 0..3 * together {
            load.call_started();
        }
        assert!(is_short(&mut others[0], &load).await);
        assert!(has_permit(last).await);
        assert!(
            !has_permit(&mut others[0]).await,
            "it waits behind the last"
        );
        others[1].read_all(&load);
        assert!(
            has_permit(&mut others[0]).await,
            "there was nothing to read"
        );
        last.read(heads(2 * together));
        assert!(!is_short(last, &load).await);
        advance(CONSUME_TIMEOUT).await;
        assert!(is_short(last, &load).await);
        assert!(!last.permit.is_held(), "its calls do not begin");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_may_not_read_releases_its_permit() {
        let (load, permits) = (Arc::new(load()), permits());
        let crowded = || {
            let mut backlog = Backlog::new(&permits);
            backlog.read(heads(CROWDED_CALLS.cast_signed()));
            backlog
        };
        let mut all: Vec<_> = (0..PERMITS_PER_WORKER).map(|_| crowded()).collect();
        for backlog in &mut all {
            assert!(has_permit(backlog).await);
        }
        let (mut unread, mut next) = (crowded(), crowded());
        assert!(!has_permit(&mut unread).await);
        assert!(!has_permit(&mut next).await);
        let _stream = load.count_paused();
        let bytes = u64::MAX / 4;
        unread.received.add(Received {
            header_count: 0,
            bytes,
        });
        drop(all.pop());
        assert!(
            !has_permit(&mut next).await,
            "the turn is that of the other"
        );
        assert!(!is_short(&mut unread, &load).await);
        assert!(has_permit(&mut next).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_read_again_after_its_frames_were_consumed() {
        const LENGTH: usize = 1_000;
        let (load, mut backlog) = (load(), Backlog::new(&permits()));
        let bytes = memory_of_data(LENGTH);
        let mut frames = 0;
        while is_short(&mut backlog, &load).await {
            backlog.read(Received {
                header_count: 0,
                bytes,
            });
            frames += 1;
        }
        assert_eq!(frames, UNCONSUMED_BYTES_MAX.cast_unsigned().div_ceil(bytes));
        load.frame_consumed(LENGTH);
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(Received {
            header_count: 0,
            bytes,
        });
        assert!(!is_short(&mut backlog, &load).await);
        advance(CONSUME_TIMEOUT).await;
        assert!(is_short(&mut backlog, &load).await, "they are thrown away");
    }

    #[tokio::test(start_paused = true)]
    async fn frames_of_a_stream_that_is_not_read_are_not_forgotten() {
        let (load, mut backlog) = (Arc::new(load()), Backlog::new(&permits()));
        let unread = load.count_paused();
        let bytes_max = UNCONSUMED_BYTES_MAX + load.bytes_of_unread_streams();
        let bytes = bytes_max.cast_unsigned() - 1;
        backlog.read(Received {
            header_count: 0,
            bytes,
        });
        backlog.discard_expected(&load);
        assert!(is_short(&mut backlog, &load).await);
        backlog.read(Received {
            header_count: 0,
            bytes: 1,
        });
        for _ in 0..3 {
            assert!(!is_short(&mut backlog, &load).await);
            advance(CONSUME_TIMEOUT).await;
        }
        drop(unread);
        assert!(is_short(&mut backlog, &load).await);
    }
}
