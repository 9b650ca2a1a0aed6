//! A step of a sequence: one command with all that decides its answer, and what the specification
//! answers to it.

use leasehold_server::{
    lock::{
        Acquire, Attachment, AttemptId, BrokerId, FencingToken, LeaseRef, LockKey, LockState,
        Release, RequestHash, Revoke, Ttl, Via,
    },
    store::{
        Acquired, Attached, Cancelled, Checked, HandOff, LimitSet, Outcome, Refused, Released,
        Renewed, Revoked, Touched,
        memory::{
            context::{Context, Grants},
            record::Record,
        },
    },
};

/// The sequences' time begins here, in milliseconds since 1970.
pub const BEGIN_MS: u64 = 1_800_000_000_000;
/// Eras of [`Era::Recovering`] grant nothing before this time.
pub const RECOVERED_MS: u64 = BEGIN_MS + 20_000;
/// The queue's limit in these tests: near enough to be met.
pub const WAITERS_MAX: u32 = 3;
/// How many may hold at once in these tests.
pub const HOLDERS_MAX: usize = 4;
/// How often a lease may enter in these tests.
pub const ENTRIES_MAX: usize = 3;
/// How many attempts of a request are listed in these tests.
pub const ATTEMPTS_MAX: usize = 3;

/// How many slots a touch looks through in these tests.
pub const TOLD_SLOTS_MAX: usize = 3;
/// How many holders a command finds to be over in these tests.
pub const ENDS_MAX: usize = 2;

/// The era that the store holds at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// The one that the broker verified.
    Verified,
    /// The one that the broker verified, with no grants before [`RECOVERED_MS`].
    Recovering,
    /// Another.
    Other,
    /// None.
    Absent,
}

/// One command.
#[derive(Debug, Clone)]
pub struct Step {
    /// The store's clock.
    pub now_us: u64,
    /// The lock.
    pub lock: LockKey,
    /// Who sends it.
    pub broker: BrokerId,
    /// Until when it may be executed.
    pub not_after_ms: u64,
    /// What the store holds.
    pub era: Era,
    /// What it asks.
    pub verb: Verb,
}

/// What a command asks.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the methods of the trait Store")]
pub enum Verb {
    Acquire(Box<Acquire>),
    Renew(LeaseRef, Option<Ttl>, Via),
    Attach(LeaseRef, Attachment),
    Release(LeaseRef, Release, Via),
    Cancel(RequestHash, AttemptId),
    /// From this slot on.
    Touch(usize),
    /// `None` removes it.
    SetLimit(Option<u32>),
    Revoke(Revoke),
    Get,
    Check(FencingToken),
}

/// What a store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the methods of the trait Store")]
pub enum Answer {
    Acquire(Done<Acquired>),
    Renew(Done<Renewed>),
    Attach(Done<Attached>),
    Release(Done<Released>),
    Cancel(Done<Cancelled>),
    Touch(Done<Touched>),
    SetLimit(Done<LimitSet>),
    Revoke(Done<Revoked>),
    Get(Done<Option<LockState>>),
    Check(Done<Checked>),
    /// Not an answer: a script failed.
    Failed(String),
}

type Done<T> = Result<Outcome<T>, Refused>;

impl Verb {
    /// Returns true if the limit that an operator set is removed.
    pub fn removes_limit(&self) -> bool {
        matches!(self, Self::SetLimit(None))
    }
}

impl Answer {
    /// The grants that the command made to waiters.
    pub fn hand_offs(&self) -> &[HandOff] {
        match self {
            Self::Acquire(Ok(outcome)) => &outcome.hand_offs,
            Self::Release(Ok(outcome)) => &outcome.hand_offs,
            Self::Cancel(Ok(outcome)) => &outcome.hand_offs,
            Self::Touch(Ok(outcome)) => &outcome.hand_offs,
            Self::SetLimit(Ok(outcome)) => &outcome.hand_offs,
            Self::Revoke(Ok(outcome)) => &outcome.hand_offs,
            Self::Acquire(Err(_)) | Self::Release(Err(_)) | Self::Cancel(Err(_)) => &[],
            Self::Touch(Err(_))
            | Self::SetLimit(Err(_))
            | Self::Revoke(Err(_))
            | Self::Renew(_)
            | Self::Attach(_)
            | Self::Get(_)
            | Self::Check(_)
            | Self::Failed(_) => &[],
        }
    }

    /// Why the command was not executed.
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            Self::Acquire(done) => done.as_ref().err(),
            Self::Renew(done) => done.as_ref().err(),
            Self::Attach(done) => done.as_ref().err(),
            Self::Release(done) => done.as_ref().err(),
            Self::Cancel(done) => done.as_ref().err(),
            Self::Touch(done) => done.as_ref().err(),
            Self::SetLimit(done) => done.as_ref().err(),
            Self::Revoke(done) => done.as_ref().err(),
            Self::Get(done) => done.as_ref().err(),
            Self::Check(done) => done.as_ref().err(),
            Self::Failed(_) => None,
        }
    }
}

impl Step {
    /// Whether the era allows no grants.
    pub fn is_closed(&self) -> bool {
        match self.era {
            Era::Verified => false,
            Era::Recovering => self.now_us / 1_000 < RECOVERED_MS,
            Era::Other | Era::Absent => true,
        }
    }

    /// What the specification answers.
    pub fn apply(&self, record: &mut Record) -> Answer {
        let context = Context {
            now_us: self.now_us,
            broker: self.broker,
            not_after_ms: self.not_after_ms,
            grants: match self.era {
                Era::Verified => Grants::NotBefore(0),
                Era::Recovering => Grants::NotBefore(RECOVERED_MS),
                Era::Other | Era::Absent => Grants::Never,
            },
            waiters_max: WAITERS_MAX,
            holders_max: HOLDERS_MAX,
            entries_max: ENTRIES_MAX,
            attempts_max: ATTEMPTS_MAX,
            told_slots_max: TOLD_SLOTS_MAX,
            ends_max: ENDS_MAX,
        };
        match &self.verb {
            Verb::Acquire(acquire) => Answer::Acquire(record.acquire(&context, acquire)),
            Verb::Renew(lease, ttl, via) => {
                let renewed = record.renew(&context, lease, *ttl, *via);
                Answer::Renew(renewed.map(Outcome::silent))
            }
            Verb::Attach(lease, to) => Answer::Attach(record.attach(&context, lease, *to)),
            Verb::Release(lease, what, via) => {
                Answer::Release(Ok(record.release(&context, lease, *what, *via)))
            }
            Verb::Cancel(request, attempt) => {
                Answer::Cancel(Ok(record.cancel(&context, *request, *attempt)))
            }
            Verb::Touch(from) => Answer::Touch(record.touch(&context, *from)),
            Verb::SetLimit(limit) => Answer::SetLimit(record.set_limit(&context, *limit)),
            Verb::Revoke(revoke) => Answer::Revoke(record.revoke(&context, revoke)),
            Verb::Check(token) => {
                Answer::Check(record.check(&context, *token).map(Outcome::silent))
            }
            Verb::Get => {
                let state = record.get(self.now_us);
                let known = state.last_fencing_token > 0 || state.queue_length > 0;
                Answer::Get(Ok(Outcome::silent(known.then_some(state))))
            }
        }
    }
}
