//! Events of a history.

use serde::{Deserialize, Serialize};

/// An event that a client, an operator or the injector of faults recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Time of the event, in microseconds of the clock that all clients of the run share.
    pub at_us: u64,
    /// Name of the recording client.
    pub client: String,
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Kind of an event, with its data. Calls, attempts, streams and releases have numbers that are unique in
/// the history; leases are named by their lease id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// The client sent an acquire. Repeats of a call have its call number and another attempt
    /// number.
    Invoked(CallRequest),
    /// The client received its queue position.
    Queued {
        attempt: u64,
        lock: String,
        position: u32,
    },
    /// The client received a lease.
    Granted {
        attempt: u64,
        lease: String,
        /// All locks of the lease.
        locks: Vec<GrantedLock>,
        validity: Validity,
    },
    /// The client received an error for an acquire.
    Rejected {
        attempt: u64,
        error: String,
        /// True if the lease of the call had expired, so that the call may have been granted its
        /// locks at any time before.
        #[serde(default)]
        lease_expired: bool,
    },
    /// The client cancelled an attempt, closed its connection before the reply, or discarded the
    /// reply.
    Cancelled { attempt: u64 },
    /// The client received the confirmation of a renewal.
    Renewed { lease: String, validity: Validity },
    /// The client sent the attachment of a lease to a stream.
    AttachInvoked { lease: String, stream: u64 },
    /// The client received the confirmation of the attachment.
    Attached { lease: String, stream: u64 },
    /// The client sent a release, and stopped relying on what it releases.
    ReleaseInvoked {
        release: u64,
        lease: String,
        scope: ReleaseScope,
    },
    /// The client received the reply to a release.
    ReleaseAnswered {
        release: u64,
        lease: String,
        is_ok: bool,
    },
    /// The client received the end of a lease, or detected it by its clock.
    Lost { lease: String, reason: LossReason },
    /// The client opened a lease stream at a broker.
    StreamOpened { stream: u64, broker: String },
    /// The stream was closed or broke.
    StreamClosed { stream: u64 },
    /// The client has ended or crashed. It relies on nothing after that.
    ClientStopped,
    /// An operator sent a force release.
    RevokeInvoked {
        lease: String,
        /// True if the lock is free at once, while the holder may still rely on its lease.
        unsafe_now: bool,
    },
    /// An operator sent a new limit of a semaphore.
    LimitInvoked { lock: String, limit: Option<u32> },
    /// An operator sent a command to close a lock for `for_ms` of the store's clock.
    CloseInvoked {
        close: u64,
        lock: String,
        for_ms: u64,
    },
    /// The operator received the confirmation that the lock is closed.
    CloseAnswered { close: u64 },
    /// An operator sent a command to open a lock.
    OpenInvoked { open: u64, lock: String },
    /// The operator received the confirmation that the lock is open. A command without one may
    /// still be executed at any time.
    OpenAnswered { open: u64 },
    /// A fault begins.
    FaultBegan { fault: Fault },
    /// A fault ends.
    FaultEnded { fault: Fault },
}

/// An acquire, as sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRequest {
    pub call: u64,
    pub attempt: u64,
    /// Broker to which the attempt was sent.
    pub broker: String,
    /// Stream of the attempt; `None` for a unary call.
    pub stream: Option<u64>,
    pub locks: Vec<LockRequest>,
    /// Lease to which the call adds a lock.
    pub under: Option<String>,
    /// Maximum wait; 0 if the call does not wait.
    pub wait_ms: u64,
    pub ttl_ms: u64,
    /// Maximum hold; `None` if it is unlimited.
    pub max_hold_ms: Option<u64>,
    /// Lock delay; 0 if there is none.
    pub lock_delay_ms: u64,
    /// Time after the grant until which the locks stay closed; 0 if there is none.
    pub at_least_ms: u64,
    pub disconnect_grace_ms: Option<u64>,
}

/// A lock of a call, with the requested share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRequest {
    pub lock: String,
    /// Requested share of the limit. An exclusive call requests the whole limit.
    pub weight: u32,
    /// Limit of the lock; 0 selects the limit in use.
    pub limit: u32,
}

/// A lock of a granted lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedLock {
    pub lock: String,
    pub token: u64,
    /// Share of the strongest entry of the lease.
    pub weight: u32,
    /// Limit of the lock at the time of the reply.
    pub limit: u32,
}

/// Period in which a client may rely on a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validity {
    /// Time at which the client sent the confirmed call or heartbeat.
    pub sent_at_us: u64,
    pub ttl_ms: u64,
    /// End of the period. It differs from `sent_at_us` plus the ttl if the clock of the client runs
    /// at another rate than the clock of the history.
    pub until_us: u64,
}

/// Part of a lease that is released.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "scope", rename_all = "snake_case")]
pub enum ReleaseScope {
    /// The whole lease.
    Lease,
    /// All entries of one lock.
    Lock { lock: String },
    /// The entry of one lock that the call created.
    Entry { lock: String, call: u64 },
}

/// Reason that a client received for the end of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossReason {
    Expired,
    NotFound,
    Released,
    MaxHold,
    Revoked,
    Moved,
    CredentialExpired,
    Denied,
}

/// An injected fault.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum Fault {
    /// The store lost all or its newest writes, and began a new era.
    DataLoss,
    /// The store executes no commands.
    StoreStalled,
    /// Commands, replies or events of the store are lost or late.
    MessagesLost,
    /// The broker has crashed.
    BrokerKilled { broker: String },
    /// The broker executes nothing.
    BrokerPaused { broker: String },
    /// The broker drains, and is then stopped.
    BrokerDrained { broker: String },
    /// The credential of the client is no longer accepted.
    CredentialExpired { client: String },
    /// The access rules no longer allow the locks of the client.
    RulesDenied { client: String },
    /// The client does not send heartbeats, or its messages are lost.
    ClientSilent { client: String },
}
