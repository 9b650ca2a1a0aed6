//! Waiting for the events that the store sends to brokers.

use std::time::Duration;

use leasehold_server::{
    lock::{AcquireCommand, LeaseRef, LockKey, RequestId},
    store::{Acquired, Change, Event, HandOff, LeaseEndEvent, MovedLease, Revocation},
};
use tokio::time::timeout;

use super::{EVENT_LIMIT, StoreFixture, lease_of, lock_key, new_call};

/// Time within which a watching broker receives a change, once the other brokers have received the
/// watch.
const CHANGE_RECEIVED_WITHIN: Duration = Duration::from_millis(100);

impl StoreFixture {
    /// Waits until broker `n` is notified to rejoin the queue.
    pub async fn wait_for_rejoin(&self, n: usize) {
        let mut events = self.brokers[n].events.lock().await;
        loop {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            if let Event::Rejoin(lock) = event.expect("notified in time").expect("events go on") {
                return assert_eq!(lock, self.lock);
            }
        }
    }

    /// Waits until broker `n` is notified that a lease has left one of its streams.
    pub async fn wait_for_move(&self, n: usize) -> MovedLease {
        let mut events = self.brokers[n].events.lock().await;
        loop {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            if let Event::Moved(lock, moved) =
                event.expect("notified in time").expect("events go on")
            {
                assert_eq!(lock, self.lock);
                return moved;
            }
        }
    }

    /// Returns the next `count` changes of the lock that broker `n` receives.
    pub async fn next_changes(&self, n: usize, count: usize) -> Vec<Change> {
        let mut events = self.brokers[n].events.lock().await;
        let mut changes = Vec::new();
        while changes.len() < count {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            let event = event.expect("notified in time").expect("events go on");
            if let Event::Changed(lock, more) = event
                && lock == self.lock
            {
                changes.extend(more);
            }
        }
        assert_eq!(changes.len(), count, "{changes:?}");
        changes
    }

    /// Starts a watch at broker 0. Returns when broker 0 receives the changes of all brokers.
    pub async fn start_watch(&self) {
        for (n, broker) in self.brokers.iter().enumerate() {
            let mut is_told = false;
            while !is_told {
                let call = new_call(&lock_key(
                    "watched",
                    &format!("by-{n}-{}", RequestId::random().hash()),
                ));
                let reply = broker.store.acquire(&call).await;
                assert!(matches!(reply, Ok(Acquired::Granted(_))), "{reply:?}");
                is_told = self.receives_change_of(&call.lock).await;
                // The change may have preceded the watch, so the watch is renewed.
                self.store(0).watch().await.expect("watch");
            }
        }
    }

    /// Returns true if broker 0 receives a change of this lock within [`CHANGE_RECEIVED_WITHIN`].
    async fn receives_change_of(&self, wanted: &LockKey) -> bool {
        let mut events = self.brokers[0].events.lock().await;
        while let Ok(event) = timeout(CHANGE_RECEIVED_WITHIN, events.recv()).await {
            let event = event.expect("events go on");
            if matches!(&event, Event::Changed(lock, _) if lock == wanted) {
                return true;
            }
        }
        false
    }

    /// Waits until broker `n` is notified that a lease on one of its streams was revoked with that
    /// grace.
    pub async fn wait_for_revocation(&self, n: usize, grace_ms: u64) -> Revocation {
        let mut events = self.brokers[n].events.lock().await;
        loop {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            let event = event.expect("notified in time").expect("events go on");
            if let Event::Revoked(lock, revocation) = event
                && revocation.grace_ms == grace_ms
            {
                assert_eq!(lock, self.lock);
                return revocation;
            }
        }
    }

    /// Returns the next lease end that broker `n` receives.
    pub async fn next_lease_end(&self, n: usize) -> LeaseEndEvent {
        let mut events = self.brokers[n].events.lock().await;
        loop {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            let event = event.expect("notified in time").expect("events go on");
            if let Event::Ended(lock, ending) = event {
                assert_eq!(lock, self.lock);
                return ending;
            }
        }
    }

    /// Returns the further lease ends that broker `n` has received. The events of a command are
    /// sent before its reply.
    pub async fn received_lease_ends(&self, n: usize) -> Vec<LeaseEndEvent> {
        let mut events = self.brokers[n].events.lock().await;
        let mut endings = Vec::new();
        while let Ok(event) = events.try_recv() {
            if let Event::Ended(_, ending) = event {
                endings.push(ending);
            }
        }
        endings
    }

    /// Returns the next hand-off that broker `n` receives, which must be to this call.
    pub async fn next_hand_off(&self, n: usize, call: &AcquireCommand) -> HandOff {
        let mut events = self.brokers[n].events.lock().await;
        loop {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            match event.expect("notified in time").expect("events go on") {
                Event::HandOff(lock, hand_off, _) => {
                    assert_eq!((&lock, hand_off.request), (&call.lock, call.request));
                    assert_eq!(hand_off.broker, self.broker(n));
                    return hand_off;
                }
                Event::Moved(..)
                | Event::Revoked(..)
                | Event::Ended(..)
                | Event::Changed(..)
                | Event::Rejoin(_)
                | Event::ServerReplaced
                | Event::AssumptionViolated(_)
                | Event::Resync => {}
            }
        }
    }

    /// Waits for the hand-off to `call`, claims it if it is provisional, and returns the lease.
    pub async fn claim_next_hand_off(&self, n: usize, call: &AcquireCommand) -> LeaseRef {
        let hand_off = self.next_hand_off(n, call).await;
        let lease = lease_of(call, hand_off.fencing_token);
        if hand_off.is_provisional {
            self.expect_renewed(n, &lease).await;
        }
        lease
    }
}
