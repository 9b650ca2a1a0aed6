//! Bursts of calls: few connections at a time are read on while many of their calls, or much of their messages, are
//! incomplete, so that what all connections keep for that is bounded before one of them is closed.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt as _};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};

/// Calls without their messages with which a connection is in a burst.
pub(super) const CALLS_MIN: usize = 16;
/// Bytes of incomplete messages with which it is.
pub(super) const BYTES_MIN: usize = 128 << 10;
/// Connections in a burst that read on at the same time.
const BURSTS_MAX: usize = 4;
/// How long a burst may last while others wait for their turn: a client sends messages right behind the heads of its calls.
const LASTS: Duration = Duration::from_secs(1);

/// The turns of all connections. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Bursts(Arc<Turns>);

#[derive(Debug)]
struct Turns {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// A connection that waits for its turn.
struct Waiting(Arc<Turns>);

/// The turn of one connection.
pub(super) struct Burst {
    bursts: Bursts,
    phase: Phase,
}

enum Phase {
    /// The connection is in no burst.
    None,
    Waits(BoxFuture<'static, Option<OwnedSemaphorePermit>>),
    Reads {
        _turn: Option<OwnedSemaphorePermit>,
        until: Pin<Box<Sleep>>,
    },
}

/// A burst lasts too long while others wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Default for Bursts {
    fn default() -> Self {
        Self(Arc::new(Turns {
            free: Arc::new(Semaphore::new(BURSTS_MAX)),
            waiting: AtomicUsize::new(0),
        }))
    }
}

impl Burst {
    /// Creates the turn of a connection without calls.
    pub(super) fn new(bursts: &Bursts) -> Self {
        Self {
            bursts: bursts.clone(),
            phase: Phase::None,
        }
    }

    /// Waits until a connection may be read on. Its task is woken when it is in a burst no more.
    ///
    /// # Errors
    /// If it has had its turn for too long.
    pub(super) fn poll_turn(
        &mut self,
        is_in_burst: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TooLong>> {
        if !is_in_burst {
            self.phase = Phase::None;
            return Poll::Ready(Ok(()));
        }
        if matches!(self.phase, Phase::None) {
            let waiting = Waiting::begin(&self.bursts.0);
            let turn = Arc::clone(&self.bursts.0.free).acquire_owned();
            let turn = turn.map(|turn| {
                drop(waiting);
                turn.ok()
            });
            self.phase = Phase::Waits(turn.boxed());
        }
        if let Phase::Waits(turn) = &mut self.phase {
            let turn = ready!(turn.as_mut().poll(cx));
            let until = Box::pin(sleep(LASTS));
            self.phase = Phase::Reads { _turn: turn, until };
        }
        if let Phase::Reads { until, .. } = &mut self.phase
            && until.as_mut().poll(cx).is_ready()
        {
            if self.bursts.0.waiting.load(Relaxed) > 0 {
                return Poll::Ready(Err(TooLong));
            }
            *until = Box::pin(sleep(LASTS));
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }
}

impl Waiting {
    fn begin(turns: &Arc<Turns>) -> Self {
        turns.waiting.fetch_add(1, Relaxed);
        Self(Arc::clone(turns))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::advance;

    use super::*;

    async fn polled(burst: &mut Burst, is_in_burst: bool) -> Option<Result<(), TooLong>> {
        poll_fn(|cx| match burst.poll_turn(is_in_burst, cx) {
            Poll::Ready(turn) => Poll::Ready(Some(turn)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn few_connections_are_in_a_burst_and_those_that_last_end() {
        let bursts = Bursts::default();
        let mut all: Vec<_> = (0..=BURSTS_MAX).map(|_| Burst::new(&bursts)).collect();
        for burst in &mut all {
            assert_eq!(polled(burst, false).await, Some(Ok(())));
        }
        let (last, others) = all.split_last_mut().expect("five");
        for burst in others.iter_mut() {
            assert_eq!(polled(burst, true).await, Some(Ok(())));
        }
        assert_eq!(polled(last, true).await, None, "all turns are taken");
        assert_eq!(polled(last, false).await, Some(Ok(())));
        assert_eq!(polled(last, true).await, None);
        advance(LASTS).await;
        assert_eq!(polled(&mut others[0], true).await, Some(Err(TooLong)));
        assert_eq!(polled(&mut others[1], false).await, Some(Ok(())));
        assert_eq!(polled(last, true).await, Some(Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_lasts_while_nobody_waits() {
        let bursts = Bursts::default();
        let mut burst = Burst::new(&bursts);
        assert_eq!(polled(&mut burst, true).await, Some(Ok(())));
        advance(LASTS).await;
        assert_eq!(polled(&mut burst, true).await, Some(Ok(())));
    }
}
