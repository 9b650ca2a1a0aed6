//! A watch as its client hears it: what its filter lets pass, a bookmark now and then, and why it ends.

use std::time::Duration;

use futures::{
    future::{BoxFuture, FutureExt as _},
    stream::{self, BoxStream, StreamExt as _},
};
use leasehold_proto::v1::{Holder, WatchLocksResponse, watch_locks_response::EventType};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};
use tonic::Status;

use super::{
    admit::{Ask, Asking},
    encode, status,
};
use crate::{
    access::Verb,
    broker::watch::{News, Watch},
    lock::{Filter, LockError, LockKey},
};

/// A watch on which nothing happens is not taken for a dead one by what stands in between.
const BOOKMARK_EVERY: Duration = Duration::from_secs(10);

struct Telling {
    watch: Watch,
    asking: Asking,
    /// Ends when the caller may watch no more.
    withdrawn: BoxFuture<'static, Status>,
    filter: Filter,
    ends_at: Instant,
    bookmarks: Interval,
    /// What happened before is not known: to be told first.
    has_gap: bool,
    is_over: bool,
}

/// What is told of the locks that the filter names. One that resumes begins with a gap: nobody keeps
/// what happened meanwhile.
pub(super) fn events(
    (watch, lasts): (Watch, Duration),
    asking: Asking,
    filter: Filter,
    resumes: bool,
) -> BoxStream<'static, Result<WatchLocksResponse, Status>> {
    let mut bookmarks = interval_at(Instant::now() + BOOKMARK_EVERY, BOOKMARK_EVERY);
    bookmarks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let caller = asking.clone();
    let telling = Telling {
        watch,
        asking,
        withdrawn: async move { caller.until_withdrawn_everywhere(Ask::WatchLocks).await }.boxed(),
        filter,
        ends_at: Instant::now() + lasts,
        bookmarks,
        has_gap: resumes,
        is_over: false,
    };
    stream::unfold(telling, |mut telling| async move {
        let event = telling.next().await?;
        Some((event, telling))
    })
    .boxed()
}

impl Telling {
    /// By the policy that is in force now.
    fn shows(&self, lock: &LockKey) -> bool {
        self.filter.names(lock) && self.asking.is_shown(&self.filter, lock)
    }

    async fn next(&mut self) -> Option<Result<WatchLocksResponse, Status>> {
        if self.is_over {
            return None;
        }
        if std::mem::take(&mut self.has_gap) {
            return Some(Ok(encode::event(EventType::Gap, None)));
        }
        loop {
            let news = tokio::select! {
                biased;
                refused = &mut self.withdrawn => {
                    self.is_over = true;
                    return Some(Err(refused));
                }
                // Its client goes on with another one, as it does with its connection.
                () = sleep_until(self.ends_at) => return None,
                news = self.watch.next() => Some(news),
                _ = self.bookmarks.tick() => None,
            };
            match news {
                None => return Some(Ok(encode::event(EventType::Bookmark, None))),
                Some(Some(News::Changed(lock, change))) if self.shows(&lock) => {
                    let event = encode::event_type(change.kind);
                    let mut subject = encode::changed(&lock, &change);
                    if !self.asking.may(Verb::Observe, &lock) {
                        subject = Holder {
                            target: subject.target,
                            ..Holder::default()
                        };
                    }
                    return Some(Ok(encode::event(event, Some(subject))));
                }
                Some(Some(News::Changed(..))) => {}
                Some(Some(News::Gap)) => return Some(Ok(encode::event(EventType::Gap, None))),
                Some(None) => {
                    self.is_over = true;
                    return Some(Err(status::of_all(&LockError::Draining, None)));
                }
            }
        }
    }
}
