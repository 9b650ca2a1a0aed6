//! Until when the store holds a lock for its holder, on the referee's clock.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{client::Client, clock::boottime};

/// The store counts whole milliseconds, rounded down.
const ROUNDED_OFF: Duration = Duration::from_millis(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Looks that may be answered between the end of a lease and the next grant: 200 ms of a broker that serves. A stall of
/// the whole machine delays both.
const LOOKS_AFTER_END_MAX: usize = 4;

/// How long the store holds a lease after a renewal.
#[must_use]
pub fn expiry(ttl: Duration) -> Duration {
    ttl.mul_f64(1.2) + Duration::from_millis(250)
}

/// What the record said when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeLeft {
    /// Whose lease.
    pub lease_id: String,
    /// Its fencing token.
    pub token: i64,
    /// What was left of its time.
    pub remaining: Duration,
    /// The lock can't expire before this: the look came no earlier than it was sent.
    pub earliest: Duration,
    /// Nor after this: the look came no later than its answer.
    pub latest: Duration,
}

/// What looks at a lock saw, until they were stopped.
#[derive(Debug, Clone)]
pub struct Looks {
    /// Different ends of its leases, the last one last.
    pub ends: Vec<TimeLeft>,
    /// Looks since the last one that saw the first holder.
    pub after_end: usize,
}

impl Looks {
    /// The last end that was seen.
    #[must_use]
    pub fn end(&self) -> &TimeLeft {
        self.ends.last().expect("it was looked at")
    }

    /// How long after the end a grant came.
    #[must_use]
    pub fn late(&self, granted: Duration) -> Duration {
        granted.saturating_sub(self.end().latest)
    }

    /// Whether the lock stayed free for longer than a grant takes.
    #[must_use]
    pub fn are_too_many(&self) -> bool {
        self.after_end > LOOKS_AFTER_END_MAX
    }
}

/// Looks at a lock with one holder. `None`: nobody is known to hold it.
pub async fn look(client: &Client, at: usize, lock: &str) -> Option<TimeLeft> {
    let sent = boottime();
    let state = match client.get_lock_at(at, lock).await {
        Err(status) if status.code() == Code::NotFound => return None,
        state => state.expect("GetLock works"),
    };
    let answered = boottime();
    let holder = state.holders.into_iter().next()?;
    let remaining = holder.remaining.expect("a holder has time left");
    let remaining = Duration::try_from(remaining).expect("time left is positive");
    Some(TimeLeft {
        lease_id: holder.lease_id,
        token: holder.fencing_token,
        remaining,
        earliest: sent + remaining - ROUNDED_OFF,
        latest: answered + remaining,
    })
}

/// Looks again and again until stopped. Looks that found the same holder with the same end, as far as they can tell, are
/// one.
pub async fn watch(client: &Client, at: usize, lock: &str, stop: &CancellationToken) -> Looks {
    let mut seen: Vec<TimeLeft> = Vec::new();
    let mut after_end = 0;
    while !stop.is_cancelled() {
        let new = look(client, at, lock).await;
        let first = seen.first().or(new.as_ref()).map(|first| &first.lease_id);
        after_end = match &new {
            Some(new) if first == Some(&new.lease_id) => 0,
            _ => after_end + 1,
        };
        if let Some(new) = new {
            match seen.last_mut().filter(|last| last.lease_id == new.lease_id) {
                Some(last) if new.earliest <= last.latest && last.earliest <= new.latest => {
                    last.earliest = last.earliest.max(new.earliest);
                    last.latest = last.latest.min(new.latest);
                }
                _ => seen.push(new),
            }
        }
        tokio::select! {
            () = sleep(LOOK_EVERY) => {}
            () = stop.cancelled() => {}
        }
    }
    Looks {
        ends: seen,
        after_end,
    }
}

/// The middle one, and the largest.
#[must_use]
pub fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let last = times.last().expect("something was measured");
    format!(
        "p50={}ms max={}ms",
        times[times.len() / 2].as_millis(),
        last.as_millis()
    )
}
