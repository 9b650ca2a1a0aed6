//! What a stream's client asks, and what it is told.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{
    broker::GivenBack,
    history::EndReason,
    lock::{AcquireCall, Failed, Holder, Lease, LeaseId, LockKey, RequestHash, ShownLease, Ttl},
    trace::Traced,
};

/// Passes a message to the client; false if the client is gone. Never waits.
pub type Tell = Arc<dyn Fn(Told) -> bool + Send + Sync>;

/// Whether a lock may be held by the client of the stream.
pub type May = Arc<dyn Fn(&LockKey) -> bool + Send + Sync>;

/// What the client asks, or the edge for it.
pub enum Asked {
    /// Take one lock or several.
    Acquire {
        /// The client's name for the call.
        call_id: i64,
        /// The call.
        call: Box<AcquireCall>,
        /// The client's count of attachments.
        number: u32,
        /// Its span.
        traced: Traced,
    },
    /// Give up a wait.
    Cancel {
        /// Of this call.
        call_id: i64,
    },
    /// Put a lease on the stream.
    Attach {
        /// The client's name for the call.
        call_id: i64,
        /// The lease.
        lease: ShownLease,
        /// The client's count of attachments.
        number: u32,
        /// Its span.
        traced: Traced,
    },
    /// Give back a lease, or a part of it.
    Release {
        /// The client's name for the call.
        call_id: i64,
        /// The lease.
        lease_id: LeaseId,
        /// Only this lock.
        lock: Option<LockKey>,
        /// Only this entry of it.
        entry: Option<RequestHash>,
    },
    /// Take a lease off the stream.
    Detach {
        /// The client's name for the call.
        call_id: i64,
        /// The lease.
        lease_id: LeaseId,
    },
    /// The client's credential is good for longer, or for ever.
    Refresh {
        /// The client's name for the call.
        call_id: i64,
        /// Until then.
        expires: Option<Instant>,
    },
    /// The client's credential is worth nothing any more.
    Expire,
    /// Only leases of these locks may be renewed.
    Restrict {
        /// Whether that is one of them.
        may: May,
    },
    /// The client lives.
    Heartbeat {
        /// Its number.
        sequence: i64,
    },
    /// Release everything and end.
    Close,
}

/// What the client is told.
#[derive(Debug)]
pub enum Told {
    /// Where a waiting call stands.
    Queued(Box<Place>),
    /// The call is done: the lease is on the stream.
    Granted {
        /// The call.
        call_id: i64,
        /// The lease.
        lease: Lease,
        /// Its validity counts from the sending of this heartbeat; 0: of the call.
        as_of: i64,
    },
    /// The call failed.
    Refused {
        /// The call.
        call_id: i64,
        /// Why.
        why: Refusal,
    },
    /// The lease is on the stream.
    Attached {
        /// The call.
        call_id: i64,
        /// The lease.
        lease_id: LeaseId,
        /// How often to send heartbeats.
        interval_ms: u64,
    },
    /// A heartbeat has reached the store for these leases.
    Acknowledged {
        /// The heartbeat.
        sequence: i64,
        /// Which.
        leases: Vec<Extended>,
        /// How often to send heartbeats from now on, if that has changed.
        interval_ms: Option<u64>,
    },
    /// A release is done.
    Released {
        /// The call.
        call_id: i64,
        /// What became of it.
        given_back: GivenBack,
    },
    /// A lease is over, or not on this stream any more.
    Ended {
        /// The lease.
        lease_id: LeaseId,
        /// Why.
        why: Ended,
    },
    /// The lease will end although its client lives.
    ReleaseRequested {
        /// The lease.
        lease_id: LeaseId,
        /// After this time.
        grace_ms: u64,
        /// Why, if an operator says so; else its `max_hold` is near.
        reason: Option<String>,
    },
    /// This broker is going away, or the connection is old: go on with another one.
    Reconnect {
        /// After this time.
        delay_ms: u64,
    },
    /// A detach is done.
    Done {
        /// The call.
        call_id: i64,
    },
}

/// Where a waiting call stands.
#[derive(Debug)]
pub struct Place {
    /// The call.
    pub call_id: i64,
    /// The lock that it waits for now.
    pub lock: LockKey,
    /// The validity that it asks for.
    pub ttl: Ttl,
    /// 1 is next.
    pub position: u32,
    /// How many wait in all.
    pub queue_length: u32,
    /// Some who hold the lock.
    pub holders: Vec<Holder>,
}

/// A lease that was extended.
#[derive(Debug)]
pub struct Extended {
    /// The lease.
    pub lease_id: LeaseId,
    /// The validity that now runs.
    pub ttl: Ttl,
    /// How many wait for its locks.
    pub queue_length: u32,
    /// How many locks were extended.
    pub locks: usize,
}

/// Why a call on a stream failed.
#[derive(Debug)]
pub enum Refusal {
    /// As the unary call would have.
    Failed(Failed),
    /// The name of the call is in use.
    CallIdReused,
    /// The stream has as many leases and waits as it may.
    TooManyLeases,
    /// Too many commands for the lease wait for their turn.
    TooManyCommands,
    /// The lease is not on this stream.
    NotHere,
    /// The client gave the wait up.
    Cancelled,
    /// The rules do not allow it any more.
    Denied,
}

/// Why a lease is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It was given back elsewhere.
    Released,
    /// It was not renewed in time.
    Expired,
    /// The store does not know it any more.
    Lost,
    /// `max_hold` has passed.
    MaxHold,
    /// An operator has taken it away.
    Revoked {
        /// Why.
        reason: String,
    },
    /// It is on another stream.
    Moved,
    /// Its client did not show a credential in time that is good for longer.
    CredentialExpired,
    /// The rules do not allow it any more.
    Denied,
}

impl Ended {
    /// Whether the store may hold the lease on until its time is over.
    pub(super) fn runs_out(&self) -> bool {
        match self {
            Self::MaxHold | Self::Revoked { .. } | Self::CredentialExpired | Self::Denied => true,
            Self::Released | Self::Expired | Self::Lost | Self::Moved => false,
        }
    }

    /// Why the broker renews it no more, if that is by its own will.
    pub(super) fn forbids(&self) -> Option<&'static str> {
        match self {
            Self::CredentialExpired => Some(EndReason::CredentialExpired.why()),
            Self::Denied => Some("the rules forbid it"),
            Self::Released
            | Self::Expired
            | Self::Lost
            | Self::MaxHold
            | Self::Revoked { .. }
            | Self::Moved => None,
        }
    }
}
