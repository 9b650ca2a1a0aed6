//! How each verb's answer becomes a reply. Answers are untrusted: anything odd is `Corrupt`.

use fred::types::Value;

use super::owner;
use crate::{
    lock::{
        BrokerId, Contention, FencingToken, Grant, Holder, LeaseId, LockState, Owner, RequestHash,
        Ttl, Waiting,
    },
    store::{
        Acquired, Cancelled, HandOff, Outcome, Refused, Released, Renewed, StoreError, Touched,
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
}

pub fn acquired(answer: Value, me: BrokerId) -> Result<Answer<Acquired>, StoreError> {
    decode(answer, me, |tag, fields| {
        Some(match tag {
            "GRANTED" => Acquired::Granted(fields.grant()?),
            "QUEUED" => Acquired::Queued {
                next_event_ms: fields.number()?,
            },
            "HELD" => {
                let queue_length = fields.count()?;
                let holder = fields.holder();
                Acquired::Held(Contention {
                    holder,
                    queue_length,
                })
            }
            "FULL" => Acquired::QueueFull,
            "REUSED" => Acquired::RequestIdReused,
            "ENDED" => Acquired::Ended,
            "CANCELLED" => Acquired::Cancelled,
            _ => return None,
        })
    })
}

pub fn renewed(answer: Value, me: BrokerId) -> Result<Answer<Renewed>, StoreError> {
    decode(answer, me, |tag, fields| {
        Some(match tag {
            "EXTENDED" => Renewed::Extended(fields.grant()?),
            "EXPIRED" => Renewed::Expired,
            "RELEASED" => Renewed::Released,
            "NOTFOUND" => Renewed::NotFound,
            _ => return None,
        })
    })
}

pub fn released(answer: Value, me: BrokerId) -> Result<Answer<Released>, StoreError> {
    decode(answer, me, |tag, _| {
        Some(match tag {
            "NOW" => Released::Now,
            "ALREADY" => Released::Already,
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
        let request = RequestHash::parse(&fields.text()?);
        let fencing_token = FencingToken::new(fields.number()?);
        let provisional = fields.number()? == 1;
        let held = request.zip(fencing_token);
        let held = held.map(|(request, fencing_token)| HandOff {
            broker: me,
            request,
            fencing_token,
            provisional,
        });
        Some(Touched {
            rejoin,
            next_event_ms,
            held,
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
        let waiters = fields.array()?.into_iter().map(|waiter| {
            let mut fields = Fields::of(waiter);
            let since_ms = fields.number()?;
            let remaining_ms = fields.number()?;
            Some(Waiting {
                owner: fields.owner()?,
                since_ms,
                remaining_ms,
            })
        });
        Some(Some(LockState {
            waiters: waiters.collect::<Option<_>>()?,
            holder: fields.holder(),
            queue_length,
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
            });
        }
        let more = fields.number()? == 1;
        let hand_offs = fields.hand_offs(me)?;
        let reply = reply(&tag, fields)?;
        Some(Answer {
            outcome: Ok(Outcome { reply, hand_offs }),
            now_ms,
            more,
        })
    };
    read(&mut fields).ok_or_else(|| StoreError::Corrupt("a script's answer is not one".to_owned()))
}

/// The elements of an answer, read in order.
struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    fn of(value: Value) -> Self {
        if let Value::Array(values) = value {
            Self(values.into_iter())
        } else {
            Self(Vec::new().into_iter())
        }
    }

    fn text(&mut self) -> Option<String> {
        self.0.next()?.into_string()
    }

    fn number(&mut self) -> Option<u64> {
        self.0.next()?.as_u64()
    }

    fn count(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn array(&mut self) -> Option<Vec<Value>> {
        if let Value::Array(values) = self.0.next()? {
            Some(values)
        } else {
            None
        }
    }

    fn owner(&mut self) -> Option<Owner> {
        owner::decode(self.0.next()?.as_bytes()?)
    }

    fn grant(&mut self) -> Option<Grant> {
        Some(Grant {
            fencing_token: FencingToken::new(self.number()?)?,
            ttl: Ttl::from_stored(self.number()?),
            acquired_ms: self.number()?,
        })
    }

    fn holder(&mut self) -> Option<Holder> {
        Some(Holder {
            lease_id: LeaseId::parse(&self.text()?)?,
            fencing_token: FencingToken::new(self.number()?)?,
            since_ms: self.number()?,
            remaining_ms: self.number()?,
            owner: self.owner()?,
        })
    }

    fn hand_offs(&mut self, me: BrokerId) -> Option<Vec<HandOff>> {
        let mut fields = Fields(self.array()?.into_iter());
        let mut hand_offs = Vec::new();
        while let Some(request) = fields.text() {
            let broker = BrokerId::parse(&fields.text()?)?;
            hand_offs.push(HandOff {
                broker,
                request: RequestHash::parse(&request)?,
                fencing_token: FencingToken::new(fields.number()?)?,
                provisional: broker != me,
            });
        }
        Some(hand_offs)
    }
}
