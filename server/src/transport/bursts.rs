//! Bursts of calls: few connections at a time are read on while many of their calls, or much of their messages, are
//! incomplete, so that what all connections keep for that is bounded before one of them is closed.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use super::turns::{Turn, Turns};

/// Calls without their messages with which a connection is in a burst.
pub(super) const CALLS_MIN: usize = 16;
/// Bytes of incomplete messages with which it is.
pub(super) const BYTES_MIN: usize = 128 << 10;
/// Connections in a burst that read on at the same time.
pub(super) const BURSTS_MAX: usize = 4;
/// How long a burst may last while others wait for their turn: a client sends messages right behind the heads of its calls.
const LASTS: Duration = Duration::from_secs(1);

/// The burst of one connection.
pub(super) struct Burst {
    turn: Turn,
    /// When its turn has lasted long.
    until: Option<Pin<Box<Sleep>>>,
}

/// A burst lasts too long while others wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Burst {
    /// Creates the burst of a connection without calls.
    pub(super) fn new(turns: &Turns) -> Self {
        Self {
            turn: Turn::of(turns),
            until: None,
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
            self.turn.leave();
            self.until = None;
            return Poll::Ready(Ok(()));
        }
        ready!(self.turn.poll_take(cx));
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(LASTS)));
        if until.as_mut().poll(cx).is_ready() {
            if self.turn.is_awaited() {
                return Poll::Ready(Err(TooLong));
            }
            self.until = None;
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
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
        let bursts = Turns::new(BURSTS_MAX);
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
        let bursts = Turns::new(BURSTS_MAX);
        let mut burst = Burst::new(&bursts);
        assert_eq!(polled(&mut burst, true).await, Some(Ok(())));
        advance(LASTS).await;
        assert_eq!(polled(&mut burst, true).await, Some(Ok(())));
    }
}
