//! What callers are denied: for the auditors in the log and for the operators' page, so many a second that nobody can
//! fill either, and counted.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use tokio::time::Instant;

use crate::{
    history::{Deed, DeedKind, History},
    lock::LockKey,
    pace::Pace,
};

/// Lines of the log.
const TOLD: Pace = Pace::per_second(5, 20);

/// All of them.
#[derive(Debug)]
pub struct Denials {
    count: AtomicU64,
    told: Mutex<Told>,
    history: OnceLock<Arc<History>>,
}

#[derive(Debug)]
struct Told {
    /// From when on lines could keep their rate.
    due: Instant,
    untold: u64,
}

/// One of them.
#[derive(Debug, Clone)]
pub struct Denied<'a> {
    /// The name of the caller; empty: nobody knows it.
    pub caller: &'a str,
    /// From where.
    pub peer: Option<IpAddr>,
    /// Of which lock; `None`: of any.
    pub lock: Option<&'a LockKey>,
    /// What.
    pub what: String,
}

impl Default for Denials {
    fn default() -> Self {
        let due = Instant::now();
        Self {
            count: AtomicU64::new(0),
            told: Mutex::new(Told { due, untold: 0 }),
            history: OnceLock::new(),
        }
    }
}

impl Denials {
    /// Keeps them here, too.
    pub fn keep(&self, history: &Arc<History>) {
        let _ = self.history.set(Arc::clone(history));
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// One more.
    pub fn note(&self, denied: Denied<'_>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let Some(untold) = self.is_told() else {
            return;
        };
        let Denied {
            caller,
            peer,
            lock,
            what,
        } = denied;
        tracing::info!(
            target: "audit",
            caller,
            peer = peer.map(tracing::field::display),
            lock = lock.map(ToString::to_string),
            what,
            untold,
            "denied"
        );
        if let Some(history) = self.history.get() {
            history.done(Deed {
                at: SystemTime::now(),
                kind: DeedKind::Denied,
                caller: caller.to_owned(),
                peer: peer.map(|peer| peer.to_string()).unwrap_or_default(),
                lock: lock.cloned(),
                lease_id: None,
                why: what,
            });
        }
    }

    /// How many were not told since the last one that was; `None`: neither is this one.
    fn is_told(&self) -> Option<u64> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if TOLD.take(&mut told.due).is_err() {
            told.untold += 1;
            return None;
        }
        Some(std::mem::take(&mut told.untold))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_counted_and_told_now_and_then() {
        let (denials, history) = (Denials::default(), Arc::new(History::default()));
        denials.keep(&history);
        let deny = || {
            denials.note(Denied {
                caller: "eve",
                peer: None,
                lock: None,
                what: "acquire".to_owned(),
            });
        };
        (0..1_000).for_each(|_| deny());
        assert_eq!((denials.count(), history.deeds().len()), (1_000, 20));
        advance(Duration::from_millis(200)).await;
        (0..1_000).for_each(|_| deny());
        assert_eq!((denials.count(), history.deeds().len()), (2_000, 21));
        let told = denials.told.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(
            told.untold, 999,
            "those before were told with the last line"
        );
    }
}
