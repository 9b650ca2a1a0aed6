//! Drops futures at random moments: between two polls, or while their answer may lie there unseen.

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
const SOON_MS: u64 = 8;
const LATE_MS: u64 = 60;
/// A call that is polled no more often than it has to be is cut here.
const LIMIT: Duration = Duration::from_millis(120);

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// When a future is dropped.
#[derive(Debug, Clone, Copy)]
pub enum Cut {
    /// Right after so many polls; 0: without one.
    Polls(usize),
    /// After a time in which it is polled whenever it asks for that.
    Time(Duration),
    /// After so many polls and a time in which it is left alone.
    Left(usize, Duration),
    /// Not at all, unless it takes very long.
    Not,
}

impl Cut {
    /// Any.
    #[must_use]
    pub fn random() -> Self {
        let mut rng = rand::thread_rng();
        let limit = if rng.gen_bool(0.8) { SOON_MS } else { LATE_MS };
        let time = Duration::from_micros(rng.gen_range(0..limit * 1_000));
        match rng.gen_range(0..7) {
            0 | 1 => Self::Polls(rng.gen_range(0..=POLLS_MAX)),
            2 | 3 => Self::Time(time),
            4 | 5 => Self::Left(rng.gen_range(1..=POLLS_MAX), time),
            _ => Self::Not,
        }
    }

    /// What the future gives, if that comes before it is dropped.
    pub async fn apply<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Polls(polls) => until_polled(future, polls).await,
            Self::Time(time) => timeout(time, future).await.ok(),
            Self::Left(polls, time) => {
                let mut future = pin!(future);
                let done = until_polled(future.as_mut(), polls).await;
                if done.is_none() {
                    sleep(time).await;
                }
                done
            }
            Self::Not => timeout(LIMIT * 10, future).await.ok(),
        }
    }
}

async fn until_polled<T>(future: impl Future<Output = T>, polls_max: usize) -> Option<T> {
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
    timeout(LIMIT, polled).await.ok().flatten()
}

/// Counts the panics of all threads of this process from now on.
pub fn count_panics() {
    let shown = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        shown(info);
    }));
}

/// How many there were.
#[must_use]
pub fn panics() -> usize {
    PANICS.load(Ordering::SeqCst)
}
