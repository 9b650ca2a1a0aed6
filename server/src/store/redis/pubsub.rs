//! Messages that brokers publish to each other through the scripts, and change notifications for
//! watch streams.
//!
//! A broker whose clients watch locks publishes its interest repeatedly, on a channel to which all
//! brokers subscribe. The scripts of each broker then publish their changes on the same channel.
//! Without watching clients that costs nothing.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use tokio::time::Instant;

use super::{owner_codec, reply, supervisor::NodeEvent};
use crate::{
    lock::{BrokerId, FencingToken, LeaseId, LockKey, Mode, RequestHash},
    store::{Change, ChangeKind, Event, HandOff, Listener, MovedLease, Revocation, WATCHED_MS},
    time::millis,
};

/// Separator between the key of a lock and its changes.
const CHANGES_MARKER: &[u8] = b"\n!\n";
/// Number of fields of a change. The last one may contain any character.
const FIELDS: usize = 8;

/// Time until which changes are published for watch streams.
pub(super) struct WatchInterest {
    started_at: Instant,
    /// End of that time in milliseconds from `started_at`. At first it is 0, which has passed.
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
        self.now_ms() < self.until_ms.load(Ordering::Relaxed)
    }

    fn now_ms(&self) -> u64 {
        millis(self.started_at.elapsed())
    }
}

/// Returns the channel to which all brokers subscribe. The channel's own name as a message on it
/// announces that clients of a broker watch locks.
pub(in crate::store) fn shared_channel(key_prefix: &str) -> String {
    format!("{key_prefix}watch")
}

/// Returns a handler that converts what a node reports into store events.
pub(super) fn event_handler(
    listener: Arc<OnceLock<Listener>>,
    key_prefix: String,
    broker: BrokerId,
    watching: Arc<WatchInterest>,
) -> Box<dyn Fn(NodeEvent) + Send + Sync> {
    let shared_channel = shared_channel(&key_prefix);
    Box::new(move |event| {
        if matches!(&event, NodeEvent::Message(payload) if payload == shared_channel.as_bytes()) {
            return watching.refresh();
        }
        let Some(listener) = listener.get() else {
            return;
        };
        match event {
            NodeEvent::Ready => listener(Event::Resync),
            NodeEvent::Replaced => listener(Event::ServerReplaced),
            NodeEvent::AssumptionViolated(assumption) => {
                listener(Event::AssumptionViolated(assumption))
            }
            NodeEvent::Message(payload) => {
                let events = decode_message(&payload, &key_prefix, broker).into_iter();
                events.flatten().for_each(&**listener);
            }
        }
    })
}

/// Parses a message of a script:
///
/// * `key \n request \n token \n request \n token ...`: hand-offs.
/// * `key` alone: waiters of the broker must send acquire again.
/// * `key \n lease \n attachment`: the lease has left that stream.
/// * `key \n lease \n !attachment!grace_ms \n reason`: the lease was revoked.
/// * `key \n ! \n changes`: changes of the lock, for watch streams.
pub(in crate::store) fn decode_message(
    payload: &[u8],
    key_prefix: &str,
    broker: BrokerId,
) -> Option<Vec<Event>> {
    let key = std::str::from_utf8(lock_key_of(payload)).ok()?;
    let lock = LockKey::decode(key.strip_prefix(key_prefix)?)?;
    if let Some(changes) = parse_changes(&payload[key.len()..]) {
        return Some(vec![Event::Changed(lock, changes)]);
    }
    let Some((_, rest)) = std::str::from_utf8(payload).ok()?.split_once('\n') else {
        return Some(vec![Event::Rejoin(lock)]);
    };
    if let Some(revocation) = parse_revocation(rest) {
        return Some(vec![Event::Revoked(lock, revocation)]);
    }
    let mut lines = rest.split('\n');
    let mut events = Vec::new();
    while let Some(id) = lines.next() {
        let value = lines.next()?;
        events.push(match reply::attachment(value) {
            Some(from) => {
                let lease_id = LeaseId::parse(id)?;
                Event::Moved(lock.clone(), MovedLease { lease_id, from })
            }
            None => {
                let hand_off = HandOff {
                    broker,
                    request: RequestHash::parse(id)?,
                    fencing_token: FencingToken::new(value.parse().ok()?)?,
                    limit: lines.next()?.parse().ok()?,
                    is_provisional: true,
                };
                Event::HandOff(lock.clone(), hand_off, None)
            }
        });
    }
    Some(events)
}

/// Returns the key of the lock that a message is about, which is its first line.
pub(super) fn lock_key_of(payload: &[u8]) -> &[u8] {
    let end = payload.iter().position(|&byte| byte == b'\n');
    &payload[..end.unwrap_or(payload.len())]
}

/// Parses `lease \n !attachment!grace_ms \n reason`.
fn parse_revocation(text: &str) -> Option<Revocation> {
    let (lease, rest) = text.split_once("\n!")?;
    let (on, rest) = rest.split_once('!')?;
    let (grace_ms, reason) = rest.split_once('\n')?;
    Some(Revocation {
        lease_id: LeaseId::parse(lease)?,
        attachment: reply::attachment(on)?,
        grace_ms: grace_ms.parse().ok()?,
        reason: reason.to_owned(),
    })
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
        "CLOSED" => ChangeKind::Closed,
        "OPENED" => ChangeKind::Opened,
        _ => return None,
    };
    let lease_id = next()?;
    Some(Change {
        kind,
        lease_id: match kind {
            ChangeKind::Queued
            | ChangeKind::Abandoned
            | ChangeKind::Closed
            | ChangeKind::Opened => None,
            ChangeKind::Acquired
            | ChangeKind::Released
            | ChangeKind::Expired
            | ChangeKind::Revoked => Some(LeaseId::parse(lease_id)?),
        },
        fencing_token: next()?.parse().ok()?,
        since_ms: next()?.parse().ok()?,
        remaining_ms: next()?.parse().ok()?,
        mode: Mode::from_stored(next()?.parse().ok()?, next()?.parse().ok()?),
        owner: owner_codec::decode(fields.next()?)?,
    })
}
