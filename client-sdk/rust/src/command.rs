//! Commands from clients and guards to a session task.

use std::{sync::Arc, time::Duration};

use leasehold_proto::v1::{self as pb, LockRef, LockTarget, Owner};
use tokio::sync::oneshot;

use crate::{
    error::{Error, Holder, ReleaseError},
    guard::{Guard, Held},
    queue_position::QueuePositionSender,
    runtime::ClientRuntime,
    session::{CommandSender, StreamSlot},
};

pub(crate) enum Command {
    /// Acquires locks and renews their lease.
    Acquire(Box<AcquireCommand>),
    /// Cancels the acquire whose caller was dropped. A granted lock is released.
    Cancel { request_id: String },
    /// Releases what a guard holds. `reply` is `None` for a dropped guard.
    Release {
        lease_id: String,
        scope: GuardScope,
        reply: Option<oneshot::Sender<Result<(), ReleaseError>>>,
    },
    /// Returns the holders of a lock.
    GetHolders {
        lock: LockRef,
        reply: oneshot::Sender<Result<Vec<Holder>, Error>>,
    },
    /// Sets the limit of a semaphore, or removes it with `None`, and returns the previous limit.
    SetLimit {
        lock: LockRef,
        limit: Option<u32>,
        reply: oneshot::Sender<Result<Option<u32>, Error>>,
    },
    /// Releases all leases and ends the session.
    Close { done: oneshot::Sender<()> },
}

/// Parameters of one acquire command.
pub(crate) struct AcquireCommand {
    pub(crate) params: AcquireParams,
    /// Capacity on the stream, unless the lease already has it.
    pub(crate) slot: Option<StreamSlot>,
    pub(crate) under: Option<Held>,
    /// Time to wait in the queue.
    pub(crate) wait: Duration,
    /// Sender of the queue position to the caller.
    pub(crate) position: QueuePositionSender,
    pub(crate) reply: oneshot::Sender<Result<Guard, Error>>,
    pub(crate) commands: CommandSender,
    pub(crate) runtime: Arc<ClientRuntime>,
}

/// The request itself, which is equal in all attempts.
#[derive(Debug, Clone)]
pub(crate) struct AcquireParams {
    pub(crate) targets: Vec<LockTarget>,
    pub(crate) owner: Owner,
    pub(crate) ttl: Option<Duration>,
    pub(crate) request_id: String,
    /// Trace context of the caller; empty if there is none.
    pub(crate) traceparent: String,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) lock_delay: Option<Duration>,
    pub(crate) disconnect_grace: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
}

/// Locks of a lease that one guard releases.
#[derive(Debug, Clone, Default)]
pub(crate) struct GuardScope {
    pub(crate) request_id: String,
    pub(crate) locks: Vec<LockRef>,
}

/// Protocol message of a call.
pub(crate) enum AcquireMessage {
    One(pb::AcquireRequest),
    Several(pb::AcquireAllRequest),
}

impl AcquireParams {
    /// Builds the message with the remaining time to wait and the lease to add the lock to.
    pub(crate) fn message(&self, wait: Duration, under: Option<pb::Lease>) -> AcquireMessage {
        let wait_timeout = wait.try_into().ok();
        let time = |time: Option<Duration>| time.and_then(|time| time.try_into().ok());
        match self.targets.as_slice() {
            [target] => AcquireMessage::One(pb::AcquireRequest {
                target: Some(target.clone()),
                owner: Some(self.owner.clone()),
                ttl: time(self.ttl),
                wait_timeout,
                request_id: self.request_id.clone(),
                under,
                max_hold: time(self.max_hold),
                lock_delay: time(self.lock_delay),
                disconnect_grace: time(self.disconnect_grace),
                at_least: time(self.at_least),
            }),
            several => AcquireMessage::Several(pb::AcquireAllRequest {
                targets: several.to_vec(),
                owner: Some(self.owner.clone()),
                ttl: time(self.ttl),
                wait_timeout,
                request_id: self.request_id.clone(),
                max_hold: time(self.max_hold),
                lock_delay: time(self.lock_delay),
                disconnect_grace: time(self.disconnect_grace),
                at_least: time(self.at_least),
            }),
        }
    }
}
