//! Guards of held locks, and read-only views of them.

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
    command::{Command, GuardScope},
    error::{LostReason, ReleaseError},
    runtime::ClientRuntime,
    session::CommandSender,
    target::{display_lock, lock_ref},
    telemetry,
    validity::LeaseValidity,
};

/// A guard of a lock that is held, or of several locks under one lease.
///
/// The client renews the lease until the guard is released, dropped or lost. Dropping the guard
/// releases the lock without waiting for a response. [`Guard::release`] waits, and returns an error
/// if the lock was lost before.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard {
    held: Held,
    scope: GuardScope,
    acquired_at: Duration,
    is_released: bool,
}

/// A view of a held lock, which cannot release the lock. Cheap to clone.
///
/// [`is_valid`](Self::is_valid) returns true at most until the validity of the lease ends. A
/// release of the guard does not end the validity while another guard keeps the lease.
#[derive(Clone)]
pub struct Held(Arc<LeaseHandle>);

/// A lease, shared by a guard and its views.
pub(crate) struct LeaseHandle {
    lease_id: String,
    grants: Vec<Grant>,
    validity: Arc<LeaseValidity>,
    commands: CommandSender,
    /// Keeps the client alive while a guard exists.
    runtime: Arc<ClientRuntime>,
    cancellation: OnceLock<CancellationToken>,
}

impl Guard {
    /// Creates a guard of the `grants` that the call `request_id` created or entered.
    pub(crate) fn new(
        lease_id: &str,
        grants: Vec<Grant>,
        request_id: String,
        validity: Arc<LeaseValidity>,
        (commands, runtime): (CommandSender, Arc<ClientRuntime>),
    ) -> Self {
        let targets = grants.iter().filter_map(|grant| grant.target.as_ref());
        let scope = GuardScope {
            request_id,
            locks: targets.map(lock_ref).collect(),
        };
        let held = Held(Arc::new(LeaseHandle {
            lease_id: lease_id.to_owned(),
            grants,
            validity,
            commands,
            runtime,
            cancellation: OnceLock::new(),
        }));
        Self {
            held,
            scope,
            acquired_at: clock::now(),
            is_released: false,
        }
    }

    /// Releases the lock and waits until the broker has confirmed the release. If the lease was
    /// shared with [`under`](crate::Lock::under), each guard releases only what its own call
    /// acquired.
    ///
    /// # Errors
    /// * [`ReleaseError::Lost`] if the lock was lost before: the protected work may have overlapped
    ///   with the work of another holder.
    /// * [`ReleaseError::Unconfirmed`] if no broker confirmed the release before the lease expired
    ///   or the client closed.
    /// * [`ReleaseError::Refused`] if a broker rejected the release.
    ///
    /// # Cancel safety
    /// The lock is released even if the future is dropped.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        if let Some(reason) = self.lost_reason() {
            self.start_release(None);
            return Err(reason.into());
        }
        let (reply, response) = oneshot::channel();
        self.start_release(Some(reply));
        // A dropped sender means that the lock was lost during the release.
        let lost = || self.lost_reason().unwrap_or(LostReason::Closed);
        response.await.unwrap_or_else(|_| Err(lost().into()))
    }

    /// Returns a view of the lock, which cannot release it.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    fn start_release(&mut self, reply: Option<oneshot::Sender<Result<(), ReleaseError>>>) {
        if std::mem::replace(&mut self.is_released, true) {
            return;
        }
        let held = clock::now().saturating_sub(self.acquired_at);
        telemetry::record_hold(held, self.lost_reason().is_some());
        if let Some(cancellation) = self.held.0.cancellation.get() {
            cancellation.cancel();
        }
        let scope = std::mem::take(&mut self.scope);
        // A session task that has ended has released all its leases.
        let _ = self.held.0.commands.send(Command::Release {
            lease_id: self.held.0.lease_id.clone(),
            scope,
            reply,
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
        if let Some(reason) = self.lost_reason().filter(|_| !self.is_released) {
            let lease_id = self.lease_id();
            warn!(lease_id, why = %reason, "a guard was dropped after its lock was lost");
        }
        self.start_release(None);
    }
}

impl Held {
    /// Returns the public identifier of the lease, which may be logged and displayed.
    #[must_use]
    pub fn lease_id(&self) -> &str {
        &self.0.lease_id
    }

    /// Returns the fencing token of the lock, or of the first lock if there are several. Positive
    /// and below 2^53. Send it with every write to the protected resource, and reject smaller
    /// tokens there.
    #[must_use]
    pub fn fencing_token(&self) -> i64 {
        self.0.grants.first().map_or(0, |grant| grant.fencing_token)
    }

    /// Returns the fencing token of `lock`, if the guard holds that lock. A name refers to a lock
    /// in the default namespace.
    #[must_use]
    pub fn fencing_token_of(&self, lock: impl Into<crate::Target>) -> Option<i64> {
        let requested = lock.into().lock_ref();
        let is_requested = |grant: &&Grant| {
            let target = grant.target.as_ref();
            target.is_some_and(|target| self::lock_ref(target) == requested)
        };
        let grant = self.0.grants.iter().find(is_requested);
        grant.map(|grant| grant.fencing_token)
    }

    /// Returns true if the lease is valid now, by the client's clock. Once false, it stays false.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.0.validity.is_valid()
    }

    /// Checks [`is_valid`](Self::is_valid) before a step that must not run without the lock, for
    /// use with `?`.
    ///
    /// # Errors
    /// The reason for which the lock was lost.
    pub fn check(&self) -> Result<(), LostReason> {
        self.lost_reason().map_or(Ok(()), Err)
    }

    /// Returns the time for which the lock stays valid if no further heartbeat is confirmed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.validity.remaining()
    }

    /// Returns the validity that the broker announced last, counted from the sending of a
    /// heartbeat. It is longer than [`remaining`](Self::remaining), which ends a safety margin
    /// earlier.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.0.validity.ttl()
    }

    /// Returns the reason for which the lock was lost, or `None` while it is valid.
    #[must_use]
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.0.validity.lost_reason()
    }

    /// Waits until the lock is lost and returns the reason. The lock is lost when the broker
    /// reports it, or a safety margin before another caller could acquire it because no heartbeat
    /// was confirmed. Returns at once if the lock was lost before. Cancel safe.
    pub async fn lost(&self) -> LostReason {
        let mut ended = pin!(self.0.validity.ended().cancelled());
        poll_fn(|cx| {
            // After a suspend the validity may end before the timer fires.
            match self.lost_reason() {
                Some(reason) => Poll::Ready(reason),
                None => ended
                    .as_mut()
                    .poll(cx)
                    .map(|()| self.lost_reason_or_expired()),
            }
        })
        .await
    }

    /// Returns a token that is cancelled when the lock is lost, or when the guard is released or
    /// dropped. Cancelling the returned token has no effect on the lock.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        let cancellation = self
            .0
            .cancellation
            .get_or_init(|| self.0.validity.ended().child_token());
        // The caller may cancel a child token without effect on other tokens.
        cancellation.child_token()
    }

    fn lost_reason_or_expired(&self) -> LostReason {
        self.lost_reason().unwrap_or(LostReason::Expired)
    }

    pub(crate) fn session_access(&self) -> (CommandSender, Arc<ClientRuntime>) {
        (self.0.commands.clone(), Arc::clone(&self.0.runtime))
    }

    /// Returns the names of the locks, as `namespace/name`.
    #[must_use]
    pub fn locks(&self) -> Vec<String> {
        let targets = self
            .0
            .grants
            .iter()
            .filter_map(|grant| grant.target.as_ref());
        targets
            .map(|target| display_lock(&lock_ref(target)))
            .collect()
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
