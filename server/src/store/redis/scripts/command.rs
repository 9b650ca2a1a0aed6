//! Keys and arguments of a script, for one lock or for several.

use fred::types::Value;

use crate::lock::{BrokerId, LockKey};

/// The arguments that precede the verb's own arguments in every command.
#[derive(Debug, Clone, Copy)]
pub struct Preamble<'a> {
    /// The prefix of all keys and channels.
    pub key_prefix: &'a str,
    pub broker: BrokerId,
    /// Time after which the command is rejected, in milliseconds of the store's clock.
    pub not_after_ms: u64,
    /// The era that the broker verified. Empty if a slot of a cluster has no era.
    pub era_id: &'a str,
    /// In a cluster: the hash tag that places a key in the lock's slot.
    pub era_tag: Option<&'a str>,
    /// True if the brokers of a cluster use sharded channels.
    pub is_sharded: bool,
    /// True if a client watches locks.
    pub is_watched: bool,
}

#[derive(Debug, Clone)]
pub struct Command {
    /// The lock's record and the era; in a cluster only the record.
    pub keys: Vec<String>,
    pub args: Vec<Value>,
}

impl Preamble<'_> {
    /// Returns the key of the lock's record.
    pub(in crate::store::redis) fn key(&self, lock: &LockKey) -> String {
        format!("{}{}", self.key_prefix, lock.encoded())
    }

    /// Returns the command of a call with the verb's own arguments.
    pub(super) fn command(&self, lock: &LockKey, own: &[Value]) -> Command {
        let mut args = Vec::with_capacity(own.len() + PREAMBLE_ARGS);
        args.push(match self.is_watched {
            false => encode_text(self.broker.as_str()),
            true => Value::String(format!("{}*", self.broker).into()),
        });
        args.push(encode_number(self.not_after_ms));
        let mut keys = vec![self.key(lock)];
        match self.era_tag {
            None => {
                keys.push(format!("{}era", self.key_prefix));
                args.push(encode_text(self.era_id));
            }
            Some(tag) => {
                let sharded = if self.is_sharded { "!" } else { "" };
                let era = format!("{}|{}era{tag}{sharded}", self.era_id, self.key_prefix);
                args.push(Value::String(era.into()));
            }
        }
        args.extend_from_slice(own);
        Command { keys, args }
    }
}

/// Number of arguments before those of the verb.
const PREAMBLE_ARGS: usize = 3;

impl Command {
    /// Returns true if both commands may run as one: same verb, and locks that are kept in the same
    /// era.
    pub(in crate::store::redis) fn can_batch_with(&self, other: &Self) -> bool {
        let (era, other_era) = (
            &self.args[PREAMBLE_ARGS - 1],
            &other.args[PREAMBLE_ARGS - 1],
        );
        self.args.len() == other.args.len()
            && self.keys.get(1) == other.keys.get(1)
            && era == other_era
    }

    /// Combines several commands for one run of a script (run.lua). The combined command has
    /// the earliest deadline of all, and publishes changes if one of them does. Returns `None` for
    /// no commands.
    pub fn merge(mut commands: impl Iterator<Item = Self>) -> Option<Self> {
        let mut all = commands.next()?;
        for Self { keys, mut args } in commands {
            all.keys.extend(keys.into_iter().next());
            all.args.extend(args.drain(PREAMBLE_ARGS..));
            let [broker, not_after_ms, ..] = &args[..] else {
                continue;
            };
            if is_watched(broker) {
                all.args[0] = broker.clone();
            }
            if not_after_ms.as_i64() < all.args[1].as_i64() {
                all.args[1] = not_after_ms.clone();
            }
        }
        Some(all)
    }
}

/// Returns true if a command's first argument is marked because a client watches locks.
fn is_watched(broker: &Value) -> bool {
    broker
        .as_bytes()
        .is_some_and(|broker| broker.ends_with(b"*"))
}

pub(super) fn encode_text(text: &str) -> Value {
    Value::String(text.into())
}

pub(super) fn encode_number(number: u64) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}
