//! What was read from a connection and is not taken by services yet: heads of calls that have not begun, and frames of
//! messages. HTTP/2 is read on until the socket is empty, and flow control alone would allow as much as the window of the
//! connection.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use super::{
    load::Load,
    turns::{Turn, Turns},
};

/// Calls of a connection that may have to begin; with more it is not read.
const BACKLOG_MAX: i32 = 16;
/// Calls that came together, with which a connection is read in its turn only.
const CALLS_TOGETHER: u32 = 4;
/// Connections that have such a turn at the same time, for each worker of the runtime. Their calls run before the next
/// connections are read, so that calls of all others wait for few at a time.
pub(super) const TURNS_PER_WORKER: usize = 4;
/// Memory of frames that may have to be taken; with more it is not read.
const UNTAKEN_BYTES_MAX: i64 = 16 << 10;
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
pub(super) struct Backlog {
    /// What was read, less what is not expected to be taken.
    received: Received,
    waits: Option<Pin<Box<Sleep>>>,
    /// Calls came together in what was read last.
    is_crowded: bool,
    turn: Turn,
    /// What it may read in its turn was read, and the calls in it have to begin.
    has_read: bool,
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

    /// Whether little memory of it is not taken, besides what unread streams may keep. Below zero for what was not
    /// expected and is taken later.
    fn has_few_bytes_more_than(self, taken: Self, unread: i64) -> bool {
        self.bytes.wrapping_sub(taken.bytes).cast_signed() < UNTAKEN_BYTES_MAX + unread
    }
}

impl Backlog {
    /// Creates the backlog of a connection on which nothing was read.
    pub(super) fn new(turns: &Turns) -> Self {
        Self {
            received: Received::default(),
            waits: None,
            is_crowded: false,
            turn: Turn::of(turns),
            has_read: false,
        }
    }

    /// Notes what was read.
    pub(super) fn read(&mut self, more: Received) {
        self.received.add(more);
        self.is_crowded = more.heads >= CALLS_TOGETHER;
        self.has_read = self.turn.is_taken();
    }

    /// Returns whether calls came together in what was read last.
    pub(super) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// Notes that there is nothing to read.
    pub(super) fn read_all(&mut self, load: &Load) {
        self.forget_bytes(load);
        self.is_crowded = false;
        self.leave_turn();
    }

    /// Waits for a turn to read once, where calls came together before.
    pub(super) fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_crowded {
            self.leave_turn();
            return Poll::Ready(());
        }
        self.turn.poll_take(cx)
    }

    /// Leaves the turn to others: something else keeps the connection from reading.
    pub(super) fn leave_turn(&mut self) {
        self.turn.leave();
        self.has_read = false;
    }

    /// Ends a turn that was used.
    fn end_turn(&mut self) {
        if self.has_read {
            self.leave_turn();
        }
    }

    /// Waits until little has to be taken, and the calls of the connection's turn have begun. While a stream is not read its
    /// frames are neither taken nor thrown away, and the wait has no end but that of the stream.
    pub(super) fn poll_short(&mut self, load: &Load, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let (taken, unread) = (load.taken(), load.bytes_of_unread_streams());
            if taken.bytes.wrapping_sub(self.received.bytes).cast_signed() > 0 {
                self.received.bytes = taken.bytes;
            }
            let heads = self.received.heads.wrapping_sub(taken.heads).cast_signed();
            if heads <= 0 {
                self.end_turn();
            }
            let waits_for_calls = self.has_read || heads >= BACKLOG_MAX;
            if !waits_for_calls && self.received.has_few_bytes_more_than(taken, unread) {
                self.waits = None;
                return Poll::Ready(());
            }
            if !self.has_read {
                self.leave_turn();
            }
            let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(WAITS_MAX)));
            ready!(waits.as_mut().poll(cx));
            self.waits = None;
            self.end_turn();
            self.received.heads = taken.heads;
            self.forget_bytes(load);
        }
    }

    /// Expects no more of the frames that were read to be taken, unless a stream is not read: those of calls that have ended
    /// were thrown away.
    fn forget_bytes(&mut self, load: &Load) {
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

    fn turns() -> Turns {
        Turns::per_worker(TURNS_PER_WORKER)
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
        let (load, mut backlog) = (load(), Backlog::new(&turns()));
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

    async fn has_turn(backlog: &mut Backlog) -> bool {
        poll_fn(|cx| Poll::Ready(backlog.poll_turn(cx).is_ready())).await
    }

    #[tokio::test(start_paused = true)]
    async fn few_connections_are_read_at_a_time_whose_calls_come_together() {
        let (load, turns) = (load(), turns());
        let mut all: Vec<_> = (0..=TURNS_PER_WORKER)
            .map(|_| Backlog::new(&turns))
            .collect();
        let together = CALLS_TOGETHER.cast_signed();
        for backlog in &mut all {
            backlog.read(heads(together - 1));
            assert!(has_turn(backlog).await, "it needs none");
            backlog.read(heads(together));
        }
        let (last, others) = all.split_last_mut().expect("five");
        for backlog in others.iter_mut() {
            assert!(has_turn(backlog).await);
        }
        assert!(!has_turn(last).await, "all turns are taken");
        others[0].read(heads(together));
        assert!(!is_short(&mut others[0], &load).await);
        assert!(
            !has_turn(last).await,
            "calls of the first one have to begin"
        );
        for _ in 0..3 * together {
            load.begun();
        }
        assert!(is_short(&mut others[0], &load).await);
        assert!(has_turn(last).await);
        assert!(!has_turn(&mut others[0]).await, "it waits behind the last");
        others[1].read_all(&load);
        assert!(has_turn(&mut others[0]).await, "there was nothing to read");
        last.read(heads(2 * together));
        assert!(!is_short(last, &load).await);
        advance(WAITS_MAX).await;
        assert!(is_short(last, &load).await);
        assert!(!last.turn.is_taken(), "its calls do not begin");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_may_not_read_leaves_its_turn() {
        let (load, turns) = (Arc::new(load()), turns());
        let crowded = || {
            let mut backlog = Backlog::new(&turns);
            backlog.read(heads(CALLS_TOGETHER.cast_signed()));
            backlog
        };
        let mut all: Vec<_> = (0..TURNS_PER_WORKER).map(|_| crowded()).collect();
        for backlog in &mut all {
            assert!(has_turn(backlog).await);
        }
        let (mut unread, mut next) = (crowded(), crowded());
        assert!(!has_turn(&mut unread).await);
        assert!(!has_turn(&mut next).await);
        let _stream = load.paused();
        let bytes = u64::MAX / 4;
        unread.received.add(Received { heads: 0, bytes });
        drop(all.pop());
        assert!(!has_turn(&mut next).await, "the turn is that of the other");
        assert!(!is_short(&mut unread, &load).await);
        assert!(has_turn(&mut next).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_read_on_when_its_frames_were_taken() {
        const LENGTH: usize = 1_000;
        let (load, mut backlog) = (load(), Backlog::new(&turns()));
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
        let (load, mut backlog) = (Arc::new(load()), Backlog::new(&turns()));
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
