//! WatchLocks streams: change events that match a filter, bookmarks, and the final status.

use std::time::Duration;

use futures::{
    future::{BoxFuture, FutureExt as _},
    stream::{self, BoxStream, StreamExt as _},
};
use leasehold_proto::v1::{Holder, WatchLocksResponse, watch_locks_response::EventType};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};
use tonic::Status;

use super::encode;
use crate::{
    access::Verb,
    broker::watch::{WatchEvent, WatchSubscription},
    lock::{Filter, LockError, LockKey},
    request::{RequestContext, RequestError},
};

/// Interval of bookmarks, which keep proxies from closing an idle stream.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(10);

struct WatchStream {
    watch: WatchSubscription,
    context: RequestContext,
    /// Completes when the caller may no longer watch.
    withdrawn: BoxFuture<'static, RequestError>,
    filter: Filter,
    ends_at: Instant,
    bookmarks: Interval,
    /// True if earlier events may be missing; a gap event is sent first.
    has_gap: bool,
    has_ended: bool,
}

/// Returns the events of the locks that match the filter. A resumed watch begins with a gap event,
/// because no broker stores past events.
pub(super) fn events(
    watch: WatchSubscription,
    lifetime: Duration,
    context: RequestContext,
    filter: Filter,
    resumes: bool,
) -> BoxStream<'static, Result<WatchLocksResponse, Status>> {
    let mut bookmarks = interval_at(Instant::now() + BOOKMARK_INTERVAL, BOOKMARK_INTERVAL);
    bookmarks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let caller = context.clone();
    let watch_stream = WatchStream {
        watch,
        context,
        withdrawn: async move { caller.until_withdrawn_everywhere(Verb::List).await }.boxed(),
        filter,
        ends_at: Instant::now() + lifetime,
        bookmarks,
        has_gap: resumes,
        has_ended: false,
    };
    stream::unfold(watch_stream, |mut watch_stream| async move {
        let event = watch_stream.next().await?;
        Some((event, watch_stream))
    })
    .boxed()
}

impl WatchStream {
    /// Returns true if the filter and the current policy allow events of the lock.
    fn is_visible(&self, lock: &LockKey) -> bool {
        self.filter.matches_name(lock) && self.context.is_visible(&self.filter, lock)
    }

    async fn next(&mut self) -> Option<Result<WatchLocksResponse, Status>> {
        if self.has_ended {
            return None;
        }
        if std::mem::take(&mut self.has_gap) {
            return Some(Ok(encode::event(EventType::Gap, None)));
        }
        loop {
            let received = tokio::select! {
                biased;
                error = &mut self.withdrawn => {
                    self.has_ended = true;
                    return Some(Err(error.into()));
                }
                // The stream has reached its maximum age. The client opens another stream, as it
                // does for a connection.
                () = sleep_until(self.ends_at) => return None,
                received = self.watch.next() => Some(received),
                _ = self.bookmarks.tick() => None,
            };
            match received {
                None => return Some(Ok(encode::event(EventType::Bookmark, None))),
                Some(Some(WatchEvent::Changed(lock, change))) if self.is_visible(&lock) => {
                    let event = encode::event_type(change.kind);
                    let mut subject = encode::changed_holder(&lock, &change);
                    if !self.context.can(Verb::Observe, &lock) {
                        subject = Holder {
                            target: subject.target,
                            ..Holder::default()
                        };
                    }
                    return Some(Ok(encode::event(event, Some(subject))));
                }
                Some(Some(WatchEvent::Changed(..))) => {}
                Some(Some(WatchEvent::Gap)) => {
                    return Some(Ok(encode::event(EventType::Gap, None)));
                }
                Some(None) => {
                    self.has_ended = true;
                    return Some(Err(RequestError::from(LockError::Draining).into()));
                }
            }
        }
    }
}
