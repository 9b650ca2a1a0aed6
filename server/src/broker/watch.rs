//! Watching: what changes is told to whoever wants to hear it, while somebody does.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Broker;
use crate::{
    lock::{LockError, LockKey},
    quotas::Share,
    store::{Change, WATCHED_MS},
};

/// Changes that a watcher may fall behind; one that does is told that there is a gap.
const BEHIND_MAX: usize = 4_096;
/// How often the brokers are asked again to tell what they change.
const ASK_EVERY: Duration = Duration::from_millis(WATCHED_MS / 3);

/// What a watcher hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Something has changed.
    Changed(LockKey, Arc<Change>),
    /// Something may have been missed.
    Gap,
}

/// All watchers of this broker.
#[derive(Debug)]
pub(super) struct Watchers {
    news: broadcast::Sender<News>,
    /// A task asks the brokers.
    is_asking: Mutex<bool>,
}

/// One watcher's ear.
#[derive(Debug)]
pub struct Watch {
    news: broadcast::Receiver<News>,
    draining: CancellationToken,
    /// That of a caller's watch.
    _share: Option<Share>,
}

impl Default for Watchers {
    fn default() -> Self {
        Self {
            news: broadcast::Sender::new(BEHIND_MAX),
            is_asking: Mutex::new(false),
        }
    }
}

impl Watchers {
    /// Passes on what a store tells of a lock.
    pub(super) fn changed(&self, lock: &LockKey, changes: Vec<Change>) {
        if self.news.receiver_count() > 0 {
            for change in changes {
                self.tell(News::Changed(lock.clone(), Arc::new(change)));
            }
        }
    }

    /// How many listen.
    pub(super) fn count(&self) -> usize {
        self.news.receiver_count()
    }

    /// Something may have been missed.
    pub(super) fn missed(&self) {
        self.tell(News::Gap);
    }

    fn tell(&self, news: News) {
        // Nobody may be left to hear it.
        let _ = self.news.send(news);
    }

    fn listen(&self) -> broadcast::Receiver<News> {
        let _is_asking = self.is_asking.lock();
        self.news.subscribe()
    }

    /// Whether the caller is to start the task that asks.
    fn starts(&self) -> bool {
        let mut is_asking = self
            .is_asking
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        !std::mem::replace(&mut *is_asking, true)
    }

    /// Whether nobody listens any more; the task that asks then ends.
    fn ends(&self) -> bool {
        let mut is_asking = self
            .is_asking
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let ends = self.news.receiver_count() == 0;
        *is_asking = !ends;
        ends
    }
}

impl Broker {
    /// Watches for a caller, as [`Broker::watch_uncounted`] does; `caller` is empty where callers do
    /// not show who they are.
    ///
    /// # Errors
    /// [`LockError::QuotaExceeded`] beside those of the store.
    pub async fn watch(&self, caller: &Arc<str>) -> Result<Watch, LockError> {
        let share = self.quotas.watch(caller).map_err(LockError::from);
        let share = share.inspect_err(|error| self.metrics.over_quota(error))?;
        let watch = self.watch_uncounted().await?;
        Ok(Watch {
            _share: Some(share),
            ..watch
        })
    }

    /// Has all brokers tell what they change from now on, until the watch is dropped. No quota counts
    /// the watch: it is that of the broker itself.
    pub async fn watch_uncounted(&self) -> Result<Watch, LockError> {
        if self.draining.is_cancelled() {
            return Err(LockError::Draining);
        }
        let news = self.watchers.listen();
        self.store.watch().await?;
        if self.watchers.starts() {
            self.tasks.spawn(self.clone().ask_for_changes());
        }
        Ok(Watch {
            news,
            draining: self.draining.clone(),
            _share: None,
        })
    }

    async fn ask_for_changes(self) {
        let mut has_failed = false;
        loop {
            tokio::select! {
                () = sleep(ASK_EVERY) => {}
                () = self.draining.cancelled() => return,
            }
            if self.watchers.ends() {
                return;
            }
            match self.store.watch().await {
                Ok(()) if std::mem::take(&mut has_failed) => self.watchers.missed(),
                Ok(()) => {}
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        warn!(%error, "those who watch hear nothing until the store answers");
                    }
                }
            }
        }
    }
}

impl Watch {
    /// What comes next; `None` when the broker is going away. Cancel safe.
    pub async fn next(&mut self) -> Option<News> {
        tokio::select! {
            biased;
            () = self.draining.cancelled() => None,
            news = self.news.recv() => match news {
                Ok(news) => Some(news),
                Err(RecvError::Lagged(_)) => Some(News::Gap),
                Err(RecvError::Closed) => None,
            },
        }
    }
}
