//! What clients and guards ask of the task that keeps their leases.

use std::{sync::Arc, time::Duration};

use leasehold_proto::v1::{self as pb, LockRef, LockTarget, Owner};
use tokio::sync::{oneshot, watch};

use crate::{
    core::{Core, Orders, Slot},
    error::{Error, Holder, ReleaseError},
    guard::{Guard, Held},
    queue::Place,
};

pub(crate) enum Order {
    /// Take locks, and keep their lease.
    Acquire(Box<Ask>),
    /// The caller of this request is gone. What it got is given back.
    Cancel { request_id: String },
    /// A guard is gone. Without an answer it was dropped.
    Release {
        lease_id: String,
        entry: Entry,
        answer: Option<oneshot::Sender<Result<(), ReleaseError>>>,
    },
    /// Who holds a lock?
    Look {
        lock: LockRef,
        answer: oneshot::Sender<Result<Vec<Holder>, Error>>,
    },
    /// Release everything and end.
    Close { done: oneshot::Sender<()> },
}

/// One acquire.
pub(crate) struct Ask {
    pub(crate) call: Call,
    /// A place on the stream, unless the lease has one.
    pub(crate) slot: Option<Slot>,
    pub(crate) under: Option<Held>,
    /// How long to wait in line.
    pub(crate) wait: Duration,
    /// Where the caller learns where it stands.
    pub(crate) place: watch::Sender<Option<Place>>,
    pub(crate) answer: oneshot::Sender<Result<Guard, Error>>,
    pub(crate) orders: Orders,
    pub(crate) core: Arc<Core>,
}

/// What is asked for; the same however often it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) targets: Vec<LockTarget>,
    pub(crate) owner: Owner,
    pub(crate) ttl: Option<Duration>,
    pub(crate) request_id: String,
    /// The caller's trace context, if it has one.
    pub(crate) traceparent: String,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) lock_delay: Option<Duration>,
    pub(crate) disconnect_grace: Option<Duration>,
}

/// What one guard has of its lease.
#[derive(Debug, Clone, Default)]
pub(crate) struct Entry {
    pub(crate) request_id: String,
    pub(crate) locks: Vec<LockRef>,
}

/// The message of a call.
pub(crate) enum Message {
    One(pb::AcquireRequest),
    Several(pb::AcquireAllRequest),
}

impl Call {
    /// The call with so much time left to wait, under this lease.
    pub(crate) fn message(&self, wait: Duration, under: Option<pb::Lease>) -> Message {
        let wait_timeout = wait.try_into().ok();
        let time = |time: Option<Duration>| time.and_then(|time| time.try_into().ok());
        match self.targets.as_slice() {
            [target] => Message::One(pb::AcquireRequest {
                target: Some(target.clone()),
                owner: Some(self.owner.clone()),
                ttl: time(self.ttl),
                wait_timeout,
                request_id: self.request_id.clone(),
                under,
                max_hold: time(self.max_hold),
                lock_delay: time(self.lock_delay),
                disconnect_grace: time(self.disconnect_grace),
            }),
            several => Message::Several(pb::AcquireAllRequest {
                targets: several.to_vec(),
                owner: Some(self.owner.clone()),
                ttl: time(self.ttl),
                wait_timeout,
                request_id: self.request_id.clone(),
                max_hold: time(self.max_hold),
                lock_delay: time(self.lock_delay),
                disconnect_grace: time(self.disconnect_grace),
            }),
        }
    }
}
