//! A watch as its client hears it: what its filter lets pass, a bookmark now and then, and why it ends.

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use leasehold_proto::v1::{WatchLocksResponse, watch_locks_response::EventType};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tonic::Status;

use super::{encode, status};
use crate::{
    broker::watch::{News, Watch},
    lock::{Filter, LockError},
};

/// A watch on which nothing happens is not taken for a dead one by what stands in between.
const BOOKMARK_EVERY: Duration = Duration::from_secs(10);

struct Telling {
    watch: Watch,
    filter: Filter,
    bookmarks: Interval,
    /// What happened before is not known: to be told first.
    has_gap: bool,
    is_over: bool,
}

/// What is told of the locks that the filter names. One that resumes begins with a gap: nobody keeps
/// what happened meanwhile.
pub(super) fn events(
    watch: Watch,
    filter: Filter,
    resumes: bool,
) -> BoxStream<'static, Result<WatchLocksResponse, Status>> {
    let mut bookmarks = interval_at(Instant::now() + BOOKMARK_EVERY, BOOKMARK_EVERY);
    bookmarks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let telling = Telling {
        watch,
        filter,
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
    async fn next(&mut self) -> Option<Result<WatchLocksResponse, Status>> {
        if self.is_over {
            return None;
        }
        if std::mem::take(&mut self.has_gap) {
            return Some(Ok(encode::event(EventType::Gap, None)));
        }
        loop {
            let news = tokio::select! {
                news = self.watch.next() => news,
                _ = self.bookmarks.tick() => return Some(Ok(encode::event(EventType::Bookmark, None))),
            };
            match news {
                Some(News::Changed(lock, change)) if self.filter.names(&lock) => {
                    let event = encode::event_type(change.kind);
                    let subject = encode::changed(&lock, &change);
                    return Some(Ok(encode::event(event, Some(subject))));
                }
                Some(News::Changed(..)) => {}
                Some(News::Gap) => return Some(Ok(encode::event(EventType::Gap, None))),
                None => {
                    self.is_over = true;
                    return Some(Err(status::of_all(&LockError::Draining, None)));
                }
            }
        }
    }
}
