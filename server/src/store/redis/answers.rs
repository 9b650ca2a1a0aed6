//! How each verb's answer becomes a reply. Answers are untrusted: anything odd is `Garbled`.

mod fields;

use fred::{
    error::{Error, ErrorKind},
    types::Value,
};

use self::fields::Fields;
pub(super) use self::fields::attachment;
use crate::{
    lock::{BrokerId, FencingToken, LockState, Mode, RequestHash, Waiting},
    store::{
        Acquired, Attached, Cancelled, Checked, Ending, HandOff, LimitSet, Outcome, Refused,
        Released, Renewed, Revoked, StoreError, Touched,
    },
};

/// An answer: the reply or the refusal, the store's clock, and whether waiters were left unseen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// What was done.
    pub outcome: Result<Outcome<T>, Refused>,
    /// The store's clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// The lock is free and not all waiters were looked at: touch again.
    pub more: bool,
    /// Leases whose time the command found to be over, also one that was refused.
    pub ended: Vec<Ending>,
}

/// The answer of one node of several to a proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Voted {
    /// What it would answer without one.
    Acquired(Acquired),
    /// It is free and takes no token below this one.
    Behind {
        /// The least that it takes.
        least: u64,
    },
    /// The token is too far ahead of its clock.
    Ahead,
}

/// The answer for each lock of one run of a script: run.lua. What ended the run ended it for all.
pub(super) fn of_each(answer: Result<Value, Error>, count: usize) -> Vec<Result<Value, Error>> {
    match answer {
        Ok(answer) if count == 1 => vec![Ok(answer)],
        Ok(Value::Array(answers)) if answers.len() == count => {
            answers.into_iter().map(of_one).collect()
        }
        Ok(_) => (0..count).map(|_| Ok(Value::Null)).collect(),
        Err(error) => {
            let same = || Error::new(error.kind().clone(), error.details().to_owned());
            (0..count).map(|_| Err(same())).collect()
        }
    }
}

fn of_one(answer: Value) -> Result<Value, Error> {
    if let Value::Array(fields) = &answer
        && let [Value::String(tag), Value::String(text)] = &fields[..]
        && &**tag == "ERROR"
    {
        return Err(Error::new(ErrorKind::Unknown, text.to_string()));
    }
    Ok(answer)
}

pub fn voted(answer: Value, me: BrokerId) -> Result<Answer<Voted>, StoreError> {
    decode(answer, me, |tag, fields| {
        Some(match tag {
            "BEHIND" => Voted::Behind {
                least: fields.number()?,
            },
            "AHEAD" => Voted::Ahead,
            _ => Voted::Acquired(fields.acquired(tag)?),
        })
    })
}

pub fn acquired(answer: Value, me: BrokerId) -> Result<Answer<Acquired>, StoreError> {
    decode(answer, me, |tag, fields| fields.acquired(tag))
}

pub fn renewed(answer: Value, me: BrokerId) -> Result<Answer<Renewed>, StoreError> {
    decode(answer, me, |tag, fields| {
        Some(match tag {
            "EXTENDED" => Renewed::Extended(fields.grant()?),
            "ELSEWHERE" => Renewed::Elsewhere,
            "MAXHOLD" => Renewed::MaxHold,
            "REVOKED" => Renewed::Revoked {
                reason: fields.text()?,
            },
            "EXPIRED" => Renewed::Expired,
            "RELEASED" => Renewed::Released,
            "NOTFOUND" => Renewed::NotFound,
            _ => return None,
        })
    })
}

pub fn attached(answer: Value, me: BrokerId) -> Result<Answer<Attached>, StoreError> {
    decode(answer, me, |tag, fields| {
        Some(match tag {
            "ATTACHED" => {
                fields.moved = fields.moved()?;
                Attached::Attached(fields.grant()?)
            }
            "STALE" => Attached::Stale,
            "MAXHOLD" => Attached::MaxHold,
            "REVOKED" => Attached::Revoked {
                reason: fields.text()?,
            },
            "EXPIRED" => Attached::Expired,
            "RELEASED" => Attached::Released,
            "NOTFOUND" => Attached::NotFound,
            _ => return None,
        })
    })
}

pub fn released(answer: Value, me: BrokerId) -> Result<Answer<Released>, StoreError> {
    decode(answer, me, |tag, fields| {
        let hold_count = fields.count()?;
        Some(match tag {
            "NOW" => Released::Now { hold_count },
            "ELSEWHERE" => Released::Elsewhere,
            "RELEASED" => Released::Already { hold_count },
            "REVOKED" => Released::Revoked {
                reason: fields.text()?,
            },
            "EXPIRED" => Released::Expired,
            "NOTFOUND" => Released::NotFound,
            _ => return None,
        })
    })
}

pub fn cancelled(answer: Value, me: BrokerId) -> Result<Answer<Cancelled>, StoreError> {
    decode(answer, me, |tag, _| {
        Some(match tag {
            "DEQUEUED" => Cancelled::Dequeued,
            "FREED" => Cancelled::Freed,
            "KEPT" => Cancelled::Kept,
            "UNKNOWN" => Cancelled::Unknown,
            _ => return None,
        })
    })
}

pub fn touched(answer: Value, me: BrokerId) -> Result<Answer<Touched>, StoreError> {
    decode(answer, me, |tag, fields| {
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
                provisional: fields.number()? == 1,
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

pub fn limit_set(answer: Value, me: BrokerId) -> Result<Answer<LimitSet>, StoreError> {
    decode(answer, me, |tag, fields| {
        Some(match tag {
            "SET" => LimitSet::Set {
                previous: fields.count()?,
            },
            "MISMATCH" => LimitSet::Mismatch,
            _ => return None,
        })
    })
}

pub fn revoked(answer: Value, me: BrokerId) -> Result<Answer<Revoked>, StoreError> {
    decode(answer, me, |tag, fields| {
        Some(match tag {
            "TAKEN" => {
                let mut holder = Fields::of(fields.left.next()?);
                Revoked::Taken {
                    holder: Box::new(holder.holder(fields.count()?)?),
                    queue_length: fields.count()?,
                    on: match fields.text()?.as_str() {
                        "" => None,
                        stream => Some(attachment(stream)?),
                    },
                }
            }
            "REVOKED" => Revoked::Already,
            "EXPIRED" => Revoked::Expired,
            "RELEASED" => Revoked::Released,
            "NOTFOUND" => Revoked::NotFound,
            _ => return None,
        })
    })
}

pub fn checked(answer: Value, me: BrokerId) -> Result<Answer<Checked>, StoreError> {
    decode(answer, me, |tag, fields| {
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

/// `None`: nothing is known of the lock.
pub fn state(answer: Value, me: BrokerId) -> Result<Answer<Option<LockState>>, StoreError> {
    decode(answer, me, |tag, fields| {
        if tag == "UNKNOWN" {
            return Some(None);
        }
        let last_fencing_token = fields.number()?;
        let queue_length = fields.count()?;
        let closed_ms = fields.number()?;
        let limit = fields.count()?;
        let waiters = fields.list(|fields| {
            Some(Waiting {
                place: fields.number()?,
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
            closed_ms,
            last_fencing_token,
        }))
    })
}

/// Reads `{tag, now, more, hand-offs, ...}`, or a refusal `{tag, now, ...}`.
fn decode<T>(
    answer: Value,
    me: BrokerId,
    reply: impl FnOnce(&str, &mut Fields) -> Option<T>,
) -> Result<Answer<T>, StoreError> {
    let mut fields = Fields::of(answer);
    let read = |fields: &mut Fields| {
        let tag = fields.text()?;
        let now_ms = fields.number()?;
        let refused = match tag.as_str() {
            "LATE" => Some(Refused::Late),
            "NOERA" => Some(Refused::NoEra),
            "RECOVERING" => Some(Refused::Recovering {
                retry_after_ms: fields.number()?,
            }),
            _ => None,
        };
        if let Some(refused) = refused {
            return Some(Answer {
                outcome: Err(refused),
                now_ms,
                more: false,
                ended: match fields.left.len() {
                    0 => Vec::new(),
                    _ => fields.hand_offs(me)?.1,
                },
            });
        }
        let more = fields.number()? == 1;
        let (hand_offs, ended) = fields.hand_offs(me)?;
        let reply = reply(&tag, fields)?;
        Some(Answer {
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
    read(&mut fields).ok_or_else(|| StoreError::Garbled("a script's answer is not one".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_scripts_cannot_count_are_garbled() {
        let largest = i64::try_from(FencingToken::MAX).expect("below 2^63");
        for (now_ms, is_read) in [(0, true), (largest, true), (largest + 1, false)] {
            let answer = vec![
                Value::from_static_str("DEQUEUED"),
                Value::Integer(now_ms),
                Value::Integer(0),
                Value::Array(Vec::new()),
            ];
            let read = cancelled(Value::Array(answer), BrokerId::random());
            assert_eq!(read.is_ok(), is_read, "{now_ms}");
        }
    }
}
