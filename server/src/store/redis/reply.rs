//! Decoding of script replies. Replies are untrusted: an unexpected one becomes `Garbled`.

mod fields;

use fred::{
    error::{Error, ErrorKind},
    types::Value,
};

use self::fields::ReplyFields;
pub(super) use self::fields::attachment;
use crate::{
    lock::{BrokerId, FencingToken, Grant, LockState, Mode, RequestHash, WaiterInfo},
    store::{
        Acquired, Cancelled, Checked, HandOff, LeaseEndEvent, LeaseReply, LimitSet, Outcome,
        Rejected, Released, Revoked, RevokedLease, StoreError, Touched, VoteReply,
    },
};

/// A script's reply: the result or rejection, the store's clock, and whether waiters remain to be
/// examined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptReply<T> {
    /// The result of the verb, or the reason for which the script rejected it.
    pub outcome: Result<Outcome<T>, Rejected>,
    /// The store's clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// True if the lock is free and not all waiters were examined, so that it must be touched
    /// again.
    pub more: bool,
    /// Leases that the command found to be expired. A rejected command can report some as well.
    pub ended: Vec<LeaseEndEvent>,
}

/// Splits the reply of one run (dispatch.lua) into a reply for each of its locks. An error that
/// ended the run counts for all locks.
pub(super) fn split_batch(result: Result<Value, Error>, count: usize) -> Vec<Result<Value, Error>> {
    match result {
        Ok(reply) if count == 1 => vec![Ok(reply)],
        Ok(Value::Array(replies)) if replies.len() == count => {
            replies.into_iter().map(first_of_batch).collect()
        }
        Ok(_) => (0..count).map(|_| Ok(Value::Null)).collect(),
        Err(error) => {
            let same = || Error::new(error.kind().clone(), error.details().to_owned());
            (0..count).map(|_| Err(same())).collect()
        }
    }
}

fn first_of_batch(value: Value) -> Result<Value, Error> {
    if let Value::Array(fields) = &value
        && let [Value::String(tag), Value::String(text)] = &fields[..]
        && &**tag == "ERROR"
    {
        return Err(Error::new(ErrorKind::Unknown, text.to_string()));
    }
    Ok(value)
}

pub fn voted(value: Value, me: BrokerId) -> Result<ScriptReply<VoteReply>, StoreError> {
    decode(value, me, |tag, fields| {
        Some(match tag {
            "BEHIND" => VoteReply::Behind {
                min_token: fields.number()?,
            },
            "AHEAD" => VoteReply::Ahead,
            _ => VoteReply::Acquired(fields.acquired(tag)?),
        })
    })
}

pub fn acquired(value: Value, me: BrokerId) -> Result<ScriptReply<Acquired>, StoreError> {
    decode(value, me, |tag, fields| fields.acquired(tag))
}

pub fn renewed(value: Value, me: BrokerId) -> Result<ScriptReply<LeaseReply<Grant>>, StoreError> {
    decode(value, me, |tag, fields| {
        Some(match tag {
            "EXTENDED" => Ok(fields.grant()?),
            _ => Err(fields.lease_rejection(tag)?),
        })
    })
}

pub fn attached(value: Value, me: BrokerId) -> Result<ScriptReply<LeaseReply<Grant>>, StoreError> {
    decode(value, me, |tag, fields| {
        Some(match tag {
            "ATTACHED" => {
                fields.moved = fields.moved()?;
                Ok(fields.grant()?)
            }
            _ => Err(fields.lease_rejection(tag)?),
        })
    })
}

pub fn released(
    value: Value,
    me: BrokerId,
) -> Result<ScriptReply<LeaseReply<Released>>, StoreError> {
    decode(value, me, |tag, fields| {
        let hold_count = fields.count()?;
        Some(match tag {
            "NOW" | "RELEASED" => Ok(Released {
                already_released: tag == "RELEASED",
                hold_count,
            }),
            _ => Err(fields.lease_rejection(tag)?),
        })
    })
}

pub fn cancelled(value: Value, me: BrokerId) -> Result<ScriptReply<Cancelled>, StoreError> {
    decode(value, me, |tag, _| {
        Some(match tag {
            "DEQUEUED" => Cancelled::Dequeued,
            "FREED" => Cancelled::Freed,
            "KEPT" => Cancelled::Kept,
            "UNKNOWN" => Cancelled::Unknown,
            _ => return None,
        })
    })
}

pub fn touched(value: Value, me: BrokerId) -> Result<ScriptReply<Touched>, StoreError> {
    decode(value, me, |tag, fields| {
        if tag != "TOUCHED" {
            return None;
        }
        let rejoin = fields.number()? == 1;
        let next_event_ms = fields.number()?;
        let more_from = usize::try_from(fields.number()?).ok()?;
        let held = fields.list(|fields| {
            Some(HandOff {
                broker: me,
                request: RequestHash::parse(&fields.text()?)?,
                fencing_token: FencingToken::new(fields.number()?)?,
                is_provisional: fields.number()? == 1,
            })
        })?;
        Some(Touched {
            rejoin,
            next_event_ms,
            held,
            more_from: (more_from > 0).then_some(more_from),
            era: None,
        })
    })
}

pub fn limit_set(value: Value, me: BrokerId) -> Result<ScriptReply<LimitSet>, StoreError> {
    decode(value, me, |tag, fields| {
        Some(match tag {
            "SET" => LimitSet::Set {
                previous: fields.count()?,
            },
            "MISMATCH" => LimitSet::Mismatch,
            _ => return None,
        })
    })
}

pub fn revoked(value: Value, me: BrokerId) -> Result<ScriptReply<LeaseReply<Revoked>>, StoreError> {
    decode(value, me, |tag, fields| {
        Some(match tag {
            "TAKEN" => {
                let mut holder = ReplyFields::of(fields.remaining.next()?);
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
    })
}

pub fn checked(value: Value, me: BrokerId) -> Result<ScriptReply<Checked>, StoreError> {
    decode(value, me, |tag, fields| {
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
    })
}

/// Decodes the state of a lock; `None` if the store has no record of it.
pub fn state(value: Value, me: BrokerId) -> Result<ScriptReply<Option<LockState>>, StoreError> {
    decode(value, me, |tag, fields| {
        if tag == "UNKNOWN" {
            return Some(None);
        }
        let last_fencing_token = fields.number()?;
        let queue_length = fields.count()?;
        let closed_ms = fields.number()?;
        let limit = fields.count()?;
        let waiters = fields.list(|fields| {
            Some(WaiterInfo {
                sequence: fields.number()?,
                since_ms: fields.number()?,
                remaining_ms: fields.number()?,
                mode: Mode::from_stored(fields.count()?, limit),
                owner: fields.owner()?,
            })
        })?;
        Some(Some(LockState {
            waiters,
            holders: fields.list(|fields| fields.holder(limit))?,
            holder_count: fields.count()?,
            queue_length,
            lock_delay_remaining_ms: closed_ms,
            last_fencing_token,
        }))
    })
}

/// Decodes `{tag, now, more, hand-offs, ...}`, or a rejection `{tag, now, ...}`.
fn decode<T>(
    value: Value,
    me: BrokerId,
    reply: impl FnOnce(&str, &mut ReplyFields) -> Option<T>,
) -> Result<ScriptReply<T>, StoreError> {
    let mut fields = ReplyFields::of(value);
    let read = |fields: &mut ReplyFields| {
        let tag = fields.text()?;
        let now_ms = fields.number()?;
        let rejected = match tag.as_str() {
            "LATE" => Some(Rejected::DeadlinePassed),
            "NOERA" => Some(Rejected::NoEra),
            "RECOVERING" => Some(Rejected::Recovering {
                retry_after_ms: fields.number()?,
            }),
            _ => None,
        };
        if let Some(rejected) = rejected {
            return Some(ScriptReply {
                outcome: Err(rejected),
                now_ms,
                more: false,
                ended: match fields.remaining.len() {
                    0 => Vec::new(),
                    _ => fields.hand_offs(me)?.1,
                },
            });
        }
        let more = fields.number()? == 1;
        let (hand_offs, ended) = fields.hand_offs(me)?;
        let reply = reply(&tag, fields)?;
        Some(ScriptReply {
            outcome: Ok(Outcome {
                reply,
                hand_offs,
                moved: fields.moved,
            }),
            now_ms,
            more,
            ended,
        })
    };
    read(&mut fields).ok_or_else(|| StoreError::InvalidReply("malformed script reply".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_scripts_cannot_count_are_garbled() {
        let largest = i64::try_from(FencingToken::MAX).expect("below 2^63");
        for (now_ms, is_read) in [(0, true), (largest, true), (largest + 1, false)] {
            let reply = vec![
                Value::from_static_str("DEQUEUED"),
                Value::Integer(now_ms),
                Value::Integer(0),
                Value::Array(Vec::new()),
            ];
            let read = cancelled(Value::Array(reply), BrokerId::random());
            assert_eq!(read.is_ok(), is_read, "{now_ms}");
        }
    }
}
