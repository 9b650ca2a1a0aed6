//! Watching: who wants to be told of changes, and how the scripts tell them.
//!
//! A broker whose clients watch says so on a channel that all brokers hear, again and again. Each then
//! has its scripts tell what they change on the same channel. While nobody watches that costs nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::owner;
use crate::{
    lock::{LeaseId, Mode},
    store::{Change, ChangeKind, WATCHED_MS},
};

/// Between the key of a lock and its changes.
const MARK: &[u8] = b"\n!\n";
/// Fields of a change; the last may hold anything.
const FIELDS: usize = 8;

/// The channel that all brokers hear. Its own name on it says that clients of a broker watch.
pub(in crate::store) fn channel(key_prefix: &str) -> String {
    format!("{key_prefix}watch")
}

/// Until when somebody watches.
pub(super) struct Watching {
    start: Instant,
    /// Milliseconds since then; 0: nobody ever did.
    until_ms: AtomicU64,
}

impl Watching {
    pub(super) fn nobody() -> Self {
        Self {
            start: Instant::now(),
            until_ms: AtomicU64::new(0),
        }
    }

    /// Somebody has said so.
    pub(super) fn heard(&self) {
        let until_ms = self.now_ms() + WATCHED_MS;
        self.until_ms.fetch_max(until_ms, Ordering::Relaxed);
    }

    pub(super) fn is_on(&self) -> bool {
        let until_ms = self.until_ms.load(Ordering::Relaxed);
        until_ms > 0 && self.now_ms() < until_ms
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Whether changes follow the key of a lock.
pub(super) fn is_changes(after_key: &[u8]) -> bool {
    after_key.starts_with(MARK)
}

/// Reads what follows the key of a lock: each change after its length. `None`: these are no changes.
pub(super) fn read(after_key: &[u8]) -> Option<Vec<Change>> {
    let mut rest = after_key.strip_prefix(MARK)?;
    let mut changes = Vec::new();
    while !rest.is_empty() {
        let colon = rest.iter().position(|&byte| byte == b':')?;
        let length: usize = std::str::from_utf8(&rest[..colon]).ok()?.parse().ok()?;
        let text = rest.get(colon + 1..)?.get(..length)?;
        changes.push(change(text)?);
        rest = &rest[colon + 1 + length..];
    }
    Some(changes)
}

/// Reads `kind|lease|token|since|remaining|weight|limit|owner`.
fn change(text: &[u8]) -> Option<Change> {
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
        owner: owner::decode(fields.next()?)?,
    })
}
