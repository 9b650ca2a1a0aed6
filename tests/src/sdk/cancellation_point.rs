//! Cancellation of futures at random moments: between two polls, or while an unread result may be
//! ready.

use std::{
    future::poll_fn,
    panic,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::Poll,
    time::Duration,
};

use rand::Rng;
use tokio::time::{sleep, timeout};

const POLLS_MAX: usize = 4;
const SHORT_TIME_MS: u64 = 8;
const LONG_TIME_MS: u64 = 60;
/// Limit for futures that are not woken often enough to reach the number of polls of a cut.
const POLLS_TIMEOUT: Duration = Duration::from_millis(120);

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Moment at which a future is dropped.
#[derive(Debug, Clone, Copy)]
pub enum CancellationPoint {
    /// Immediately after this number of polls. 0: without any poll.
    AfterPolls(usize),
    /// After this time, in which the future is polled whenever it is woken.
    AfterTime(Duration),
    /// After this number of polls and a further time without polls.
    AfterPollsAndTime(usize, Duration),
    /// At the end of the future, or after a long timeout.
    Never,
}

impl CancellationPoint {
    /// Returns a random cut.
    #[must_use]
    pub fn random() -> Self {
        let mut rng = rand::thread_rng();
        let limit = if rng.gen_bool(0.8) {
            SHORT_TIME_MS
        } else {
            LONG_TIME_MS
        };
        let time = Duration::from_micros(rng.gen_range(0..limit * 1_000));
        match rng.gen_range(0..7) {
            0 | 1 => Self::AfterPolls(rng.gen_range(0..=POLLS_MAX)),
            2 | 3 => Self::AfterTime(time),
            4 | 5 => Self::AfterPollsAndTime(rng.gen_range(1..=POLLS_MAX), time),
            _ => Self::Never,
        }
    }

    /// Returns the output of the future if the future completes before it is dropped.
    pub async fn apply<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::AfterPolls(polls) => poll_at_most(future, polls).await,
            Self::AfterTime(time) => timeout(time, future).await.ok(),
            Self::AfterPollsAndTime(polls, time) => {
                let mut future = pin!(future);
                let done = poll_at_most(future.as_mut(), polls).await;
                if done.is_none() {
                    sleep(time).await;
                }
                done
            }
            Self::Never => timeout(POLLS_TIMEOUT * 10, future).await.ok(),
        }
    }
}

async fn poll_at_most<T>(future: impl Future<Output = T>, polls_max: usize) -> Option<T> {
    let mut future = pin!(future);
    let mut polls = 0;
    let polled = poll_fn(|cx| {
        if polls < polls_max {
            polls += 1;
            if let Poll::Ready(done) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
        }
        if polls < polls_max {
            return Poll::Pending;
        }
        Poll::Ready(None)
    });
    timeout(POLLS_TIMEOUT, polled).await.ok().flatten()
}

/// Counts the panics of all threads of this process from now on.
pub fn count_panics() {
    let shown = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        shown(info);
    }));
}

/// Returns the number of panics since [`count_panics`].
#[must_use]
pub fn panic_count() -> usize {
    PANICS.load(Ordering::SeqCst)
}
