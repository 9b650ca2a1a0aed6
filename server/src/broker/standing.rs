//! Where a call stands in line: what its client was told, and whether that has changed.

use tokio::sync::watch;

use super::{
    OnStream,
    stream::{Place, Tell, Told},
};
use crate::{
    lock::{Acquire, HELD_SHOWN, LeaseId, LockKey, LockState, Ttl},
    waiters::Look,
};

/// One call's standing.
pub(super) struct Standing {
    call_id: i64,
    lock: LockKey,
    ttl: Ttl,
    tell: Tell,
    looks: watch::Receiver<Look>,
    /// Its place, by which it is found among the waiters seen; 0 before it has joined.
    place: u64,
    /// Nobody joins before it, so it never gets worse.
    position: u32,
    told: Option<(u32, Vec<LeaseId>)>,
}

impl Standing {
    /// Of a call that has not joined yet.
    pub(super) fn new(on: &OnStream, acquire: &Acquire, looks: watch::Receiver<Look>) -> Self {
        Self {
            call_id: on.call_id,
            lock: acquire.lock.clone(),
            ttl: acquire.ttl,
            tell: on.tell.clone(),
            looks,
            place: 0,
            position: u32::MAX,
            told: None,
        }
    }

    /// Waits for the next look at the lock and tells the client what is new to it. Cancel safe.
    pub(super) async fn look(&mut self) {
        if self.looks.changed().await.is_err() {
            // The line is there as long as the call is registered.
            std::future::pending::<()>().await;
        }
        self.see_last();
    }

    /// It has joined; `position` is 0 where it is not known.
    pub(super) fn joined(&mut self, place: u64, position: u32) {
        if place != self.place {
            (self.place, self.position) = (place, u32::MAX);
        }
        if position > 0 {
            self.position = self.position.min(position);
        }
        self.see_last();
    }

    fn see_last(&mut self) {
        let state = self.looks.borrow_and_update().clone();
        if let Some(state) = state.filter(|_| self.place > 0) {
            self.see(&state);
        }
    }

    /// Tells the client if what was seen of the lock is new to it.
    fn see(&mut self, state: &LockState) {
        self.position = self.position.min(self.position_in(state));
        let position = self.position;
        let holders = state.holders.iter().take(HELD_SHOWN);
        let leases: Vec<_> = holders.clone().map(|holder| holder.lease_id).collect();
        let told = (position, leases);
        if self.told.as_ref() == Some(&told) {
            return;
        }
        self.told = Some(told);
        // A client that is gone is the stream's own to notice.
        (self.tell)(Told::Queued(Box::new(Place {
            call_id: self.call_id,
            lock: self.lock.clone(),
            ttl: self.ttl,
            position,
            queue_length: state.queue_length.max(position),
            holders: holders.cloned().collect(),
        })));
    }

    /// Exact among the waiters shown; behind them as if nobody had left the line.
    fn position_in(&self, state: &LockState) -> u32 {
        let shown = &state.waiters;
        let at = shown.partition_point(|waiter| waiter.place < self.place);
        let behind = match shown.last() {
            Some(last) if at == shown.len() => self.place - last.place,
            Some(_) | None => 1,
        };
        let position = u64::try_from(at).unwrap_or(u64::MAX).saturating_add(behind);
        u32::try_from(position).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;
    use crate::lock::{LockName, Mode, Namespace, Owner, Waiting};

    fn seen(places: &[u64], queue_length: u32) -> LockState {
        let waiters = places.iter().map(|&place| Waiting {
            place,
            owner: Owner::default(),
            mode: Mode::Exclusive,
            since_ms: 0,
            remaining_ms: 1,
        });
        LockState {
            holders: vec![],
            holder_count: 0,
            waiters: waiters.collect(),
            queue_length,
            closed_ms: 0,
            last_fencing_token: 1,
        }
    }

    #[test]
    fn a_place_is_told_when_it_changes_and_never_gets_worse() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&told);
        let tell: Tell = Arc::new(move |message| {
            if let Told::Queued(place) = message {
                let mut told = record.lock().unwrap_or_else(PoisonError::into_inner);
                told.push((place.position, place.queue_length));
            }
            true
        });
        let namespace = Namespace::parse("").expect("the default");
        let mut standing = Standing {
            call_id: 1,
            lock: LockKey::new(namespace, LockName::parse("a").expect("a name")),
            ttl: Ttl::from_stored(1_000),
            tell,
            looks: watch::channel(None).1,
            place: 0,
            position: u32::MAX,
            told: None,
        };
        standing.joined(9, 6);
        // A look from before it joined, at a line that had lost two waiters.
        standing.see(&seen(&[2, 4, 5], 5));
        standing.see(&seen(&[2, 4, 5], 5));
        standing.see(&seen(&[4, 5, 9, 10], 4));
        standing.joined(9, 0);
        standing.see(&seen(&[2, 4, 5, 9], 4));
        standing.see(&seen(&[9], 1));
        standing.joined(12, 3);
        standing.see(&seen(&[9, 10, 12], 3));
        let told = told.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(*told, [(6, 6), (3, 4), (1, 1), (3, 3)]);
    }
}
