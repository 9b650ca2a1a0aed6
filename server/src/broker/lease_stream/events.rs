//! Commands that a stream receives from its client, and events that the stream sends.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{
    broker::ReleaseResult,
    lock::{
        AcquireCall, ActiveClosure, ActiveRecovery, Holder, Lease, LeaseId, LockFailure, LockKey,
        PresentedLease, RequestHash, Ttl,
    },
    recent_events::LeaseEndReason,
    trace::Span,
};

/// Sends an event to the client. Returns false if the client has disconnected. Never blocks.
pub type EventSink = Arc<dyn Fn(StreamEvent) -> bool + Send + Sync>;

/// Returns true if the client of the stream may hold the lock.
pub type AccessFilter = Arc<dyn Fn(&LockKey) -> bool + Send + Sync>;

/// A command of the client, or of the gRPC layer on behalf of the client.
pub enum StreamCommand {
    /// Acquire one or several locks.
    Acquire {
        /// Call id, chosen by the client.
        call_id: i64,
        call: Box<AcquireCall>,
        /// Number of the attachment, counted by the client.
        number: u32,
        /// Span of the call.
        span: Span,
    },
    /// Cancel a pending call.
    Cancel {
        /// Id of the call to cancel.
        call_id: i64,
    },
    /// Attach a lease to the stream.
    Attach {
        /// Call id, chosen by the client.
        call_id: i64,
        /// Lease that the client presents.
        lease: PresentedLease,
        /// Number of the attachment, counted by the client.
        number: u32,
        /// Span of the call.
        span: Span,
    },
    /// Release a lease, or a part of it.
    Release {
        /// Call id, chosen by the client.
        call_id: i64,
        lease_id: LeaseId,
        /// The only lock to release; `None` for all locks.
        lock: Option<LockKey>,
        /// The only entry of the lock to release; `None` for all entries.
        entry: Option<RequestHash>,
    },
    /// Remove a lease from the stream.
    Detach {
        /// Call id, chosen by the client.
        call_id: i64,
        lease_id: LeaseId,
    },
    /// Extend the lifetime of the client's credential.
    Refresh {
        /// Call id, chosen by the client.
        call_id: i64,
        /// New expiry; `None` if the credential does not expire.
        expires: Option<Instant>,
    },
    /// End the stream, because the client's credential is no longer accepted.
    Expire,
    /// Restrict the stream to the locks that changed access rules allow.
    Restrict {
        /// Filter of the locks that the client may hold.
        may: AccessFilter,
    },
    /// Renew all leases of the stream.
    Heartbeat {
        /// Sequence number of the heartbeat.
        sequence: i64,
    },
    /// Release all leases and end the stream.
    Close,
}

/// An event for the client.
#[derive(Debug)]
pub enum StreamEvent {
    /// Queue position of a pending call.
    Queued(Box<QueueUpdate>),
    /// An acquire succeeded, and its lease is on the stream.
    Granted {
        call_id: i64,
        lease: Lease,
        /// Sequence number of the heartbeat from whose transmission the validity counts; 0 if the
        /// validity counts from the transmission of the call.
        as_of: i64,
    },
    /// A call was rejected or failed.
    Refused {
        call_id: i64,
        /// Reason of the rejection.
        error: CallError,
    },
    /// An attach succeeded, and the lease is on the stream.
    Attached {
        call_id: i64,
        lease_id: LeaseId,
        /// Interval at which the client must send heartbeats.
        interval_ms: u64,
    },
    /// A heartbeat has renewed these leases in the store.
    Acknowledged {
        /// Sequence number of the heartbeat.
        sequence: i64,
        /// Leases that were renewed.
        leases: Vec<RenewedLease>,
        /// New heartbeat interval, if it has changed.
        interval_ms: Option<u64>,
    },
    /// A release call succeeded.
    Released {
        call_id: i64,
        /// Result of the release.
        result: ReleaseResult,
    },
    /// A lease has ended, or has left the stream.
    Ended {
        lease_id: LeaseId,
        /// Reason of the end.
        reason: LeaseEndedReason,
    },
    /// The lease will end although its client renews it.
    ReleaseRequested {
        lease_id: LeaseId,
        /// Time until the end of the lease.
        grace_ms: u64,
        /// Reason that an operator gave; `None` if the end of `max_hold` is near.
        reason: Option<String>,
    },
    /// The client must reconnect, because this broker drains or the connection is old.
    Reconnect {
        /// Time after which to reconnect.
        delay_ms: u64,
    },
    /// A detach or a refresh succeeded.
    Done {
        /// Call id of the detach or refresh.
        call_id: i64,
    },
}

/// Queue position of a pending call.
#[derive(Debug)]
pub struct QueueUpdate {
    pub call_id: i64,
    /// Lock in whose queue the call is now.
    pub lock: LockKey,
    /// TTL that the call requests.
    pub ttl: Ttl,
    /// Queue position, counted from 1.
    pub position: u32,
    /// Total number of waiters in the queue.
    pub queue_length: u32,
    /// Holders of the lock, at most
    /// [`CONTENTION_HOLDERS_MAX`](crate::lock::CONTENTION_HOLDERS_MAX).
    pub holders: Vec<Holder>,
    /// Closure of the lock, if the lock is closed.
    pub closure: Option<Box<ActiveClosure>>,
    /// Recovery of the store, while it grants nothing new.
    pub recovery: Option<ActiveRecovery>,
}

/// A lease that was renewed.
#[derive(Debug)]
pub struct RenewedLease {
    pub lease_id: LeaseId,
    /// TTL of the renewal.
    pub ttl: Ttl,
    /// Number of waiters, summed over the locks of the lease.
    pub queue_length: u32,
    /// Number of renewed locks.
    pub locks: usize,
}

/// Reason for which a call on a stream was rejected.
#[derive(Debug)]
pub enum CallError {
    /// Error that the corresponding unary call would return.
    Failed(LockFailure),
    /// A pending call has the same call id.
    CallIdReused,
    /// The stream has the maximum number of leases and pending calls.
    TooManyLeases,
    /// The lease has the maximum number of queued commands.
    TooManyCommands,
    /// The lease is not on this stream.
    NotHere,
    /// The client cancelled the call.
    Cancelled,
    /// The access rules no longer allow the locks of the call.
    Denied,
}

/// Reason for which a lease ended or left the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseEndedReason {
    /// Released by a call outside this stream.
    Released,
    /// Not renewed in time.
    Expired,
    /// The store no longer has the lease.
    Lost,
    /// Held for its `max_hold`.
    MaxHold,
    /// Revoked by an operator.
    Revoked {
        /// Reason that the operator gave.
        reason: String,
    },
    /// Attached to another stream.
    Moved,
    /// The credential of the client expired without being refreshed.
    CredentialExpired,
    /// The access rules no longer allow the locks of the lease.
    Denied,
}

impl LeaseEndedReason {
    /// Returns true if the store may keep the lease until its expiry.
    pub(super) fn is_held_until_expiry(&self) -> bool {
        match self {
            Self::MaxHold | Self::Revoked { .. } | Self::CredentialExpired | Self::Denied => true,
            Self::Released | Self::Expired | Self::Lost | Self::Moved => false,
        }
    }

    /// Returns the reason if the broker itself stops renewing the lease.
    pub(super) fn broker_stop_reason(&self) -> Option<&'static str> {
        match self {
            Self::CredentialExpired => Some(LeaseEndReason::CredentialExpired.explanation()),
            Self::Denied => Some("the rules no longer allow the lease"),
            Self::Released
            | Self::Expired
            | Self::Lost
            | Self::MaxHold
            | Self::Revoked { .. }
            | Self::Moved => None,
        }
    }
}
