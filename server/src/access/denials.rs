//! What callers are denied: for the auditors in the log and for the operators' page, at most at a rate, and counted.
//! Callers without a good credential have a rate of their own, so that they cannot hide what known callers are denied.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use crate::{
    history::{Deed, DeedKind, History},
    lock::LockKey,
    pace::Pace,
};

/// The rate of log lines about known callers, and of those about all others.
const LINES: Pace = Pace::per_second(5, 20);
/// The first denial of a known caller within this time is logged whatever the rate.
const FIRST_WITHIN: Duration = Duration::from_secs(60);
/// Known callers that are remembered for it. Those beyond keep to the rate.
const CALLERS_MAX: usize = 1_024;

/// The denials of a broker.
#[derive(Debug)]
pub struct Denials {
    count: AtomicU64,
    logged: Mutex<Logged>,
    history: OnceLock<Arc<History>>,
}

#[derive(Debug)]
struct Logged {
    known: Lines,
    unknown: Lines,
    /// When a denial of each known caller was last logged as the first one of a while.
    first: HashMap<Box<str>, Instant>,
}

#[derive(Debug)]
struct Lines {
    /// From when on lines could keep their rate.
    due: Instant,
    /// Denials since the last line.
    untold: u64,
}

/// A denial.
#[derive(Debug, Clone)]
pub struct Denied<'a> {
    /// The name of the caller; `None`: it has shown no good credential.
    pub caller: Option<&'a str>,
    /// The address of the caller.
    pub peer: Option<IpAddr>,
    /// The lock; `None`: any.
    pub lock: Option<&'a LockKey>,
    /// What was denied.
    pub what: String,
}

impl Default for Denials {
    fn default() -> Self {
        let lines = || Lines {
            due: Instant::now(),
            untold: 0,
        };
        Self {
            count: AtomicU64::new(0),
            logged: Mutex::new(Logged {
                known: lines(),
                unknown: lines(),
                first: HashMap::new(),
            }),
            history: OnceLock::new(),
        }
    }
}

impl Denials {
    /// Has denials that are logged kept in `history`, too.
    pub fn keep(&self, history: &Arc<History>) {
        let _ = self.history.set(Arc::clone(history));
    }

    /// Returns the number of denials.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts a denial, and logs it if the rate allows it.
    pub fn note(&self, denied: Denied<'_>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let Some(untold) = self.log(denied.caller) else {
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
            caller = caller.unwrap_or_default(),
            peer = peer.map(tracing::field::display),
            lock = lock.map(ToString::to_string),
            what,
            untold,
            "denied"
        );
        if let Some(history) = self.history.get() {
            history.done(Deed {
                at: SystemTime::now(),
                kind: match caller {
                    Some(_) => DeedKind::Denied,
                    None => DeedKind::Unauthenticated,
                },
                caller: caller.unwrap_or_default().to_owned(),
                peer: peer.map(|peer| peer.to_string()).unwrap_or_default(),
                lock: lock.cloned(),
                lease_id: None,
                why: what,
            });
        }
    }

    /// Returns the number of denials since the last line about such callers; `None`: this one is not logged either.
    fn log(&self, caller: Option<&str>) -> Option<u64> {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        match caller {
            None => logged.unknown.next(),
            Some(caller) if logged.is_first(caller) => {
                Some(std::mem::take(&mut logged.known.untold))
            }
            Some(_) => logged.known.next(),
        }
    }
}

impl Logged {
    /// Returns whether no denial of the caller was logged lately, and remembers that one is now.
    fn is_first(&mut self, caller: &str) -> bool {
        let is_recent = |logged: &Instant| logged.elapsed() < FIRST_WITHIN;
        if let Some(logged) = self.first.get_mut(caller) {
            let is_first = !is_recent(logged);
            if is_first {
                *logged = Instant::now();
            }
            return is_first;
        }
        if self.first.len() >= CALLERS_MAX {
            self.first.retain(|_, logged| is_recent(logged));
        }
        let has_room = self.first.len() < CALLERS_MAX;
        if has_room {
            self.first.insert(caller.into(), Instant::now());
        }
        has_room
    }
}

impl Lines {
    fn next(&mut self) -> Option<u64> {
        if LINES.take(&mut self.due).is_err() {
            self.untold += 1;
            return None;
        }
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// The burst of a rate.
    const BURST: usize = 20;

    fn denials() -> (Denials, Arc<History>) {
        let (denials, history) = (Denials::default(), Arc::new(History::default()));
        denials.keep(&history);
        (denials, history)
    }

    fn deny(denials: &Denials, caller: Option<&str>) {
        denials.note(Denied {
            caller,
            peer: None,
            lock: None,
            what: "acquire".to_owned(),
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_counted_and_logged_at_the_rate() {
        let (denials, history) = denials();
        (0..1_000).for_each(|_| deny(&denials, None));
        assert_eq!((denials.count(), history.deeds().len()), (1_000, BURST));
        advance(Duration::from_millis(200)).await;
        (0..1_000).for_each(|_| deny(&denials, None));
        assert_eq!((denials.count(), history.deeds().len()), (2_000, BURST + 1));
        let logged = denials.logged.lock().expect("no panic");
        assert_eq!(
            logged.unknown.untold, 999,
            "those before were told with the last line"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_callers_do_not_hide_known_ones() {
        let (denials, history) = denials();
        let of_eve = || {
            let deeds = history.deeds();
            deeds.iter().filter(|deed| deed.caller == "eve").count()
        };
        for _ in 0..BURST {
            (0..5_000).for_each(|_| deny(&denials, None));
            deny(&denials, Some("eve"));
        }
        assert_eq!(of_eve(), BURST);
        // They do not drive them out of the list either.
        for _ in 0..10_000 {
            advance(Duration::from_millis(200)).await;
            deny(&denials, None);
        }
        assert_eq!(of_eve(), BURST);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_denial_of_a_caller_in_a_minute_is_logged() {
        let (denials, history) = denials();
        let is_logged = |caller: &str| {
            let before = history.deeds().len();
            deny(&denials, Some(caller));
            history.deeds().len() > before
        };
        (0..1_000).for_each(|_| deny(&denials, Some("loud")));
        for name in 0..100 {
            let caller = format!("caller {name}");
            assert!(is_logged(&caller), "{caller}");
            assert!(
                !is_logged(&caller),
                "{caller}: the second one keeps to the rate"
            );
        }
        advance(FIRST_WITHIN).await;
        assert!(is_logged("caller 7"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_callers_that_are_remembered_are_bounded() {
        let (denials, _history) = denials();
        let callers = || denials.logged.lock().expect("no panic").first.len();
        for name in 0..CALLERS_MAX * 3 {
            deny(&denials, Some(&name.to_string()));
        }
        assert_eq!(callers(), CALLERS_MAX);
        advance(FIRST_WITHIN).await;
        deny(&denials, Some("another"));
        assert_eq!(callers(), 1);
    }
}
