//! Deduplication of the messages that the nodes of a cluster receive.
//!
//! With sharded channels only the node of the lock's master receives a message, and all messages
//! are forwarded. Messages for watch streams are published like those without sharded channels.
//!
//! PUBLISH on one master reaches all masters, so every node receives every message. Only the node
//! of the master that has the lock forwards it; the others drop it. While slot ownership is
//! uncertain all nodes forward it, because a duplicate message is harmless. A message can be lost
//! or duplicated in these cases:
//!
//! * The node of the master closes while a message is in flight. The next node reports
//!   [`NodeEvent::Ready`], upon which every lock with waiters is touched. Until then the other
//!   nodes forward the messages about its locks.
//! * The slot is assigned to another master while a message is in flight. The node of the former
//!   master may receive the message when the map already names the new master, and the node of the
//!   new master may have received it before.
//! * The slot has another master than in the map. The master in the map receives what that other
//!   master publishes. If it cannot, its node closes or the map is corrected. A server that has
//!   just become a master has a new node, which reports [`NodeEvent::Ready`].
//!
//! If a message is lost nevertheless, the touch that each queue receives every second finds what it
//! reported. Nothing is granted in a slot within that time after the slot has moved.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Router, slot::slot_of_key};
use crate::store::redis::{
    location::Address,
    pubsub::{is_changes, lock_key_of},
    supervisor::NodeEvent,
};

/// Longest time for which a message from the former master of a slot may be in flight. It is longer
/// than it takes until every queue was touched at the new master.
const REASSIGNMENT_WINDOW: Duration = Duration::from_secs(2);

impl Router {
    /// Forwards an event of the node on this server, unless another node forwards it.
    pub(super) fn on_node_event(&self, from: &Address, event: NodeEvent) {
        let is_forwarded = match &event {
            NodeEvent::Ready | NodeEvent::Replaced | NodeEvent::AssumptionViolated(_) => true,
            NodeEvent::Message(payload) => {
                let key = lock_key_of(payload);
                let is_sharded = self.config.sharded_pubsub && !is_changes(&payload[key.len()..]);
                is_sharded || self.is_responsible(from, slot_of_key(payload.slice_ref(key)))
            }
        };
        if is_forwarded {
            (self.on_event)(event);
        }
    }

    /// Records that slots are being assigned to other masters.
    pub(super) fn record_reassignment(&self) {
        *self.last_reassigned_at.lock() = Some(Instant::now());
    }

    fn is_responsible(&self, from: &Address, slot: u16) -> bool {
        let map = Arc::clone(&self.map.borrow());
        match map.master(slot) {
            Some(master) if master != from => {
                !self.has_serving_node(master) || self.is_reassigning()
            }
            Some(_) | None => true,
        }
    }

    fn has_serving_node(&self, master: &Address) -> bool {
        let masters = self.masters.lock();
        let handle = masters.get(master);
        handle.is_some_and(|handle| handle.supervisor.current_node().is_some())
    }

    fn is_reassigning(&self) -> bool {
        let changed_at = *self.last_reassigned_at.lock();
        changed_at.is_some_and(|at| at.elapsed() < REASSIGNMENT_WINDOW)
    }
}
