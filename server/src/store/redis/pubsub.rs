//! Messages that brokers publish to each other through the scripts.

use std::sync::{Arc, OnceLock};

use super::{
    reply,
    supervisor::NodeEvent,
    watch_interest::{self, WatchInterest},
};
use crate::{
    lock::{BrokerId, FencingToken, LeaseId, LockKey, RequestHash},
    store::{Event, HandOff, Listener, MovedLease, Revocation},
};

/// Returns a handler that converts what a node reports into store events.
pub(super) fn event_handler(
    listener: Arc<OnceLock<Listener>>,
    key_prefix: String,
    broker: BrokerId,
    watching: Arc<WatchInterest>,
) -> Box<dyn Fn(NodeEvent) + Send + Sync> {
    let call = watch_interest::channel(&key_prefix);
    Box::new(move |event| {
        if matches!(&event, NodeEvent::Message(payload) if payload == call.as_bytes()) {
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
    if let Some(changes) = watch_interest::parse_changes(&payload[key.len()..]) {
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
