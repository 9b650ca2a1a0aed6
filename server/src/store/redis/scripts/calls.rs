//! The call of each script: its arguments, and the decoding of its reply.

use fred::types::Value;

use super::{
    Verb,
    command::{Command, Preamble, encode_number, encode_text},
};
use crate::{
    lock::{
        AcquireCommand, ActiveClosure, Attachment, AttemptId, BrokerId, CloseCommand,
        EXCLUSIVE_WEIGHT, ExpectedAttachment, FencingToken, Grant, INSPECT_ENTRIES_MAX,
        LeaseBinding, LeaseOptions, LeaseRef, LockKey, LockState, Mode, PermitUsage, ReleaseScope,
        RequestHash, RevokeCommand, RevokeMode, Ttl, WaiterInfo,
    },
    store::{
        Acquired, Cancelled, Checked, HandOff, LeaseReply, LimitSet, Released, Revoked,
        RevokedLease, StoreError, Touched, Vote, VoteReply,
        redis::{
            owner_codec,
            reply::{ReplyFields, ScriptReply, attachment, decode, nonzero},
        },
    },
};

/// A call of a script for one lock.
#[derive(Debug)]
pub struct ScriptCall<T> {
    verb: Verb,
    lock: LockKey,
    args: Vec<Value>,
    /// Decodes the reply from its tag and the fields after the hand-offs.
    decode: fn(&str, &mut ReplyFields) -> Option<T>,
    is_new_acquire: bool,
}

impl<T> ScriptCall<T> {
    fn new(
        verb: Verb,
        lock: &LockKey,
        args: Vec<Value>,
        decode: fn(&str, &mut ReplyFields) -> Option<T>,
    ) -> Self {
        Self {
            verb,
            lock: lock.clone(),
            args,
            decode,
            is_new_acquire: false,
        }
    }

    /// Returns true for an acquire of a request that has no queue position, which an overloaded
    /// server does not receive.
    pub fn is_new_acquire(&self) -> bool {
        self.is_new_acquire
    }

    pub fn verb(&self) -> Verb {
        self.verb
    }

    pub fn lock(&self) -> &LockKey {
        &self.lock
    }

    /// Returns the command for a server.
    pub fn command(&self, preamble: &Preamble<'_>) -> Command {
        preamble.command(&self.lock, &self.args)
    }

    /// Decodes a reply to this broker.
    ///
    /// # Errors
    /// [`StoreError::InvalidReply`] if the reply is malformed.
    pub fn decode(&self, reply: Value, me: BrokerId) -> Result<ScriptReply<T>, StoreError> {
        decode(reply, me, self.decode)
    }

    /// Makes a release, cancel, revocation or opening also notify the brokers that subscribed to the release
    /// of the lock.
    #[must_use]
    pub fn with_release_notification(self) -> Self {
        self.with_last_argument_set()
    }

    /// Makes a renewal keep the lease from all cancels, because its client has received it.
    #[must_use]
    pub fn for_client(self) -> Self {
        self.with_last_argument_set()
    }

    fn with_last_argument_set(mut self) -> Self {
        self.args.pop();
        self.args.push(encode_number(1));
        self
    }
}

/// Calls acquire. `waiters_max` is the maximum length of the queue.
pub fn acquire(acquire: &AcquireCommand, waiters_max: u32) -> ScriptCall<Acquired> {
    let mut args = acquire_args(acquire, waiters_max);
    args.push(encode_text(""));
    ScriptCall {
        is_new_acquire: !acquire.rejoin,
        ..ScriptCall::new(Verb::Acquire, &acquire.lock, args, acquired)
    }
}

pub(in crate::store::redis) fn acquired(tag: &str, fields: &mut ReplyFields) -> Option<Acquired> {
    fields.acquired(tag)
}

/// Calls acquire as a vote. The call must not wait.
pub fn vote(acquire: &AcquireCommand, vote: &Vote) -> ScriptCall<VoteReply> {
    let mut args = acquire_args(acquire, 0);
    args.extend([
        encode_number(vote.token.map_or(0, FencingToken::get)),
        encode_number(vote.max_clock_skew_ms),
        encode_number(vote.raises.into()),
        encode_number(vote.notify as u64),
    ]);
    ScriptCall::new(Verb::Acquire, &acquire.lock, args, voted)
}

pub(in crate::store::redis) fn voted(tag: &str, fields: &mut ReplyFields) -> Option<VoteReply> {
    Some(match tag {
        "BEHIND" => VoteReply::Behind {
            min_token: fields.number()?,
        },
        "AHEAD" => VoteReply::Ahead,
        _ => VoteReply::Acquired(fields.acquired(tag)?),
    })
}

pub fn renew(
    lease: &LeaseRef,
    ttl: Option<Ttl>,
    via: ExpectedAttachment,
) -> ScriptCall<LeaseReply<Grant>> {
    let args = vec![
        encode_text(lease.lease_id.as_str()),
        encode_number(lease.fencing_token.get()),
        ttl.map_or_else(|| encode_text(""), |ttl| encode_number(ttl.as_millis())),
        encode_expected_attachment(via),
        encode_text(""),
    ];
    ScriptCall::new(Verb::Renew, &lease.lock, args, renewed)
}

pub(in crate::store::redis) fn renewed(
    tag: &str,
    fields: &mut ReplyFields,
) -> Option<LeaseReply<Grant>> {
    Some(match tag {
        "EXTENDED" => Ok(fields.grant()?),
        _ => Err(fields.lease_rejection(tag)?),
    })
}

pub fn attach(lease: &LeaseRef, to: Attachment) -> ScriptCall<LeaseReply<Grant>> {
    let args = vec![
        encode_text(lease.lease_id.as_str()),
        encode_number(lease.fencing_token.get()),
        encode_attachment(to),
    ];
    ScriptCall::new(Verb::Attach, &lease.lock, args, attached)
}

pub(in crate::store::redis) fn attached(
    tag: &str,
    fields: &mut ReplyFields,
) -> Option<LeaseReply<Grant>> {
    Some(match tag {
        "ATTACHED" => {
            fields.read_moved()?;
            Ok(fields.grant()?)
        }
        _ => Err(fields.lease_rejection(tag)?),
    })
}

pub fn release(
    lease: &LeaseRef,
    release: ReleaseScope,
    via: ExpectedAttachment,
) -> ScriptCall<LeaseReply<Released>> {
    let args = vec![
        encode_text(lease.lease_id.as_str()),
        encode_number(lease.fencing_token.get()),
        encode_text(match &release {
            ReleaseScope::All => "",
            ReleaseScope::Lock => "+",
            ReleaseScope::Entry(request) => request.as_str(),
            ReleaseScope::ExpireNow => "!",
        }),
        encode_expected_attachment(via),
        encode_text(""),
    ];
    ScriptCall::new(Verb::Release, &lease.lock, args, released)
}

pub(in crate::store::redis) fn released(
    tag: &str,
    fields: &mut ReplyFields,
) -> Option<LeaseReply<Released>> {
    let hold_count = fields.count()?;
    Some(match tag {
        "NOW" | "RELEASED" => Ok(Released {
            already_released: tag == "RELEASED",
            hold_count,
        }),
        _ => Err(fields.lease_rejection(tag)?),
    })
}

pub fn cancel(lock: &LockKey, request: RequestHash, attempt: AttemptId) -> ScriptCall<Cancelled> {
    let args = vec![
        encode_text(request.as_str()),
        encode_text(attempt.as_str()),
        encode_text(""),
    ];
    ScriptCall::new(Verb::Cancel, lock, args, cancelled)
}

pub(in crate::store::redis) fn cancelled(tag: &str, _: &mut ReplyFields) -> Option<Cancelled> {
    Some(match tag {
        "DEQUEUED" => Cancelled::Dequeued,
        "FREED" => Cancelled::Freed,
        "KEPT" => Cancelled::Kept,
        "UNKNOWN" => Cancelled::Unknown,
        _ => return None,
    })
}

/// Calls touch. `from` is the first slot whose holders are returned.
pub fn touch(lock: &LockKey, from: usize) -> ScriptCall<Touched> {
    let args = vec![encode_number(from as u64)];
    ScriptCall::new(Verb::Touch, lock, args, touched)
}

pub(in crate::store::redis) fn touched(tag: &str, fields: &mut ReplyFields) -> Option<Touched> {
    if tag != "TOUCHED" {
        return None;
    }
    let rejoin = fields.number()? == 1;
    let next_event_ms = nonzero(fields.number()?);
    let more_from = usize::try_from(fields.number()?).ok()?;
    let held = fields.list(|fields| {
        Some(HandOff {
            broker: fields.me,
            request: RequestHash::parse(&fields.text()?)?,
            fencing_token: FencingToken::new(fields.number()?)?,
            limit: fields.count()?,
            is_provisional: fields.number()? == 1,
        })
    })?;
    Some(Touched {
        rejoin,
        next_event_ms,
        held,
        more_from: nonzero(more_from),
        era: None,
    })
}

pub fn set_limit(lock: &LockKey, limit: Option<u32>) -> ScriptCall<LimitSet> {
    let args = vec![encode_number(limit.unwrap_or(0).into())];
    ScriptCall::new(Verb::SetLimit, lock, args, limit_set)
}

pub(in crate::store::redis) fn limit_set(tag: &str, fields: &mut ReplyFields) -> Option<LimitSet> {
    Some(match tag {
        "SET" => LimitSet::Set {
            previous: nonzero(fields.count()?),
        },
        "MISMATCH" => LimitSet::Mismatch,
        _ => return None,
    })
}

pub fn revoke(revoke: &RevokeCommand) -> ScriptCall<LeaseReply<Revoked>> {
    let delay = revoke.lock_delay_ms;
    let args = vec![
        encode_text(revoke.lease_id.as_str()),
        encode_number(revoke.grace_ms),
        delay.map_or_else(|| encode_text(""), encode_number),
        encode_text(match revoke.mode {
            RevokeMode::DryRun => "?",
            RevokeMode::Graceful => "",
            RevokeMode::Immediate => "!",
        }),
        encode_text(&revoke.reason),
        encode_text(""),
    ];
    ScriptCall::new(Verb::Revoke, &revoke.lock, args, revoked)
}

pub(in crate::store::redis) fn revoked(
    tag: &str,
    fields: &mut ReplyFields,
) -> Option<LeaseReply<Revoked>> {
    Some(match tag {
        "TAKEN" => {
            let mut holder = fields.nested()?;
            Ok(Revoked::Taken(RevokedLease {
                holder: Box::new(holder.holder(fields.count()?)?),
                queue_length: fields.count()?,
                on: match fields.text()?.as_str() {
                    "" => None,
                    stream => Some(attachment(stream)?),
                },
            }))
        }
        // Has no reason, in contrast to the other replies with this tag.
        "REVOKED" => Ok(Revoked::Already),
        _ => Err(fields.lease_rejection(tag)?),
    })
}

pub fn close(close: &CloseCommand) -> ScriptCall<Option<ActiveClosure>> {
    let operator = Value::Bytes(owner_codec::encode(&close.operator).into());
    let args = vec![encode_number(close.until_ms), operator, encode_text("")];
    ScriptCall::new(Verb::SetClosure, &close.lock, args, closure)
}

pub fn open(lock: &LockKey) -> ScriptCall<Option<ActiveClosure>> {
    let args = vec![encode_text(""); 3];
    ScriptCall::new(Verb::SetClosure, lock, args, closure)
}

fn closure(tag: &str, fields: &mut ReplyFields) -> Option<Option<ActiveClosure>> {
    (tag == "CLOSURE").then(|| fields.closure())?
}

/// Calls get, which returns at most `waiters_max` waiters, or `None` if the store has no record of
/// the lock.
pub fn get(lock: &LockKey, waiters_max: usize) -> ScriptCall<Option<LockState>> {
    let limits = [INSPECT_ENTRIES_MAX, waiters_max].map(|max| encode_number(max as u64));
    ScriptCall::new(Verb::Get, lock, limits.into(), |tag, fields| match tag {
        "UNKNOWN" => Some(None),
        _ => lock_state(fields).map(Some),
    })
}

pub(in crate::store::redis) fn lock_state(fields: &mut ReplyFields) -> Option<LockState> {
    let last_fencing_token = fields.number()?;
    let queue_length = fields.count()?;
    let closure = fields.closure()?.map(Box::new);
    let (limit, set_limit) = (fields.count()?, fields.count()?);
    let waiters = fields.list(|fields| {
        Some(WaiterInfo {
            sequence: fields.number()?,
            since_ms: fields.number()?,
            remaining_ms: fields.number()?,
            mode: Mode::from_stored(fields.count()?, limit),
            owner: fields.owner()?,
        })
    })?;
    let holders = fields.list(|fields| fields.holder(limit))?;
    let holder_count = fields.count()?;
    let (used, is_limit_set) = (fields.count()?, set_limit > 0);
    let is_in_use = is_limit_set || holder_count > 0 || queue_length > 0;
    let permit_usage = PermitUsage {
        limit,
        used,
        is_limit_set,
    };
    Some(LockState {
        holders,
        holder_count,
        waiters,
        queue_length,
        closure,
        permit_usage: (is_in_use && limit != EXCLUSIVE_WEIGHT).then_some(permit_usage),
        last_fencing_token,
    })
}

pub fn check(lock: &LockKey, token: FencingToken) -> ScriptCall<Checked> {
    let args = vec![encode_number(token.get())];
    ScriptCall::new(Verb::Check, lock, args, checked)
}

pub(in crate::store::redis) fn checked(tag: &str, fields: &mut ReplyFields) -> Option<Checked> {
    Some(match tag {
        "LIVE" => Checked::Live {
            remaining_ms: fields.number()?,
        },
        "STALE" => Checked::Stale {
            newest: fields.number()?,
        },
        "UNKNOWN" => Checked::Unknown,
        _ => return None,
    })
}

/// Returns the arguments of acquire without those of a vote.
fn acquire_args(acquire: &AcquireCommand, waiters_max: u32) -> Vec<Value> {
    vec![
        encode_text(acquire.lease_id.as_str()),
        encode_text(acquire.request.as_str()),
        encode_text(acquire.arguments.as_str()),
        encode_text(acquire.attempt.as_str()),
        encode_number(acquire.ttl.as_millis()),
        encode_number(acquire.wait_ms),
        encode_number(u64::from(acquire.rejoin)),
        encode_number(u64::from(waiters_max)),
        Value::Bytes(owner_codec::encode(&acquire.owner).into()),
        encode_number(acquire.mode.weight().into()),
        encode_number(acquire.mode.limit().into()),
        encode_options(acquire),
        encode_binding(acquire.binding),
        acquire
            .stream
            .map_or_else(|| encode_text(""), encode_attachment),
    ]
}

/// Returns the lease options. They are `''` for a new lease with default options, so that a script
/// has nothing to parse.
fn encode_options(acquire: &AcquireCommand) -> Value {
    let LeaseOptions {
        max_hold_ms,
        lock_delay_ms,
        at_least_ms,
        disconnect_grace_ms,
    } = acquire.options;
    match (acquire.options, acquire.binding) {
        (terms, LeaseBinding::New) if terms == LeaseOptions::default() => encode_text(""),
        (_, under) => {
            let added = u8::from(under != LeaseBinding::New);
            let max_hold_ms = max_hold_ms.unwrap_or(0);
            let grace_ms = disconnect_grace_ms.map_or_else(String::new, |ms| ms.to_string());
            let terms = format!("{max_hold_ms},{lock_delay_ms},{at_least_ms},{grace_ms},{added}");
            Value::String(terms.into())
        }
    }
}

fn encode_attachment(attachment: Attachment) -> Value {
    let Attachment { stream, number } = attachment;
    Value::String(format!("{}.{number}", stream.epoch).into())
}

fn encode_expected_attachment(via: ExpectedAttachment) -> Value {
    match via {
        ExpectedAttachment::Any => encode_text("*"),
        ExpectedAttachment::None => encode_text(""),
        ExpectedAttachment::Stream(stream) => encode_number(stream.epoch),
    }
}

fn encode_binding(under: LeaseBinding) -> Value {
    match under {
        LeaseBinding::New => encode_text(""),
        LeaseBinding::Existing => encode_text("+"),
        LeaseBinding::Reentry(token) => encode_number(token.get()),
    }
}
