//! Change notifications for watch streams.
//!
//! A broker whose clients watch locks publishes its interest repeatedly, on a channel to which all
//! brokers subscribe. The scripts of each broker then publish their changes on the same channel.
//! Without watching clients that costs nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::owner_codec;
use crate::{
    lock::{LeaseId, Mode},
    store::{Change, ChangeKind, WATCHED_MS},
    time::millis,
};

/// Separator between the key of a lock and its changes.
const CHANGES_MARKER: &[u8] = b"\n!\n";
/// Number of fields of a change. The last one may contain any character.
const FIELDS: usize = 8;

/// Returns the channel to which all brokers subscribe. The channel's own name as a message on it
/// announces that clients of a broker watch locks.
pub(in crate::store) fn channel(key_prefix: &str) -> String {
    format!("{key_prefix}watch")
}

/// Time until which changes are published.
pub(super) struct WatchInterest {
    started_at: Instant,
    /// Milliseconds from `start`, or 0 if no broker has announced interest yet.
    until_ms: AtomicU64,
}

impl WatchInterest {
    pub(super) fn none() -> Self {
        Self {
            started_at: Instant::now(),
            until_ms: AtomicU64::new(0),
        }
    }

    /// Extends the time after an announcement of interest.
    pub(super) fn refresh(&self) {
        let until_ms = self.now_ms() + WATCHED_MS;
        self.until_ms.fetch_max(until_ms, Ordering::Relaxed);
    }

    pub(super) fn is_active(&self) -> bool {
        let until_ms = self.until_ms.load(Ordering::Relaxed);
        until_ms > 0 && self.now_ms() < until_ms
    }

    fn now_ms(&self) -> u64 {
        millis(self.started_at.elapsed())
    }
}

/// Returns true if `after_key`, the rest of a message after the key, contains changes.
pub(super) fn is_changes(after_key: &[u8]) -> bool {
    after_key.starts_with(CHANGES_MARKER)
}

/// Parses the rest of a message after the key: each change is preceded by its length. Returns
/// `None` if these are not changes.
pub(super) fn parse_changes(after_key: &[u8]) -> Option<Vec<Change>> {
    let mut rest = after_key.strip_prefix(CHANGES_MARKER)?;
    let mut changes = Vec::new();
    while !rest.is_empty() {
        let colon = rest.iter().position(|&byte| byte == b':')?;
        let length: usize = std::str::from_utf8(&rest[..colon]).ok()?.parse().ok()?;
        let text = rest.get(colon + 1..)?.get(..length)?;
        changes.push(parse_change(text)?);
        rest = &rest[colon + 1 + length..];
    }
    Some(changes)
}

/// Parses `kind|lease|token|since|remaining|weight|limit|owner`.
fn parse_change(text: &[u8]) -> Option<Change> {
    let mut fields = text.splitn(FIELDS, |&byte| byte == b'|');
    let mut next = || std::str::from_utf8(fields.next()?).ok();
    let kind = match next()? {
        "ACQUIRED" => ChangeKind::Acquired,
        "RELEASED" => ChangeKind::Released,
        "EXPIRED" => ChangeKind::Expired,
        "REVOKED" => ChangeKind::Revoked,
        "QUEUED" => ChangeKind::Queued,
        "ABANDONED" => ChangeKind::Abandoned,
        _ => return None,
    };
    let waits = matches!(kind, ChangeKind::Queued | ChangeKind::Abandoned);
    let lease_id = LeaseId::parse(next()?)?;
    Some(Change {
        kind,
        lease_id: (!waits).then_some(lease_id),
        fencing_token: next()?.parse().ok()?,
        since_ms: next()?.parse().ok()?,
        remaining_ms: next()?.parse().ok()?,
        mode: Mode::from_stored(next()?.parse().ok()?, next()?.parse().ok()?),
        owner: owner_codec::decode(fields.next()?)?,
    })
}
