//! Rate-limited log of denied requests, shared with the operator console; all denials are counted.
//! Unauthenticated callers have a rate limit of their own, so that their denials cannot hide those
//! of authenticated callers.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    lock::LockKey,
    rate_limit::RateLimit,
    recent_events::{AuditEvent, AuditEventKind, RecentEvents},
};

/// Rate limit for log lines about authenticated callers, and separately for those about
/// unauthenticated ones.
const LOG_RATE: RateLimit = RateLimit::per_second(5, 20);
/// Period in which the first denial of an authenticated caller is logged regardless
/// of the rate limit.
const FIRST_DENIAL_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of callers tracked for [`FIRST_DENIAL_WINDOW`]. Denials of further callers are
/// subject to the rate limit.
const CALLERS_MAX: usize = 1_024;

/// Counts and logs the denied requests of a broker.
#[derive(Debug)]
pub struct DenialLog {
    count: AtomicU64,
    logged: Mutex<DenialLogState>,
    history: OnceLock<Arc<RecentEvents>>,
}

#[derive(Debug)]
struct DenialLogState {
    authenticated: LogBudget,
    unauthenticated: LogBudget,
    /// Time at which the first denial of each caller within [`FIRST_DENIAL_WINDOW`] was logged.
    first_logged_at: HashMap<Box<str>, Instant>,
}

#[derive(Debug)]
struct LogBudget {
    /// State of the rate limit: the time from which further lines conform to the rate.
    arrival_time: Instant,
    /// Number of denials that were not logged since the last line.
    suppressed: u64,
}

/// A denied request.
#[derive(Debug, Clone)]
pub struct Denial<'a> {
    /// Name of the caller; `None` if the caller could not be authenticated.
    pub caller: Option<&'a str>,
    pub peer: Option<IpAddr>,
    /// The lock; `None` if the request named no lock.
    pub lock: Option<&'a LockKey>,
    /// The denied operation.
    pub operation: String,
}

impl Default for DenialLog {
    fn default() -> Self {
        let log_budget = || LogBudget {
            arrival_time: Instant::now(),
            suppressed: 0,
        };
        Self {
            count: AtomicU64::new(0),
            logged: Mutex::new(DenialLogState {
                authenticated: log_budget(),
                unauthenticated: log_budget(),
                first_logged_at: HashMap::new(),
            }),
            history: OnceLock::new(),
        }
    }
}

impl DenialLog {
    /// Also records the logged denials in `history`.
    pub fn attach_history(&self, history: &Arc<RecentEvents>) {
        let _ = self.history.set(Arc::clone(history));
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts a denial, and logs it if the rate limit allows it.
    pub fn record(&self, denial: Denial<'_>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let Some(suppressed) = self.log(denial.caller) else {
            return;
        };
        let Denial {
            caller,
            peer,
            lock,
            operation: detail,
        } = denial;
        tracing::info!(
            target: "audit",
            caller = caller.unwrap_or_default(),
            peer = peer.map(tracing::field::display),
            lock = lock.map(ToString::to_string),
            what = detail,
            untold = suppressed,
            "denied"
        );
        if let Some(history) = self.history.get() {
            history.record_audit(AuditEvent {
                at: SystemTime::now(),
                kind: match caller {
                    Some(_) => AuditEventKind::Denied,
                    None => AuditEventKind::Unauthenticated,
                },
                caller: caller.unwrap_or_default().to_owned(),
                peer: peer.map(|peer| peer.to_string()).unwrap_or_default(),
                lock: lock.cloned(),
                lease_id: None,
                detail,
            });
        }
    }

    /// Returns the number of denials not logged since the last line of the same rate limit. `None`
    /// if this denial is not logged either.
    fn log(&self, caller: Option<&str>) -> Option<u64> {
        let mut logged = self.logged.lock();
        match caller {
            None => logged.unauthenticated.next(),
            Some(caller) if logged.is_first(caller) => {
                Some(std::mem::take(&mut logged.authenticated.suppressed))
            }
            Some(_) => logged.authenticated.next(),
        }
    }
}

impl DenialLogState {
    /// Returns true if no denial of the caller was logged within [`FIRST_DENIAL_WINDOW`], and
    /// records that one is logged now.
    fn is_first(&mut self, caller: &str) -> bool {
        let is_recent = |logged: &Instant| logged.elapsed() < FIRST_DENIAL_WINDOW;
        if let Some(logged) = self.first_logged_at.get_mut(caller) {
            let is_first = !is_recent(logged);
            if is_first {
                *logged = Instant::now();
            }
            return is_first;
        }
        if self.first_logged_at.len() >= CALLERS_MAX {
            self.first_logged_at.retain(|_, logged| is_recent(logged));
        }
        let has_room = self.first_logged_at.len() < CALLERS_MAX;
        if has_room {
            self.first_logged_at.insert(caller.into(), Instant::now());
        }
        has_room
    }
}

impl LogBudget {
    fn next(&mut self) -> Option<u64> {
        if LOG_RATE.check(&mut self.arrival_time).is_err() {
            self.suppressed += 1;
            return None;
        }
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// Burst of the rate limit.
    const BURST: usize = 20;

    fn denials() -> (DenialLog, Arc<RecentEvents>) {
        let (denials, history) = (DenialLog::default(), Arc::new(RecentEvents::default()));
        denials.attach_history(&history);
        (denials, history)
    }

    fn deny(denials: &DenialLog, caller: Option<&str>) {
        denials.record(Denial {
            caller,
            peer: None,
            lock: None,
            operation: "acquire".to_owned(),
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_counted_and_logged_at_the_rate() {
        let (denials, history) = denials();
        (0..1_000).for_each(|_| deny(&denials, None));
        assert_eq!(
            (denials.count(), history.audit_events().len()),
            (1_000, BURST)
        );
        advance(Duration::from_millis(200)).await;
        (0..1_000).for_each(|_| deny(&denials, None));
        assert_eq!(
            (denials.count(), history.audit_events().len()),
            (2_000, BURST + 1)
        );
        let logged = denials.logged.lock();
        assert_eq!(
            logged.unauthenticated.suppressed, 999,
            "earlier ones were reported with the last line"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn unauthenticated_denials_do_not_hide_those_of_callers() {
        let (denials, history) = denials();
        let denials_of_eve = || {
            let events = history.audit_events();
            events.iter().filter(|event| event.caller == "eve").count()
        };
        for _ in 0..BURST {
            (0..5_000).for_each(|_| deny(&denials, None));
            deny(&denials, Some("eve"));
        }
        assert_eq!(denials_of_eve(), BURST);
        // Denials of unauthenticated callers do not evict those of authenticated ones.
        for _ in 0..10_000 {
            advance(Duration::from_millis(200)).await;
            deny(&denials, None);
        }
        assert_eq!(denials_of_eve(), BURST);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_denial_of_a_caller_in_a_minute_is_logged() {
        let (denials, history) = denials();
        let is_logged = |caller: &str| {
            let before = history.audit_events().len();
            deny(&denials, Some(caller));
            history.audit_events().len() > before
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
        advance(FIRST_DENIAL_WINDOW).await;
        assert!(is_logged("caller 7"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_callers_that_are_remembered_are_bounded() {
        let (denials, _history) = denials();
        let callers = || denials.logged.lock().first_logged_at.len();
        for name in 0..CALLERS_MAX * 3 {
            deny(&denials, Some(&name.to_string()));
        }
        assert_eq!(callers(), CALLERS_MAX);
        advance(FIRST_DENIAL_WINDOW).await;
        deny(&denials, Some("another"));
        assert_eq!(callers(), 1);
    }
}
