//! Decoding of the elements of script replies.

use fred::types::Value;

use super::super::owner_codec;
use crate::{
    lock::{
        ActiveClosure, Attachment, BrokerId, Closure, ClosureCause, Contention, FencingToken,
        Grant, Holder, LeaseId, Mode, Owner, RequestHash, StreamId, Ttl,
    },
    store::{Acquired, HandOff, LeaseEndCause, LeaseEndEvent, LeaseRejection, MovedLease},
};

/// Parses `broker.epoch.number`.
pub(in crate::store::redis) fn attachment(text: &str) -> Option<Attachment> {
    let (broker, rest) = text.split_once('.')?;
    let (epoch, number) = rest.split_once('.')?;
    let stream = StreamId {
        broker: BrokerId::parse(broker)?,
        epoch: epoch.parse().ok()?,
    };
    let number = number.parse().ok()?;
    Some(Attachment { stream, number })
}

/// Returns the number unless it is 0, which stands for "none" in replies.
pub(in crate::store::redis) fn nonzero<T: Default + PartialEq>(number: T) -> Option<T> {
    (number != T::default()).then_some(number)
}

/// The elements of a reply, which are read in order.
#[derive(Debug)]
pub(in crate::store::redis) struct ReplyFields {
    pub(super) remaining: std::vec::IntoIter<Value>,
    pub(in crate::store::redis) moved: Option<MovedLease>,
    /// The broker that reads the reply.
    pub(in crate::store::redis) me: BrokerId,
}

impl ReplyFields {
    pub(super) fn new(value: Value, me: BrokerId) -> Self {
        let values = if let Value::Array(values) = value {
            values
        } else {
            Vec::new()
        };
        Self {
            remaining: values.into_iter(),
            moved: None,
            me,
        }
    }

    /// Reads an array, and returns its elements as fields.
    pub(in crate::store::redis) fn nested(&mut self) -> Option<Self> {
        Some(Self::new(self.remaining.next()?, self.me))
    }

    /// Reads the lease that the command has moved: `lease.broker.epoch.number`, or an empty text.
    pub(in crate::store::redis) fn read_moved(&mut self) -> Option<()> {
        let text = self.text()?;
        if !text.is_empty() {
            let (lease_id, from) = text.split_once('.')?;
            let lease_id = LeaseId::parse(lease_id)?;
            let from = attachment(from)?;
            self.moved = Some(MovedLease { lease_id, from });
        }
        Some(())
    }

    pub(in crate::store::redis) fn acquired(&mut self, tag: &str) -> Option<Acquired> {
        Some(match tag {
            "GRANTED" => {
                self.read_moved()?;
                Acquired::Granted(self.grant()?)
            }
            "STALE" => Acquired::StaleAttach,
            "QUEUED" => Acquired::Queued {
                next_event_ms: nonzero(self.number()?),
                sequence: nonzero(self.number()?),
                position: nonzero(self.count()?),
                last_fencing_token: self.number()?,
                era: None,
            },
            "HELD" => {
                let queue_length = self.count()?;
                let closure = self.closure()?.map(Box::new);
                let limit = self.count()?;
                Acquired::Held(Contention {
                    holders: self.list(|fields| fields.holder(limit))?,
                    queue_length,
                    closure,
                })
            }
            "MISMATCH" => Acquired::LimitMismatch {
                limit: nonzero(self.count()?),
            },
            "FULL" => Acquired::QueueFull,
            "UPGRADE" => Acquired::UpgradeDenied,
            "ENTRIES" => Acquired::TooManyEntries,
            "ATTEMPTS" => Acquired::TooManyAttempts,
            "NOTFOUND" => Acquired::NotFound,
            "REUSED" => Acquired::RequestIdReused,
            "ENDED" => Acquired::Ended,
            "CANCELLED" => Acquired::Cancelled,
            _ => return None,
        })
    }

    pub(in crate::store::redis) fn lease_rejection(&mut self, tag: &str) -> Option<LeaseRejection> {
        Some(match tag {
            "ELSEWHERE" | "STALE" => LeaseRejection::Elsewhere,
            "MAXHOLD" => LeaseRejection::MaxHold,
            "REVOKED" => LeaseRejection::Revoked {
                reason: self.text()?,
            },
            "EXPIRED" => LeaseRejection::Expired,
            "RELEASED" => LeaseRejection::Released,
            "NOTFOUND" => LeaseRejection::NotFound,
            _ => return None,
        })
    }

    pub(in crate::store::redis) fn text(&mut self) -> Option<String> {
        self.remaining.next()?.into_string()
    }

    /// Reads a number. Fails for numbers above [`FencingToken::MAX`], which scripts cannot
    /// represent.
    pub(in crate::store::redis) fn number(&mut self) -> Option<u64> {
        let number = self.remaining.next()?.as_u64();
        number.filter(|number| *number <= FencingToken::MAX)
    }

    pub(in crate::store::redis) fn count(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(super) fn array(&mut self) -> Option<Vec<Value>> {
        if let Value::Array(values) = self.remaining.next()? {
            Some(values)
        } else {
            None
        }
    }

    pub(in crate::store::redis) fn list<T>(
        &mut self,
        read: impl Fn(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let elements = self.array()?.into_iter();
        elements
            .map(|element| read(&mut Self::new(element, self.me)))
            .collect()
    }

    pub(in crate::store::redis) fn owner(&mut self) -> Option<Owner> {
        owner_codec::decode(self.remaining.next()?.as_bytes()?)
    }

    pub(in crate::store::redis) fn grant(&mut self) -> Option<Grant> {
        Some(Grant {
            fencing_token: FencingToken::new(self.number()?)?,
            ttl: Ttl::from_stored(self.number()?),
            acquired_ms: self.number()?,
            hold_count: self.count()?,
            mode: Mode::from_stored(self.count()?, self.count()?),
            queue_length: self.count()?,
            disconnect_grace_ms: match self.text()?.as_str() {
                "" => None,
                grace_ms => Some(grace_ms.parse().ok()?),
            },
            span_ms: self.number()?,
        })
    }

    pub(in crate::store::redis) fn holder(&mut self, limit: u32) -> Option<Holder> {
        Some(Holder {
            lease_id: LeaseId::parse(&self.text()?)?,
            fencing_token: FencingToken::new(self.number()?)?,
            since_ms: self.number()?,
            remaining_ms: self.number()?,
            mode: Mode::from_stored(self.count()?, limit),
            owner: self.owner()?,
        })
    }

    /// Reads a closure: an array that is empty if the lock is open. The outer `None` is a malformed
    /// reply.
    pub(in crate::store::redis) fn closure(&mut self) -> Option<Option<ActiveClosure>> {
        let mut fields = self.nested()?;
        let Some(cause) = fields.text() else {
            return Some(None);
        };
        let cause = match cause.as_str() {
            "DELAY" => ClosureCause::LockDelay,
            "ATLEAST" => ClosureCause::AtLeast,
            "OPERATOR" => ClosureCause::Operator,
            _ => return None,
        };
        let (until_ms, remaining_ms) = (fields.number()?, fields.number()?);
        let closure = Closure {
            cause,
            until_ms,
            owner: fields.owner()?,
        };
        Some(Some(ActiveClosure {
            closure,
            remaining_ms,
        }))
    }

    /// Reads the list of hand-offs, and the lease ends in it. The list is null in the reply of a
    /// plain case.
    pub(super) fn hand_offs(&mut self) -> Option<(Vec<HandOff>, Vec<LeaseEndEvent>)> {
        let list = match self.remaining.next()? {
            list if list.is_null() => Vec::new(),
            list => {
                let Value::Array(values) = list else {
                    return None;
                };
                values
            }
        };
        let mut fields = Self::new(Value::Array(list), self.me);
        let (mut hand_offs, mut ended) = (Vec::new(), Vec::new());
        while let Some(request) = fields.text() {
            if request == "!" {
                ended.push(fields.ending()?);
                continue;
            }
            let broker = BrokerId::parse(&fields.text()?)?;
            hand_offs.push(HandOff {
                broker,
                request: RequestHash::parse(&request)?,
                fencing_token: FencingToken::new(fields.number()?)?,
                limit: fields.count()?,
                is_provisional: broker != self.me,
            });
        }
        Some((hand_offs, ended))
    }

    /// Reads `kind|lease|token|held_ms|reason`, and the owner.
    fn ending(&mut self) -> Option<LeaseEndEvent> {
        let text = self.text()?;
        let mut parts = text.splitn(5, '|');
        let kind = match parts.next()? {
            "EXPIRED" => LeaseEndCause::Expired,
            "REVOKED" => LeaseEndCause::Revoked,
            "MAXHOLD" => LeaseEndCause::MaxHold,
            _ => return None,
        };
        Some(LeaseEndEvent {
            kind,
            lease_id: LeaseId::parse(parts.next()?)?,
            fencing_token: parts.next()?.parse().ok()?,
            held_ms: parts.next()?.parse().ok()?,
            reason: parts.next()?.to_owned(),
            owner: self.owner()?,
        })
    }
}
