//! Watches: changes of the locks that match a filter, bookmarks, and the final error.

use std::{sync::Arc, time::Duration};

use futures::stream::{self, BoxStream, Fuse, Stream, StreamExt as _};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use super::listing;
use crate::{
    access::Verb,
    broker::watch::{WatchEvent, WatchSubscription},
    lock::{Filter, LockError, LockKey, Mode},
    request::{FieldValidator, RequestContext, RequestError},
    store::{Change, ChangeKind},
};

/// Interval of bookmarks, which keep proxies from closing an idle stream.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(10);

/// A request to watch locks, as its caller has sent it.
#[derive(Debug, Clone, Default)]
pub struct WatchRequest {
    /// Namespace of the watched locks; empty for all namespaces.
    pub namespace: String,
    pub name_prefix: String,
    /// True if the watch continues an earlier one.
    pub resumes: bool,
}

/// An event of a watch, as one caller may see it.
#[derive(Debug, Clone)]
pub enum LockEvent {
    /// No change since the previous event.
    Bookmark,
    /// Changes may have been missed.
    Gap,
    Changed {
        lock: LockKey,
        kind: ChangeKind,
        mode: Mode,
        /// The whole change, if the caller may observe the lock.
        change: Option<Arc<Change>>,
    },
}

struct WatchStream {
    watch: WatchSubscription,
    context: RequestContext,
    /// Yields when the caller's access must be checked again.
    access_changes: Fuse<BoxStream<'static, ()>>,
    filter: Filter,
    ends_at: Instant,
    bookmarks: Interval,
}

/// Returns the events of the locks that match the filter. A resumed watch begins with a gap event,
/// because no broker stores past events.
pub(super) fn events(
    watch: WatchSubscription,
    lifetime: Duration,
    context: RequestContext,
    filter: Filter,
    resumes: bool,
) -> impl Stream<Item = Result<LockEvent, RequestError>> + Send {
    let mut bookmarks = interval_at(Instant::now() + BOOKMARK_INTERVAL, BOOKMARK_INTERVAL);
    bookmarks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watch_stream = WatchStream {
        watch,
        access_changes: context.changes().boxed().fuse(),
        context,
        filter,
        ends_at: Instant::now() + lifetime,
        bookmarks,
    };
    let changes = stream::try_unfold(watch_stream, |mut watch_stream| async move {
        let event = watch_stream.next().await?;
        Ok(event.map(|event| (event, watch_stream)))
    });
    stream::iter(resumes.then_some(Ok(LockEvent::Gap))).chain(changes)
}

impl WatchRequest {
    pub(crate) fn validate(&self) -> Result<Filter, RequestError> {
        let mut fields = FieldValidator::default();
        let prefix = self.name_prefix.clone();
        let filter = listing::filter(&mut fields, &self.namespace, prefix, String::new());
        fields.finish(filter)
    }
}

impl WatchStream {
    /// Returns true if the filter and the current policy allow events of the lock.
    fn is_visible(&self, lock: &LockKey) -> bool {
        self.filter.matches_name(lock) && self.context.is_visible(&self.filter, lock)
    }

    async fn next(&mut self) -> Result<Option<LockEvent>, RequestError> {
        loop {
            let received = tokio::select! {
                biased;
                Some(()) = self.access_changes.next() => {
                    self.context.check_credential()?;
                    self.context.authorize_any(Verb::List)?;
                    continue;
                }
                // The stream has reached its maximum age. The client opens another stream, as it
                // does for a connection.
                () = sleep_until(self.ends_at) => return Ok(None),
                received = self.watch.next() => Some(received),
                _ = self.bookmarks.tick() => None,
            };
            match received {
                None => return Ok(Some(LockEvent::Bookmark)),
                Some(Some(WatchEvent::Changed(lock, change))) if self.is_visible(&lock) => {
                    let may_observe = self.context.can(Verb::Observe, &lock);
                    return Ok(Some(LockEvent::Changed {
                        lock,
                        kind: change.kind,
                        mode: change.mode,
                        change: may_observe.then_some(change),
                    }));
                }
                Some(Some(WatchEvent::Changed(..))) => {}
                Some(Some(WatchEvent::Gap)) => return Ok(Some(LockEvent::Gap)),
                Some(None) => return Err(LockError::Draining.into()),
            }
        }
    }
}
