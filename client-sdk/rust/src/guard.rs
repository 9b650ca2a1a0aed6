//! Guards: a lock is held while its guard lives, and its guard knows when it is not any more.

use std::{
    fmt,
    future::poll_fn,
    pin::pin,
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use leasehold_proto::v1::Grant;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    clock,
    core::{Core, Orders},
    error::{LostReason, ReleaseError},
    order::{Entry, Order},
    target::{lock, shown},
    telemetry,
    trust::Trust,
};

/// A lock that is held, or several under one lease.
///
/// The client sends heartbeats for it until it is released, dropped or lost. Dropping gives the lock
/// back without waiting for that; [`Guard::release`] waits, and says if the lock was lost before.
#[must_use = "the lock is given back as soon as the guard is dropped"]
pub struct Guard {
    held: Held,
    entry: Entry,
    since: Duration,
    is_released: bool,
}

/// What is known of a held lock, without the power to give it back. Cheap to clone.
///
/// It says [`is_valid`](Self::is_valid) no longer than the lease can be trusted, but a view does not
/// learn that its guard gave the lock back while another guard keeps the lease.
#[derive(Clone)]
pub struct Held(Arc<Lease>);

/// A lease as its guards see it.
pub(crate) struct Lease {
    lease_id: String,
    grants: Vec<Grant>,
    trust: Arc<Trust>,
    orders: Orders,
    /// The client lives as long as its guards.
    core: Arc<Core>,
    stop: OnceLock<CancellationToken>,
}

impl Guard {
    /// `grants` are those that the call `request_id` made or entered.
    pub(crate) fn new(
        lease_id: &str,
        grants: Vec<Grant>,
        request_id: String,
        trust: Arc<Trust>,
        (orders, core): (Orders, Arc<Core>),
    ) -> Self {
        let targets = grants.iter().filter_map(|grant| grant.target.as_ref());
        let entry = Entry {
            request_id,
            locks: targets.map(lock).collect(),
        };
        let held = Held(Arc::new(Lease {
            lease_id: lease_id.to_owned(),
            grants,
            trust,
            orders,
            core,
            stop: OnceLock::new(),
        }));
        Self {
            held,
            entry,
            since: clock::now(),
            is_released: false,
        }
    }

    /// Gives the lock back and waits until the broker has confirmed it. For a guard that was made
    /// [`under`](crate::Lock::under) another one, and for that one, this gives back only what the guard
    /// itself took.
    ///
    /// # Errors
    /// [`ReleaseError::Lost`] if the lock was lost before: what it guarded may have
    /// overlapped with another holder's work.
    ///
    /// # Cancel safety
    /// The lock is given back even if the future is dropped.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        if let Some(why) = self.lost_reason() {
            self.give_back(None);
            return Err(why.into());
        }
        let (answer, answered) = oneshot::channel();
        self.give_back(Some(answer));
        // Without an answer it was lost while it was given back.
        let lost = || self.lost_reason().unwrap_or(LostReason::Closed);
        answered.await.unwrap_or_else(|_| Err(lost().into()))
    }

    /// What is known of the lock, to pass on.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    fn give_back(&mut self, answer: Option<oneshot::Sender<Result<(), ReleaseError>>>) {
        if std::mem::replace(&mut self.is_released, true) {
            return;
        }
        let held = clock::now().saturating_sub(self.since);
        telemetry::held(held, self.lost_reason().is_some());
        if let Some(stop) = self.held.0.stop.get() {
            stop.cancel();
        }
        let entry = std::mem::take(&mut self.entry);
        // A keeper that has ended has given everything back.
        let _ = self.held.0.orders.send(Order::Release {
            lease_id: self.held.0.lease_id.clone(),
            entry,
            answer,
        });
    }
}

impl std::ops::Deref for Guard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(why) = self.lost_reason().filter(|_| !self.is_released) {
            warn!(lease_id = self.lease_id(), %why, "a guard is dropped whose lock was lost");
        }
        self.give_back(None);
    }
}

impl Held {
    /// Public identifier of the lease: safe to log and to show.
    #[must_use]
    pub fn lease_id(&self) -> &str {
        &self.0.lease_id
    }

    /// Send it with every write to what the lock protects, and refuse smaller ones there. Of the first
    /// lock, if there are several. Positive and below 2^53.
    #[must_use]
    pub fn fencing_token(&self) -> i64 {
        self.0.grants.first().map_or(0, |grant| grant.fencing_token)
    }

    /// The fencing token of the lock with this name in the default namespace, if the guard has it.
    #[must_use]
    pub fn fencing_token_of(&self, lock: impl Into<crate::Target>) -> Option<i64> {
        let wanted = lock.into().lock();
        let is_it = |grant: &&Grant| {
            let target = grant.target.as_ref();
            target.is_some_and(|target| self::lock(target) == wanted)
        };
        let grant = self.0.grants.iter().find(is_it);
        grant.map(|grant| grant.fencing_token)
    }

    /// Whether the lock can be trusted at this moment, by the clock. Once false it stays so.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.0.trust.is_valid()
    }

    /// [`is_valid`](Self::is_valid) as an error, for the `?` before a step that must not be done
    /// without the lock.
    ///
    /// # Errors
    /// Why it was lost.
    pub fn check(&self) -> Result<(), LostReason> {
        self.lost_reason().map_or(Ok(()), Err)
    }

    /// How long it can be trusted if no heartbeat is confirmed from now on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.trust.remaining()
    }

    /// The validity that the broker announced last: how long the lock could be trusted from the sending
    /// of a heartbeat. Longer than [`remaining`](Self::remaining), which ends a margin earlier.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.0.trust.ttl()
    }

    /// Why it was lost, if it was.
    #[must_use]
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.0.trust.lost_reason()
    }

    /// Ends when the lock is lost: the broker said so, or no heartbeat was confirmed for so long
    /// that it could go to somebody else a little later. Latches. Cancel safe.
    pub async fn lost(&self) -> LostReason {
        let mut over = pin!(self.0.trust.over().cancelled());
        poll_fn(|cx| {
            // Whoever asks after a suspend must not wait for the timer.
            match self.lost_reason() {
                Some(why) => Poll::Ready(why),
                None => over.as_mut().poll(cx).map(|()| self.over()),
            }
        })
        .await
    }

    /// Cancelled when the lock is not held any more: lost, released or dropped.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        let stop = self
            .0
            .stop
            .get_or_init(|| self.0.trust.over().child_token());
        // Its holder may cancel a child without harm.
        stop.child_token()
    }

    fn over(&self) -> LostReason {
        self.lost_reason().unwrap_or(LostReason::Expired)
    }

    pub(crate) fn reach(&self) -> (Orders, Arc<Core>) {
        (self.0.orders.clone(), Arc::clone(&self.0.core))
    }

    /// The locks, as the broker names them.
    #[must_use]
    pub fn locks(&self) -> Vec<String> {
        let targets = self
            .0
            .grants
            .iter()
            .filter_map(|grant| grant.target.as_ref());
        targets.map(|target| shown(&lock(target))).collect()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.fmt(f)
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("lease_id", &self.0.lease_id)
            .field("locks", &self.locks())
            .field("fencing_token", &self.fencing_token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
