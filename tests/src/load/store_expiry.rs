//! Expiry of leases in the store, converted to the clock of the oracle.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::{client::unary::Client, clock::boottime};

/// Rounding error of the remaining time, which the store rounds down to milliseconds.
const ROUNDING_ERROR: Duration = Duration::from_millis(1);
const READ_INTERVAL: Duration = Duration::from_millis(50);
/// Longest time for which a connection to a running broker may be broken.
const BROKEN_MAX: Duration = Duration::from_secs(10);
/// Maximum number of reads between the end of a lease and the next grant: 200 ms of a broker that
/// serves. A stall of the whole machine delays both the reads and the grant.
const READS_AFTER_END_MAX: usize = 4;

/// Returns the time for which the store keeps a lease after a renewal, `E(ttl)`.
#[must_use]
pub fn store_expiry(ttl: Duration) -> Duration {
    ttl.mul_f64(1.2) + Duration::from_millis(250)
}

/// Result of one read of a lock's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderExpiry {
    pub lease_id: String,
    pub token: i64,
    /// Remaining time in the record.
    pub remaining: Duration,
    /// Lower bound of the expiry, computed from the time at which the read was sent.
    pub earliest: Duration,
    /// Upper bound of the expiry, computed from the time at which the reply arrived.
    pub latest: Duration,
}

/// Results of repeated reads of a lock.
#[derive(Debug, Clone)]
pub struct ExpiryReads {
    /// Distinct expiries of leases on the lock, the latest one last.
    pub expiries: Vec<HolderExpiry>,
    /// Number of reads after the last read that returned the first holder.
    pub reads_after_end: usize,
}

impl ExpiryReads {
    /// Returns the latest expiry that was read.
    #[must_use]
    pub fn last_expiry(&self) -> &HolderExpiry {
        self.expiries.last().expect("it was looked at")
    }

    /// Returns the time from the expiry to a grant.
    #[must_use]
    pub fn delay_of(&self, granted: Duration) -> Duration {
        granted.saturating_sub(self.last_expiry().latest)
    }

    /// Returns true if the lock stayed free for longer than a grant takes.
    #[must_use]
    pub fn has_too_many_reads_after_end(&self) -> bool {
        self.reads_after_end > READS_AFTER_END_MAX
    }
}

/// Reads a lock with one holder from a running broker. Returns `None` if the lock has no holder.
pub async fn read_expiry(client: &Client, at: usize, lock: &str) -> Option<HolderExpiry> {
    let give_up = boottime() + BROKEN_MAX;
    let (sent, state, answered) = loop {
        let sent = boottime();
        let state = client.get_lock_at(at, lock).await;
        // An idle connection breaks if its broker was not scheduled for a second.
        let is_broken = |status: &Status| status.code() == Code::Unavailable;
        if boottime() >= give_up || !state.as_ref().is_err_and(is_broken) {
            break (sent, state, boottime());
        }
        sleep(READ_INTERVAL).await;
    };
    let state = match state {
        Err(status) if status.code() == Code::NotFound => return None,
        state => state.expect("GetLock works"),
    };
    let holder = state.holders.into_iter().next()?;
    let remaining = holder.remaining.expect("a holder has time left");
    let remaining = Duration::try_from(remaining).expect("time left is positive");
    Some(HolderExpiry {
        lease_id: holder.lease_id,
        token: holder.fencing_token,
        remaining,
        earliest: sent + remaining - ROUNDING_ERROR,
        latest: answered + remaining,
    })
}

/// Reads a lock repeatedly until stopped. Reads with the same holder are merged if their bounds of
/// the expiry overlap.
pub async fn watch_expiry(
    client: &Client,
    at: usize,
    lock: &str,
    stop: &CancellationToken,
) -> ExpiryReads {
    let mut seen: Vec<HolderExpiry> = Vec::new();
    let mut after_end = 0;
    while !stop.is_cancelled() {
        let new = read_expiry(client, at, lock).await;
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
            () = sleep(READ_INTERVAL) => {}
            () = stop.cancelled() => {}
        }
    }
    ExpiryReads {
        expiries: seen,
        reads_after_end: after_end,
    }
}

/// Formats the median and the maximum.
#[must_use]
pub fn format_spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let last = times.last().expect("something was measured");
    format!(
        "p50={}ms max={}ms",
        times[times.len() / 2].as_millis(),
        last.as_millis()
    )
}
