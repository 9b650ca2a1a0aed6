//! Limits bursts of calls: few connections are read at the same time while many of their calls, or
//! many bytes of their messages, are incomplete. This bounds the memory of incomplete calls before
//! a connection has to be closed.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use super::read_permits::{ReadPermit, ReadPermits};

/// Number of incomplete calls from which a connection is in a burst.
pub(super) const CALLS_MIN: usize = 16;
/// Bytes of incomplete messages from which a connection is in a burst.
pub(super) const BYTES_MIN: usize = 128 << 10;
/// Maximum number of connections in a burst that are read at the same time.
pub(super) const BURSTS_MAX: usize = 4;
/// Maximum duration of a burst while other connections wait for their turn. Clients normally send
/// messages right behind the headers of their calls.
const BURST_DURATION_MAX: Duration = Duration::from_secs(1);

/// Burst state of one connection.
pub(super) struct Burst {
    permit: ReadPermit,
    /// Timer of the turn, which ends after [`BURST_DURATION_MAX`].
    burst_timer: Option<Pin<Box<Sleep>>>,
}

/// Error of a burst that lasts longer than [`BURST_DURATION_MAX`] while other connections wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BurstTooLong;

impl Burst {
    /// Creates the state of a connection without calls.
    pub(super) fn new(permits: &ReadPermits) -> Self {
        Self {
            permit: ReadPermit::new(permits),
            burst_timer: None,
        }
    }

    /// Waits until the connection may be read. Its task is woken when its burst has ended.
    ///
    /// # Errors
    /// If the connection has had its turn for [`BURST_DURATION_MAX`] and another connection waits.
    pub(super) fn poll_permit(
        &mut self,
        is_in_burst: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), BurstTooLong>> {
        if !is_in_burst {
            self.permit.release();
            self.burst_timer = None;
            return Poll::Ready(Ok(()));
        }
        ready!(self.permit.poll_acquire(cx));
        let until = self
            .burst_timer
            .get_or_insert_with(|| Box::pin(sleep(BURST_DURATION_MAX)));
        if until.as_mut().poll(cx).is_ready() {
            if self.permit.is_awaited() {
                return Poll::Ready(Err(BurstTooLong));
            }
            self.burst_timer = None;
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

    async fn polled(burst: &mut Burst, is_in_burst: bool) -> Option<Result<(), BurstTooLong>> {
        poll_fn(|cx| match burst.poll_permit(is_in_burst, cx) {
            Poll::Ready(permit) => Poll::Ready(Some(permit)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn few_connections_are_in_a_burst_and_those_that_last_end() {
        let bursts = ReadPermits::new(BURSTS_MAX);
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
        advance(BURST_DURATION_MAX).await;
        assert_eq!(polled(&mut others[0], true).await, Some(Err(BurstTooLong)));
        assert_eq!(polled(&mut others[1], false).await, Some(Ok(())));
        assert_eq!(polled(last, true).await, Some(Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_lasts_while_no_connection_waits() {
        let bursts = ReadPermits::new(BURSTS_MAX);
        let mut burst = Burst::new(&bursts);
        assert_eq!(polled(&mut burst, true).await, Some(Ok(())));
        advance(BURST_DURATION_MAX).await;
        assert_eq!(polled(&mut burst, true).await, Some(Ok(())));
    }
}
