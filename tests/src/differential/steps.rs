//! Steps of a sequence: a command with all inputs of its reply, and the reply of the specification.

use leasehold_server::{
    lock::{
        AcquireCommand, ActiveClosure, Attachment, AttemptId, BrokerId, CloseCommand,
        ExpectedAttachment, FencingToken, Grant, LeaseRef, LockKey, LockState, ReleaseScope,
        RequestHash, RevokeCommand, Ttl,
    },
    store::{
        Acquired, Cancelled, Checked, HandOff, LeaseReply, LimitSet, Outcome, Rejected, Released,
        Revoked, Touched, Vote, VoteReply,
        memory::{
            context::{Bounds, Context, Grants, SpanLimit},
            record::Record,
        },
    },
};

/// Start time of the sequences, in milliseconds since 1970.
pub const START_MS: u64 = 1_800_000_000_000;
/// Time before which eras of [`Era::Recovering`] grant nothing.
pub const RECOVERED_MS: u64 = START_MS + 20_000;
/// Bounds of a record in these tests, low enough to be reached.
pub const LOW_BOUNDS: Bounds = Bounds {
    waiters_max: 3,
    holders_max: 4,
    entries_max: 3,
    attempts_max: 3,
    touch_slots_max: 3,
    expirations_max: 2,
    tombstones_max: 4,
    released_max: 3,
    expired_max: 3,
};

/// The era that the store holds at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// The era that the broker verified.
    Verified,
    /// The era that the broker verified, with no grants before [`RECOVERED_MS`].
    Recovering,
    /// An era that the broker did not verify.
    Other,
    /// No era.
    Absent,
}

/// One command with its inputs.
#[derive(Debug, Clone)]
pub struct Step {
    /// Time of the store's clock.
    pub now_us: u64,
    pub lock: LockKey,
    /// The broker that sends the command.
    pub broker: BrokerId,
    /// Deadline of the command, after which it must not be executed.
    pub not_after_ms: u64,
    /// The era that the store holds.
    pub era: Era,
    /// Limit of spans in that era.
    pub span_limit: SpanLimit,
    /// Token in that era that each grant exceeds.
    pub token_floor: Option<FencingToken>,
    /// True if a command that frees the lock notifies the brokers that wait for it: at a node of a
    /// RedLock store.
    pub notifies_release: bool,
    pub verb: StoreCommand,
}

/// The request of a command.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the methods of the trait Store")]
pub enum StoreCommand {
    Acquire(Box<AcquireCommand>),
    /// An acquire at a node of a RedLock store.
    Vote(Box<AcquireCommand>, Vote),
    Renew(LeaseRef, Option<Ttl>, ExpectedAttachment),
    /// A renewal by the client at a node of a RedLock store.
    RenewForClient(LeaseRef, Option<Ttl>, ExpectedAttachment),
    Attach(LeaseRef, Attachment),
    Release(LeaseRef, ReleaseScope, ExpectedAttachment),
    Cancel(RequestHash, AttemptId),
    /// The slot at which the touch begins.
    Touch(usize),
    /// The new limit. `None` removes it.
    SetLimit(Option<u32>),
    Close(CloseCommand),
    Open,
    Revoke(RevokeCommand),
    Get,
    Check(FencingToken),
}

/// The reply of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the methods of the trait Store")]
pub enum StoreReply {
    Acquire(CommandResult<Acquired>),
    Vote(CommandResult<VoteReply>),
    Renew(CommandResult<LeaseReply<Grant>>),
    Attach(CommandResult<LeaseReply<Grant>>),
    Release(CommandResult<LeaseReply<Released>>),
    Cancel(CommandResult<Cancelled>),
    Touch(CommandResult<Touched>),
    SetLimit(CommandResult<LimitSet>),
    /// The reply to close and open.
    SetClosure(CommandResult<Option<ActiveClosure>>),
    Revoke(CommandResult<LeaseReply<Revoked>>),
    Get(CommandResult<Option<LockState>>),
    Check(CommandResult<Checked>),
    /// The error text of a failed script.
    Failed(String),
}

type CommandResult<T> = Result<Outcome<T>, Rejected>;

impl StoreCommand {
    /// Executes the command on the specification.
    pub fn execute(&self, record: &mut Record, context: &Context) -> StoreReply {
        match self {
            StoreCommand::Acquire(acquire) => StoreReply::Acquire(record.acquire(context, acquire)),
            StoreCommand::Vote(acquire, vote) => {
                StoreReply::Vote(record.vote(context, acquire, vote))
            }
            StoreCommand::Renew(lease, ttl, via) => {
                let renewed = record.renew(context, lease, *ttl, *via);
                StoreReply::Renew(renewed.map(Outcome::reply_only))
            }
            StoreCommand::RenewForClient(lease, ttl, via) => {
                let renewed = record.renew_for_client(context, lease, *ttl, *via);
                StoreReply::Renew(renewed.map(Outcome::reply_only))
            }
            StoreCommand::Attach(lease, to) => {
                StoreReply::Attach(record.attach(context, lease, *to))
            }
            StoreCommand::Release(lease, what, via) => {
                StoreReply::Release(Ok(record.release(context, lease, *what, *via)))
            }
            StoreCommand::Cancel(request, attempt) => {
                StoreReply::Cancel(Ok(record.cancel(context, *request, *attempt)))
            }
            StoreCommand::Touch(from) => StoreReply::Touch(record.touch(context, *from)),
            StoreCommand::SetLimit(limit) => {
                StoreReply::SetLimit(record.set_limit(context, *limit))
            }
            StoreCommand::Close(close) => StoreReply::SetClosure(record.close(context, close)),
            StoreCommand::Open => StoreReply::SetClosure(record.open(context)),
            StoreCommand::Revoke(revoke) => StoreReply::Revoke(record.revoke(context, revoke)),
            StoreCommand::Check(token) => {
                StoreReply::Check(record.check(context, *token).map(Outcome::reply_only))
            }
            StoreCommand::Get => {
                let state = record.get(context.now_us);
                let known = state.last_fencing_token > 0
                    || state.queue_length > 0
                    || record.has_closure()
                    || state.permit_usage.is_some_and(|usage| usage.is_limit_set);
                StoreReply::Get(Ok(Outcome::reply_only(known.then_some(state))))
            }
        }
    }

    /// Returns true if the command removes the limit that an operator set.
    pub fn removes_limit(&self) -> bool {
        matches!(self, Self::SetLimit(None))
    }
}

impl StoreReply {
    /// Returns the grants that the command made to waiters.
    pub fn hand_offs(&self) -> &[HandOff] {
        match self {
            Self::Acquire(Ok(outcome)) => &outcome.hand_offs,
            Self::Release(Ok(outcome)) => &outcome.hand_offs,
            Self::Cancel(Ok(outcome)) => &outcome.hand_offs,
            Self::Touch(Ok(outcome)) => &outcome.hand_offs,
            Self::SetLimit(Ok(outcome)) => &outcome.hand_offs,
            Self::SetClosure(Ok(outcome)) => &outcome.hand_offs,
            Self::Revoke(Ok(outcome)) => &outcome.hand_offs,
            Self::Acquire(Err(_)) | Self::Release(Err(_)) | Self::Cancel(Err(_)) => &[],
            Self::Touch(Err(_))
            | Self::SetLimit(Err(_))
            | Self::SetClosure(Err(_))
            | Self::Revoke(Err(_))
            | Self::Vote(_)
            | Self::Renew(_)
            | Self::Attach(_)
            | Self::Get(_)
            | Self::Check(_)
            | Self::Failed(_) => &[],
        }
    }

    /// Returns true if the command may have freed the lock, so that a node of a RedLock store notifies
    /// those who wait for it.
    pub fn may_free(&self) -> bool {
        match self {
            Self::Release(done) => done.is_ok(),
            Self::SetClosure(done) => done.is_ok(),
            Self::Cancel(Ok(done)) => {
                matches!(done.reply, Cancelled::Freed | Cancelled::Dequeued)
            }
            Self::Revoke(Ok(done)) => {
                matches!(done.reply, Ok(Revoked::Taken(_)))
            }
            Self::Acquire(_) | Self::Vote(_) | Self::Renew(_) | Self::Attach(_) => false,
            Self::Cancel(Err(_)) | Self::Revoke(Err(_)) | Self::Touch(_) => false,
            Self::SetLimit(_) | Self::Get(_) | Self::Check(_) | Self::Failed(_) => false,
        }
    }

    /// Returns the reason for which the command was not executed.
    pub fn rejection(&self) -> Option<&Rejected> {
        match self {
            Self::Acquire(done) => done.as_ref().err(),
            Self::Vote(done) => done.as_ref().err(),
            Self::Renew(done) => done.as_ref().err(),
            Self::Attach(done) => done.as_ref().err(),
            Self::Release(done) => done.as_ref().err(),
            Self::Cancel(done) => done.as_ref().err(),
            Self::Touch(done) => done.as_ref().err(),
            Self::SetLimit(done) => done.as_ref().err(),
            Self::SetClosure(done) => done.as_ref().err(),
            Self::Revoke(done) => done.as_ref().err(),
            Self::Get(done) => done.as_ref().err(),
            Self::Check(done) => done.as_ref().err(),
            Self::Failed(_) => None,
        }
    }
}

impl Step {
    /// Returns true if the era allows no grants.
    pub fn forbids_grants(&self) -> bool {
        match self.era {
            Era::Verified => false,
            Era::Recovering => self.now_us / 1_000 < RECOVERED_MS,
            Era::Other | Era::Absent => true,
        }
    }

    /// Executes the step on the specification.
    pub fn execute(&self, record: &mut Record) -> StoreReply {
        let context = Context {
            now_us: self.now_us,
            broker: self.broker,
            not_after_ms: self.not_after_ms,
            grants: match self.era {
                Era::Verified => Grants::NotBefore(0),
                Era::Recovering => Grants::NotBefore(RECOVERED_MS),
                Era::Other | Era::Absent => Grants::Never,
            },
            span_limit: match self.era {
                Era::Absent => SpanLimit::Min,
                Era::Verified | Era::Recovering | Era::Other => self.span_limit,
            },
            token_floor: self.token_floor,
            bounds: LOW_BOUNDS,
        };
        let reply = self.verb.execute(record, &context);
        if self.notifies_release && reply.may_free() {
            record.take_release_subscribers(&context);
        }
        reply
    }
}
