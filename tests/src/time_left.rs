//! Until when the store holds a lock for its holder, on the referee's clock.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{client::Client, clock::boottime};

/// The store counts whole milliseconds, rounded down.
const ROUNDED_OFF: Duration = Duration::from_millis(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);

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

/// Looks again and again until stopped; what was different from look to look. Looks that found the
/// same holder with the same end, as far as they can tell, are one.
pub async fn watch(
    client: &Client,
    at: usize,
    lock: &str,
    stop: &CancellationToken,
) -> Vec<TimeLeft> {
    let mut seen: Vec<TimeLeft> = Vec::new();
    while !stop.is_cancelled() {
        if let Some(new) = look(client, at, lock).await {
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
    seen
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
