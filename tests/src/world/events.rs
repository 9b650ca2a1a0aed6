//! What brokers are told by the store.

use std::time::Duration;

use leasehold_server::{
    lock::{Acquire, LeaseRef, LockKey, RequestId},
    store::{Acquired, Change, Ending, Event, HandOff, Moved, Revocation},
};
use tokio::time::timeout;

use super::{EVENT_LIMIT, World, lease, lock_named, new_call};

/// How soon a broker that watches is told, once the others have heard of it.
const SOON: Duration = Duration::from_millis(100);

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

    /// The next changes of the lock that broker `n` is told of, so many of them.
    pub async fn changes(&self, n: usize, count: usize) -> Vec<Change> {
        let mut events = self.brokers[n].events.lock().await;
        let mut changes = Vec::new();
        while changes.len() < count {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            let event = event.expect("told in time").expect("events go on");
            if let Event::Changed(lock, more) = event
                && lock == self.lock
            {
                changes.extend(more);
            }
        }
        assert_eq!(changes.len(), count, "{changes:?}");
        changes
    }

    /// Has broker 0 watch; returns when it is told what the others change.
    pub async fn watched(&self) {
        for (n, broker) in self.brokers.iter().enumerate() {
            let mut is_told = false;
            while !is_told {
                let call = new_call(&lock_named(
                    "watched",
                    &format!("by-{n}-{}", RequestId::random().hash()),
                ));
                let reply = broker.store.acquire(&call).await;
                assert!(matches!(reply, Ok(Acquired::Granted(_))), "{reply:?}");
                is_told = self.hears_of(&call.lock).await;
                // It may have come too late to hear that somebody watches.
                self.store(0).watch().await.expect("watch");
            }
        }
    }

    /// Whether broker 0 is told soon that this lock has changed.
    async fn hears_of(&self, wanted: &LockKey) -> bool {
        let mut events = self.brokers[0].events.lock().await;
        while let Ok(event) = timeout(SOON, events.recv()).await {
            let event = event.expect("events go on");
            if matches!(&event, Event::Changed(lock, _) if lock == wanted) {
                return true;
            }
        }
        false
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

    /// The next end of a lease that broker `n` is told of.
    pub async fn ended(&self, n: usize) -> Ending {
        let mut events = self.brokers[n].events.lock().await;
        loop {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            let event = event.expect("told in time").expect("events go on");
            if let Event::Ended(lock, ending) = event {
                assert_eq!(lock, self.lock);
                return ending;
            }
        }
    }

    /// The ends of leases that broker `n` was told of besides. What came of a command is told before
    /// its answer.
    pub async fn more_ended(&self, n: usize) -> Vec<Ending> {
        let mut events = self.brokers[n].events.lock().await;
        let mut endings = Vec::new();
        while let Ok(event) = events.try_recv() {
            if let Event::Ended(_, ending) = event {
                endings.push(ending);
            }
        }
        endings
    }

    /// The next hand-off that broker `n` is told of, which must be to this call.
    pub async fn hand_off(&self, n: usize, call: &Acquire) -> HandOff {
        let mut events = self.brokers[n].events.lock().await;
        loop {
            let event = timeout(EVENT_LIMIT, events.recv()).await;
            match event.expect("told in time").expect("events go on") {
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
                | Event::Replaced
                | Event::Broken(_)
                | Event::Resync => {}
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
