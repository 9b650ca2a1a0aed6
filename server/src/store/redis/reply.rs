//! Decoding of script replies. Replies are untrusted: an unexpected one is an `InvalidReply`.

mod fields;

use fred::{
    error::{Error, ErrorKind},
    types::Value,
};

pub(super) use self::fields::{ReplyFields, attachment, nonzero};
use crate::{
    lock::BrokerId,
    store::{LeaseEndEvent, Outcome, Rejected, StoreError},
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

/// Splits the reply of one run (run.lua) into a reply for each of its locks. An error that
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

/// Decodes `{tag, now, more, hand-offs, ...}`, or a rejection `{tag, now, ...}`.
pub(super) fn decode<T>(
    value: Value,
    me: BrokerId,
    reply: impl FnOnce(&str, &mut ReplyFields) -> Option<T>,
) -> Result<ScriptReply<T>, StoreError> {
    let mut fields = ReplyFields::new(value, me);
    let read = |fields: &mut ReplyFields| {
        let tag = fields.text()?;
        let now_ms = fields.number()?;
        let rejected = match tag.as_str() {
            "LATE" => Some(Rejected::DeadlinePassed),
            "NOERA" => Some(Rejected::NoEra),
            "RECOVERING" => Some(Rejected::Recovering {
                retry_after_ms: fields.number()?,
            }),
            "SPAN" => Some(Rejected::SpanLimit {
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
                    _ => fields.hand_offs()?.1,
                },
            });
        }
        let more = fields.number()? == 1;
        let (hand_offs, ended) = fields.hand_offs()?;
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
    use crate::lock::FencingToken;

    #[test]
    fn numbers_that_scripts_cannot_count_are_rejected() {
        let largest = i64::try_from(FencingToken::MAX).expect("below 2^63");
        for (now_ms, is_read) in [(0, true), (largest, true), (largest + 1, false)] {
            let reply = vec![
                Value::from_static_str("DEQUEUED"),
                Value::Integer(now_ms),
                Value::Integer(0),
                Value::Array(Vec::new()),
            ];
            let read = decode(Value::Array(reply), BrokerId::random(), |_, _| Some(()));
            assert_eq!(read.is_ok(), is_read, "{now_ms}");
        }
    }
}
