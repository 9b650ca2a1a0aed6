//! What brokers are told by the store.

use leasehold_server::{
    lock::{Acquire, LeaseRef},
    store::{Event, HandOff, Moved, Revocation},
};
use tokio::time::timeout;

use super::{EVENT_LIMIT, World, lease};

impl World {
    /// Waits until broker `n` is told that places in line were taken away.
    pub async fn told_to_rejoin(&self, n: usize) {
        let mut events = self.brokers[n].events.lock().await;
        loop {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            if let Event::Rejoin(lock) = event.expect("told in time").expect("events go on") {
                return assert_eq!(lock, self.lock);
            }
        }
    }

    /// Waits until broker `n` is told that a lease has left a stream of its own.
    pub async fn told_to_move(&self, n: usize) -> Moved {
        let mut events = self.brokers[n].events.lock().await;
        loop {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            if let Event::Moved(lock, moved) = event.expect("told in time").expect("events go on") {
                assert_eq!(lock, self.lock);
                return moved;
            }
        }
    }

    /// Waits until broker `n` is told that a lease on a stream of its own was revoked, with that grace.
    pub async fn told_of_revocation(&self, n: usize, grace_ms: u64) -> Revocation {
        let mut events = self.brokers[n].events.lock().await;
        loop {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            let event = event.expect("told in time").expect("events go on");
            if let Event::Revoked(lock, revocation) = event
                && revocation.grace_ms == grace_ms
            {
                assert_eq!(lock, self.lock);
                return revocation;
            }
        }
    }

    /// The next hand-off that broker `n` is told of, which must be to this call.
    pub async fn hand_off(&self, n: usize, call: &Acquire) -> HandOff {
        let mut events = self.brokers[n].events.lock().await;
        loop {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            match event.expect("told in time").expect("events go on") {
                Event::HandOff(lock, hand_off) => {
                    assert_eq!((&lock, hand_off.request), (&call.lock, call.request));
                    assert_eq!(hand_off.broker, self.broker(n));
                    return hand_off;
                }
                Event::Moved(..) | Event::Revoked(..) | Event::Rejoin(_) | Event::Resync => {}
            }
        }
    }

    /// The lease of a waiter that was handed the lock, claimed where it must be.
    pub async fn handed(&self, n: usize, call: &Acquire) -> LeaseRef {
        let hand_off = self.hand_off(n, call).await;
        let lease = lease(call, hand_off.fencing_token);
        if hand_off.provisional {
            self.renewed(n, &lease).await;
        }
        lease
    }
}
