//! How each verb becomes keys and arguments, for one lock or for several.

use fred::types::Value;

use crate::{
    lock::{
        Acquire, Attachment, AttemptId, BrokerId, FencingToken, Force, LeaseRef, LockKey, Release,
        RequestHash, Revoke, SHOWN_MAX, Terms, Ttl, Under, Via,
    },
    store::redis::owner,
};

/// What every command says before its own arguments.
#[derive(Debug, Clone, Copy)]
pub struct Preamble<'a> {
    /// Before every key and channel.
    pub key_prefix: &'a str,
    /// The broker.
    pub broker: BrokerId,
    /// The command is refused after this time, in milliseconds of the store's clock.
    pub not_after_ms: u64,
    /// The era that the broker verified; in a cluster empty if there is none.
    pub era_id: &'a str,
    /// In a cluster: a part of a key by which it lies in the lock's slot.
    pub era_tag: Option<&'a str>,
    /// In a cluster: brokers listen to sharded channels.
    pub is_sharded: bool,
    /// Somebody watches locks.
    pub is_watched: bool,
}

/// Keys and arguments of one command.
#[derive(Debug, Clone)]
pub struct Command {
    /// The lock's record and the era; in a cluster the record alone.
    pub keys: Vec<String>,
    /// ARGV.
    pub args: Vec<Value>,
}

/// What makes an acquire one vote of several: where several nodes keep a lock, all are asked for the
/// same grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vote {
    /// The token to grant with; `None` asks for nothing new, only for what the request has.
    pub token: Option<FencingToken>,
    /// How far the token may be from a node's clock.
    pub apart_max_ms: u64,
    /// A holder by the same request gets the token, if it is higher.
    pub raises: bool,
    /// When the node tells this broker that the lock is free.
    pub tells: Tells,
}

/// When a node tells a broker that a lock is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tells {
    /// It does not.
    Never = 0,
    /// If the lock is not granted to the broker's call now.
    IfHeld = 1,
    /// In any case: other calls of the broker wait.
    Always = 2,
}

impl Preamble<'_> {
    /// `waiters_max`: how many waiters the queue takes.
    pub fn acquire(&self, acquire: &Acquire, waiters_max: u32) -> Command {
        let args = [
            text(acquire.lease_id.as_str()),
            text(acquire.request.as_str()),
            text(acquire.arguments.as_str()),
            text(acquire.attempt.as_str()),
            number(acquire.ttl.as_millis()),
            number(acquire.wait_ms),
            number(u64::from(acquire.rejoin)),
            number(u64::from(waiters_max)),
            Value::Bytes(owner::encode(&acquire.owner).into()),
            number(acquire.mode.weight().into()),
            number(acquire.mode.limit().into()),
            terms(acquire),
            under(acquire.under),
            acquire.stream.map_or_else(|| text(""), on_stream),
            text(""),
        ];
        self.command(&acquire.lock, args)
    }

    /// The same as one vote of several, by a call that does not wait.
    pub fn vote(&self, acquire: &Acquire, vote: &Vote) -> Command {
        let mut command = self.acquire(acquire, 0);
        command.args.pop();
        command.args.extend([
            number(vote.token.map_or(0, FencingToken::get)),
            number(vote.apart_max_ms),
            number(vote.raises.into()),
            number(vote.tells as u64),
        ]);
        command
    }

    pub fn renew(&self, lease: &LeaseRef, ttl: Option<Ttl>, via: Via) -> Command {
        let ttl = ttl.map_or_else(|| text(""), |ttl| number(ttl.as_millis()));
        let token = number(lease.fencing_token.get());
        let lease_id = text(lease.lease_id.as_str());
        self.command(&lease.lock, [lease_id, token, ttl, from(via)])
    }

    pub fn attach(&self, lease: &LeaseRef, to: Attachment) -> Command {
        let token = number(lease.fencing_token.get());
        let lease_id = text(lease.lease_id.as_str());
        self.command(&lease.lock, [lease_id, token, on_stream(to)])
    }

    pub fn release(&self, lease: &LeaseRef, release: Release, via: Via) -> Command {
        let token = number(lease.fencing_token.get());
        let lease_id = text(lease.lease_id.as_str());
        let what = match release {
            Release::All => text(""),
            Release::Lock => text("+"),
            Release::Entry(request) => text(request.as_str()),
            Release::Lapse => text("!"),
        };
        self.command(&lease.lock, [lease_id, token, what, from(via), text("")])
    }

    pub fn cancel(&self, lock: &LockKey, request: RequestHash, attempt: AttemptId) -> Command {
        let (request, attempt) = (text(request.as_str()), text(attempt.as_str()));
        self.command(lock, [request, attempt, text("")])
    }

    /// `from`: the first slot of the holders that are looked through.
    pub fn touch(&self, lock: &LockKey, from: usize) -> Command {
        self.command(lock, [number(from as u64)])
    }

    pub fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Command {
        self.command(lock, [number(limit.unwrap_or(0).into())])
    }

    pub fn revoke(&self, revoke: &Revoke) -> Command {
        let delay = revoke.lock_delay_ms;
        let args = [
            text(revoke.lease_id.as_str()),
            number(revoke.grace_ms),
            delay.map_or_else(|| text(""), number),
            text(match revoke.force {
                Force::None => "?",
                Force::Revoke => "",
                Force::Unsafe => "!",
            }),
            text(&revoke.reason),
            text(""),
        ];
        self.command(&revoke.lock, args)
    }

    /// `waiters_most`: how many waiters to show at most.
    pub fn get(&self, lock: &LockKey, waiters_most: usize) -> Command {
        let most = [SHOWN_MAX, waiters_most].map(|most| number(most as u64));
        self.command(lock, most)
    }

    pub fn check(&self, lock: &LockKey, token: FencingToken) -> Command {
        self.command(lock, [number(token.get())])
    }

    fn command<const N: usize>(&self, lock: &LockKey, own: [Value; N]) -> Command {
        let mut args = Vec::with_capacity(N + 3);
        args.push(match self.is_watched {
            false => text(self.broker.as_str()),
            true => Value::String(format!("{}*", self.broker).into()),
        });
        args.push(number(self.not_after_ms));
        let mut keys = vec![format!("{}{}", self.key_prefix, lock.encoded())];
        match self.era_tag {
            None => {
                keys.push(format!("{}era", self.key_prefix));
                args.push(text(self.era_id));
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

/// What a command says before what its verb takes.
const PREAMBLE: usize = 3;

impl Command {
    /// Whether both may be run together: the same verb, for locks that are kept in the same era.
    pub(in crate::store::redis) fn goes_with(&self, other: &Self) -> bool {
        let (era, other_era) = (&self.args[PREAMBLE - 1], &other.args[PREAMBLE - 1]);
        self.args.len() == other.args.len()
            && self.keys.get(1) == other.keys.get(1)
            && era == other_era
    }

    /// Several as one: run.lua. It is late when one of them would be, and watched if one of them is. `None`
    /// of none.
    pub(in crate::store::redis) fn together(
        mut commands: impl Iterator<Item = Self>,
    ) -> Option<Self> {
        let mut all = commands.next()?;
        for Self { keys, mut args } in commands {
            all.keys.extend(keys.into_iter().next());
            all.args.extend(args.drain(PREAMBLE..));
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

    /// A release, cancel or revocation that also tells the brokers which want to know when the lock is free.
    #[must_use]
    pub fn telling(mut self) -> Self {
        self.args.pop();
        self.args.push(number(1));
        self
    }
}

/// `''` where there are none, so that a script has nothing to read.
fn terms(acquire: &Acquire) -> Value {
    let Terms {
        max_hold_ms,
        lock_delay_ms,
        disconnect_grace_ms,
    } = acquire.terms;
    match (acquire.terms, acquire.under) {
        (terms, Under::NewLease) if terms == Terms::default() => text(""),
        (_, under) => {
            let added = u8::from(under != Under::NewLease);
            let grace_ms = disconnect_grace_ms.map_or_else(String::new, |ms| ms.to_string());
            Value::String(format!("{max_hold_ms},{lock_delay_ms},{grace_ms},{added}").into())
        }
    }
}

fn on_stream(attachment: Attachment) -> Value {
    let Attachment { stream, number } = attachment;
    Value::String(format!("{}.{number}", stream.epoch).into())
}

fn from(via: Via) -> Value {
    match via {
        Via::Anywhere => text("*"),
        Via::Unary => text(""),
        Via::Stream(stream) => number(stream.epoch),
    }
}

fn under(under: Under) -> Value {
    match under {
        Under::NewLease => text(""),
        Under::Lease => text("+"),
        Under::Grant(token) => number(token.get()),
    }
}

/// Whether a command's first argument says that somebody watches.
fn is_watched(broker: &Value) -> bool {
    broker
        .as_bytes()
        .is_some_and(|broker| broker.ends_with(b"*"))
}

fn text(text: &str) -> Value {
    Value::String(text.into())
}

fn number(number: u64) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}
