//! What brokers hear of each other's commands, by PUBLISH.

use std::sync::{Arc, OnceLock};

use super::{
    answers,
    changes::{self, Watching},
    supervisor::NodeEvent,
};
use crate::{
    lock::{BrokerId, FencingToken, LeaseId, LockKey, RequestHash},
    store::{Event, HandOff, Listener, Moved, Revocation},
};

/// Turns what a node tells into events.
pub(super) fn tell(
    listener: Arc<OnceLock<Listener>>,
    key_prefix: String,
    broker: BrokerId,
    watching: Arc<Watching>,
) -> Box<dyn Fn(NodeEvent) + Send + Sync> {
    let call = changes::channel(&key_prefix);
    Box::new(move |event| {
        if matches!(&event, NodeEvent::Message(payload) if payload == call.as_bytes()) {
            return watching.heard();
        }
        let Some(listener) = listener.get() else {
            return;
        };
        match event {
            NodeEvent::Ready => listener(Event::Resync),
            NodeEvent::Replaced => listener(Event::Replaced),
            NodeEvent::Broken(assumption) => listener(Event::Broken(assumption)),
            NodeEvent::Message(payload) => {
                let told = told(&payload, &key_prefix, broker).into_iter();
                told.flatten().for_each(&**listener);
            }
        }
    })
}

/// Reads `key \n request \n token \n request \n token ...`, as the scripts publish hand-offs. The key
/// alone: places in line were taken away. `key \n lease \n attachment`: the lease has left that stream.
/// `key \n lease \n !attachment!grace_ms \n reason`: it was revoked. `key \n ! \n changes`: somebody watches.
pub(in crate::store) fn told(
    payload: &[u8],
    key_prefix: &str,
    broker: BrokerId,
) -> Option<Vec<Event>> {
    let key = std::str::from_utf8(key_of(payload)).ok()?;
    let lock = LockKey::decode(key.strip_prefix(key_prefix)?)?;
    if let Some(changes) = changes::read(&payload[key.len()..]) {
        return Some(vec![Event::Changed(lock, changes)]);
    }
    let Some((_, rest)) = std::str::from_utf8(payload).ok()?.split_once('\n') else {
        return Some(vec![Event::Rejoin(lock)]);
    };
    if let Some(revocation) = revocation(rest) {
        return Some(vec![Event::Revoked(lock, revocation)]);
    }
    let mut lines = rest.split('\n');
    let mut events = Vec::new();
    while let Some(whose) = lines.next() {
        let what = lines.next()?;
        events.push(match answers::attachment(what) {
            Some(from) => {
                let lease_id = LeaseId::parse(whose)?;
                Event::Moved(lock.clone(), Moved { lease_id, from })
            }
            None => {
                let hand_off = HandOff {
                    broker,
                    request: RequestHash::parse(whose)?,
                    fencing_token: FencingToken::new(what.parse().ok()?)?,
                    provisional: true,
                };
                Event::HandOff(lock.clone(), hand_off, None)
            }
        });
    }
    Some(events)
}

/// The key of the lock that a message is about: its first line.
pub(super) fn key_of(payload: &[u8]) -> &[u8] {
    let end = payload.iter().position(|&byte| byte == b'\n');
    &payload[..end.unwrap_or(payload.len())]
}

/// Reads `lease \n !attachment!grace_ms \n reason`.
fn revocation(text: &str) -> Option<Revocation> {
    let (lease, rest) = text.split_once("\n!")?;
    let (on, rest) = rest.split_once('!')?;
    let (grace_ms, reason) = rest.split_once('\n')?;
    Some(Revocation {
        lease_id: LeaseId::parse(lease)?,
        on: answers::attachment(on)?,
        grace_ms: grace_ms.parse().ok()?,
        reason: reason.to_owned(),
    })
}
