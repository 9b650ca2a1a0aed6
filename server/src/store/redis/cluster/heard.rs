//! Which of the messages that the nodes of a cluster hear are passed on, so that each is told once.
//!
//! With sharded channels only the node of the lock's master hears of it, and tells all that it hears;
//! what is told to those who watch takes the other way.
//! PUBLISH at one master reaches all, so every node hears every message, and that of the master which
//! has the lock tells it: nobody else is needed to hear of a lock. The others drop it, unless it is
//! doubtful who has the lock: then all tell it, since a message that comes twice does no harm.
//!
//! * That node ends with a message under way: the next one tells [`NodeEvent::Ready`], at which every
//!   lock with waiters is touched. Until it does the others tell what they hear of its locks.
//! * The slot is given to another master with a message under way: the old one's node may read it when
//!   the map names the new one, and the new one's may have read it before.
//! * The slot has another master of which the map does not know: the one that it names hears what that
//!   one publishes. If it cannot, its node ends, or the map is corrected, and the node on a server that
//!   has just become a master is new and tells so.
//!
//! What is lost nevertheless is found by the touch that each line gets every second. Nothing is granted
//! in a slot so soon after it has moved.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{Router, slot::slot_of_key};
use crate::store::redis::{
    changes::is_changes, place::Address, supervisor::NodeEvent, told::key_of,
};

/// How long a message may be under way from the former master of a slot: longer than it takes until
/// every line was touched at the new one.
const DOUBTED: Duration = Duration::from_secs(2);

impl Router {
    /// Passes on what the node on this server tells.
    pub(super) fn heard(&self, from: &Address, event: NodeEvent) {
        let is_told = match &event {
            NodeEvent::Ready | NodeEvent::Replaced | NodeEvent::Broken(_) => true,
            NodeEvent::Message(payload) => {
                let key = key_of(payload);
                let is_sharded = self.config.sharded_pubsub && !is_changes(&payload[key.len()..]);
                is_sharded || self.is_told_by(from, slot_of_key(payload.slice_ref(key)))
            }
        };
        if is_told {
            (self.tell)(event);
        }
    }

    /// Slots are being given to other masters.
    pub(super) fn slots_change(&self) {
        let mut changed_at = self
            .changed_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *changed_at = Some(Instant::now());
    }

    fn is_told_by(&self, from: &Address, slot: u16) -> bool {
        let map = Arc::clone(&self.map.borrow());
        match map.master(slot) {
            Some(master) if master != from => !self.serves(master) || self.is_doubtful(),
            Some(_) | None => true,
        }
    }

    fn serves(&self, master: &Address) -> bool {
        let seats = self.seats();
        let seat = seats.get(master);
        seat.is_some_and(|seat| seat.supervisor.present().is_some())
    }

    fn is_doubtful(&self) -> bool {
        let changed_at = self.changed_at.lock();
        let changed_at = *changed_at.unwrap_or_else(PoisonError::into_inner);
        changed_at.is_some_and(|at| at.elapsed() < DOUBTED)
    }
}
