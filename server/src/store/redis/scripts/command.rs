//! Encoding of the verbs as keys and arguments of a script, for one lock or for several.

use fred::types::Value;

use crate::{
    lock::{
        AcquireCommand, Attachment, AttemptId, BrokerId, ExpectedAttachment, FencingToken,
        INSPECT_ENTRIES_MAX, LeaseBinding, LeaseOptions, LeaseRef, LockKey, ReleaseScope,
        RequestHash, RevokeCommand, RevokeMode, Ttl,
    },
    store::{Vote, redis::owner_codec},
};

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
    /// Encodes an acquire. `waiters_max` is the maximum length of the queue.
    pub fn acquire(&self, acquire: &AcquireCommand, waiters_max: u32) -> Command {
        let args = [
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
            encode_text(""),
        ];
        self.command(&acquire.lock, args)
    }

    /// Encodes the acquire of a call that does not wait, as a vote.
    pub fn vote(&self, acquire: &AcquireCommand, vote: &Vote) -> Command {
        let mut command = self.acquire(acquire, 0);
        command.args.pop();
        command.args.extend([
            encode_number(vote.token.map_or(0, FencingToken::get)),
            encode_number(vote.max_clock_skew_ms),
            encode_number(vote.raises.into()),
            encode_number(vote.notify as u64),
        ]);
        command
    }

    pub fn renew(&self, lease: &LeaseRef, ttl: Option<Ttl>, via: ExpectedAttachment) -> Command {
        let ttl = ttl.map_or_else(|| encode_text(""), |ttl| encode_number(ttl.as_millis()));
        let token = encode_number(lease.fencing_token.get());
        let lease_id = encode_text(lease.lease_id.as_str());
        self.command(
            &lease.lock,
            [
                lease_id,
                token,
                ttl,
                encode_expected_attachment(via),
                encode_text(""),
            ],
        )
    }

    pub fn attach(&self, lease: &LeaseRef, to: Attachment) -> Command {
        let token = encode_number(lease.fencing_token.get());
        let lease_id = encode_text(lease.lease_id.as_str());
        self.command(&lease.lock, [lease_id, token, encode_attachment(to)])
    }

    pub fn release(
        &self,
        lease: &LeaseRef,
        release: ReleaseScope,
        via: ExpectedAttachment,
    ) -> Command {
        let token = encode_number(lease.fencing_token.get());
        let lease_id = encode_text(lease.lease_id.as_str());
        let scope = match release {
            ReleaseScope::All => encode_text(""),
            ReleaseScope::Lock => encode_text("+"),
            ReleaseScope::Entry(request) => encode_text(request.as_str()),
            ReleaseScope::ExpireNow => encode_text("!"),
        };
        self.command(
            &lease.lock,
            [
                lease_id,
                token,
                scope,
                encode_expected_attachment(via),
                encode_text(""),
            ],
        )
    }

    pub fn cancel(&self, lock: &LockKey, request: RequestHash, attempt: AttemptId) -> Command {
        let (request, attempt) = (encode_text(request.as_str()), encode_text(attempt.as_str()));
        self.command(lock, [request, attempt, encode_text("")])
    }

    /// Encodes a touch. `from` is the first slot whose holders are returned.
    pub fn touch(&self, lock: &LockKey, from: usize) -> Command {
        self.command(lock, [encode_number(from as u64)])
    }

    pub fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Command {
        self.command(lock, [encode_number(limit.unwrap_or(0).into())])
    }

    pub fn revoke(&self, revoke: &RevokeCommand) -> Command {
        let delay = revoke.lock_delay_ms;
        let args = [
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
        self.command(&revoke.lock, args)
    }

    /// Encodes a get, which returns at most `waiters_max` waiters.
    pub fn get(&self, lock: &LockKey, waiters_max: usize) -> Command {
        let limits = [INSPECT_ENTRIES_MAX, waiters_max].map(|max| encode_number(max as u64));
        self.command(lock, limits)
    }

    pub fn check(&self, lock: &LockKey, token: FencingToken) -> Command {
        self.command(lock, [encode_number(token.get())])
    }

    fn command<const N: usize>(&self, lock: &LockKey, own: [Value; N]) -> Command {
        let mut args = Vec::with_capacity(N + 3);
        args.push(match self.is_watched {
            false => encode_text(self.broker.as_str()),
            true => Value::String(format!("{}*", self.broker).into()),
        });
        args.push(encode_number(self.not_after_ms));
        let mut keys = vec![format!("{}{}", self.key_prefix, lock.encoded())];
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
        args.extend(own);
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

    /// Combines several commands for one run of a script (dispatch.lua). The combined command has
    /// the earliest deadline of all, and publishes changes if one of them does. Returns `None` for
    /// no commands.
    pub(in crate::store::redis) fn merge(mut commands: impl Iterator<Item = Self>) -> Option<Self> {
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

    /// Makes a release, cancel or revocation also notify the brokers that subscribed to the release
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

/// Returns the lease options. They are `''` for a new lease with default options, so that a script
/// has nothing to parse.
fn encode_options(acquire: &AcquireCommand) -> Value {
    let LeaseOptions {
        max_hold_ms,
        lock_delay_ms,
        disconnect_grace_ms,
    } = acquire.options;
    match (acquire.options, acquire.binding) {
        (terms, LeaseBinding::New) if terms == LeaseOptions::default() => encode_text(""),
        (_, under) => {
            let added = u8::from(under != LeaseBinding::New);
            let grace_ms = disconnect_grace_ms.map_or_else(String::new, |ms| ms.to_string());
            Value::String(format!("{max_hold_ms},{lock_delay_ms},{grace_ms},{added}").into())
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

/// Returns true if a command's first argument is marked because a client watches locks.
fn is_watched(broker: &Value) -> bool {
    broker
        .as_bytes()
        .is_some_and(|broker| broker.ends_with(b"*"))
}

fn encode_text(text: &str) -> Value {
    Value::String(text.into())
}

fn encode_number(number: u64) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}
