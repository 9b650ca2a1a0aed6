//! Runs the steps of a sequence on the scripts in one pipeline. Each step runs for the lock and for
//! a twin of it, with equal replies.

use std::{collections::BTreeMap, net::SocketAddr};

use fred::types::Value;
use leasehold_server::{
    lock::{BrokerId, INSPECT_ENTRIES_MAX, LockKey},
    store::{
        Outcome, Rejected, StoreError,
        memory::context::{Bounds, SpanLimit},
        redis::{
            self,
            scripts::{self, Command, Preamble, Scripts, calls},
        },
    },
};

use super::{
    StepResult,
    pipeline::Pipeline,
    steps::{Era, RECOVERED_MS, Step, StoreCommand, StoreReply},
};

const ERA_ID: &str = "theverifiedera";
/// The line of the scripts that reads the clock, and its replacement, which reads the time of the
/// step. The seconds follow the arguments of the lock, the microseconds those of its twin.
const CLOCK_LINES: [&str; 2] = [
    "local t = redis.call('TIME')\n",
    "local t = { ARGV[3 + (#ARGV - 3) / 2], ARGV[#ARGV] }\n",
];
/// Number of arguments of a command before those of a lock.
const PREAMBLE_ARGS: usize = 3;

/// The lines of the scripts that run the plain case of a verb (run.lua).
const PLAIN_CALL: &str = "  local reply = plain and plain(lock, ...)\n";

/// The line of the scripts that sets the bounds of one command.
const COMMAND_BOUNDS: &str = "local SCAN_MAX, GRANTS_MAX, ATTEMPT_LEN, REPORTED_SLOTS_MAX, EXPIRATIONS_MAX = 256, 64, 31, 256, 128\n";

/// Way in which the scripts handle the plain cases of a verb: apart (prelude.lua), or all cases alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainCases {
    Apart,
    Alike,
}

/// The scripts with injected time and a key prefix of their own.
pub struct ScriptRunner {
    pipeline: Pipeline,
    /// Digests of the scripts, in the order of the verbs.
    digests: Vec<String>,
    prefix: String,
    bounds: Bounds,
}

/// A command with all inputs of its reply.
#[derive(Debug, Clone, Copy)]
pub struct ScriptCall<'a> {
    /// Time of the store's clock.
    pub now_us: u64,
    pub lock: &'a LockKey,
    pub broker: BrokerId,
    pub not_after_ms: u64,
    /// Era that the broker has verified.
    pub era_id: &'a str,
    /// True if the command notifies the brokers that wait for the lock, if it frees the lock.
    pub notifies_release: bool,
    pub command: &'a StoreCommand,
}

/// The record after a sequence.
#[derive(Debug)]
pub struct FinalRecord {
    /// Time to live; -2 if there is no record.
    pub pttl_ms: i64,
    pub fields: BTreeMap<String, String>,
}

/// Number of commands of a verb.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaseCounts {
    pub plain: u64,
    pub other: u64,
}

/// Form in which a script receives the key of the era.
#[derive(Debug, Clone, Copy)]
pub enum KeyForm<'a> {
    /// One server: the era has a key. The command also runs for the twin of the lock.
    Node { era_key: &'a str },
    /// A cluster: each slot has an era, whose key is an argument.
    Cluster,
}

/// Tag of the slot in which all locks are, in the form of a cluster.
pub const SLOT_TAG: &str = "{7}";

/// Evaluates an expression with the script call of a command, and with the kind of its reply.
macro_rules! with_call {
    ($command:expr, $lock:expr, $bounds:expr, |$call:ident, $as_reply:pat_param| $use:expr) => {
        with_call!(@each $command, |$call, $as_reply| $use,
            StoreCommand::Acquire(acquire)
                => calls::acquire(acquire, $bounds.waiters_max), StoreReply::Acquire;
            StoreCommand::Vote(acquire, vote) => calls::vote(acquire, vote), StoreReply::Vote;
            StoreCommand::Renew(lease, ttl, via)
                => calls::renew(lease, *ttl, *via), StoreReply::Renew;
            StoreCommand::RenewForClient(lease, ttl, via)
                => calls::renew(lease, *ttl, *via).for_client(), StoreReply::Renew;
            StoreCommand::Attach(lease, to) => calls::attach(lease, *to), StoreReply::Attach;
            StoreCommand::Release(lease, what, via)
                => calls::release(lease, *what, *via), StoreReply::Release;
            StoreCommand::Cancel(request, attempt)
                => calls::cancel($lock, *request, *attempt), StoreReply::Cancel;
            StoreCommand::Touch(from) => calls::touch($lock, *from), StoreReply::Touch;
            StoreCommand::SetLimit(limit) => calls::set_limit($lock, *limit), StoreReply::SetLimit;
            StoreCommand::Close(close) => calls::close(close), StoreReply::SetClosure;
            StoreCommand::Open => calls::open($lock), StoreReply::SetClosure;
            StoreCommand::Revoke(revoke) => calls::revoke(revoke), StoreReply::Revoke;
            StoreCommand::Get => calls::get($lock, INSPECT_ENTRIES_MAX), StoreReply::Get;
            StoreCommand::Check(token) => calls::check($lock, *token), StoreReply::Check;
        )
    };
    (@each $command:expr, |$call:ident, $as_reply:pat_param| $use:expr,
        $($variant:pat => $script_call:expr, $reply:expr;)*) => {
        match $command {
            $($variant => {
                let ($call, $as_reply) = ($script_call, $reply);
                $use
            })*
        }
    };
}

impl ScriptRunner {
    /// Loads the scripts with these bounds after `edit`, which may introduce mistakes.
    pub fn new(
        addr: SocketAddr,
        bounds: Bounds,
        plain_cases: PlainCases,
        edit: impl Fn(&str) -> String,
    ) -> Self {
        let mut pipeline = Pipeline::connect(addr);
        let prefix = format!("{}:", uuid::Uuid::new_v4());
        let scripts = Scripts::edited_with_names(|verb, text| {
            for line in [CLOCK_LINES[0], PLAIN_CALL] {
                assert_eq!(text.matches(line).count(), 1, "{line} stands once");
            }
            let call = match plain_cases {
                PlainCases::Apart => counted_plain_call(&prefix, verb),
                PlainCases::Alike => "  local reply\n".to_owned(),
            };
            let text = text.replace(CLOCK_LINES[0], CLOCK_LINES[1]);
            with_bounds(&edit(&text.replace(PLAIN_CALL, &call)), bounds)
        });
        let scripts = scripts.all();
        let digests = scripts
            .iter()
            .map(|script| pipeline.command(&["SCRIPT", "LOAD", script.text()]));
        let digests = digests
            .map(|digest| digest.into_string().expect("a digest"))
            .collect();
        Self {
            pipeline,
            digests,
            prefix,
            bounds,
        }
    }

    /// Returns the replies of the scripts, and the record after them.
    pub fn run<'a>(
        &mut self,
        steps: impl Iterator<Item = &'a Step> + Clone,
    ) -> (Vec<StepResult>, FinalRecord) {
        let mut key = String::new();
        let era_keys = self.push_eras(steps.clone());
        for step in steps.clone() {
            let call = ScriptCall {
                now_us: step.now_us,
                lock: &step.lock,
                broker: step.broker,
                not_after_ms: step.not_after_ms,
                era_id: ERA_ID,
                notifies_release: step.notifies_release,
                command: &step.verb,
            };
            let era_key = &era_keys[&era_text(step)];
            let form = KeyForm::Node { era_key };
            key.clone_from(&self.command(&call, form).1.keys[0]);
            self.push(&call, form);
        }
        self.pipeline.push(["PTTL", &key].iter());
        self.pipeline.push(["HGETALL", &key].iter());
        let twin = twin_key(&key);
        let deleted = ["DEL", &key, &twin].into_iter();
        let deleted: Vec<_> = deleted
            .chain(era_keys.values().map(String::as_str))
            .collect();
        self.pipeline.push(deleted.iter());
        let mut replies = self.pipeline.replies().into_iter().skip(era_keys.len());
        let answers = steps.map(|step| {
            let reply = replies.next().expect("one for each");
            decode_reply(step.broker, &step.lock, &step.verb, reply)
        });
        let answers = answers.collect();
        let pttl = replies.next().and_then(|pttl| pttl.as_i64());
        let fields = replies.next().expect("HGETALL answers").into_array();
        let text = |value: &Value| value.as_string().expect("fields are text");
        let record = FinalRecord {
            pttl_ms: pttl.expect("PTTL answers a number"),
            fields: fields
                .chunks(2)
                .map(|field| (text(&field[0]), text(&field[1])))
                .collect(),
        };
        (answers, record)
    }

    /// Adds a command to the pipeline.
    pub fn push(&mut self, call: &ScriptCall<'_>, form: KeyForm<'_>) {
        let (verb, command) = self.command(call, form);
        let text = |value: &Value| {
            value
                .as_bytes_str()
                .expect("arguments are text")
                .to_string()
        };
        let lock = &command.keys[0];
        let keys = match form {
            KeyForm::Node { era_key } => vec![lock.clone(), era_key.to_owned(), twin_key(lock)],
            KeyForm::Cluster => vec![lock.clone()],
        };
        let mut words = vec!["EVALSHA".to_owned(), self.digests[verb as usize].clone()];
        words.push(keys.len().to_string());
        words.extend(keys);
        let (preamble, of_lock) = command.args.split_at(PREAMBLE_ARGS);
        words.extend(preamble.iter().map(text));
        for part in [call.now_us / 1_000_000, call.now_us % 1_000_000] {
            words.extend(of_lock.iter().map(text));
            words.push(part.to_string());
        }
        self.pipeline.push(words.iter());
    }

    /// Returns how many commands of a verb were plain cases, and how many were other cases. The
    /// scripts must handle the plain cases apart.
    pub fn case_counts(&mut self, verb: scripts::Verb) -> CaseCounts {
        let [plain, other] = ["plain", "other"].map(|case| {
            let count = self
                .pipeline
                .command(&["GET", &count_key(&self.prefix, verb, case)]);
            count
                .as_string()
                .map_or(0, |count| count.parse().expect("a count"))
        });
        CaseCounts { plain, other }
    }

    /// Returns the pipeline and the prefix of the keys.
    pub fn pipeline(&mut self) -> (&mut Pipeline, &str) {
        (&mut self.pipeline, &self.prefix)
    }

    fn command(&self, call: &ScriptCall<'_>, form: KeyForm<'_>) -> (scripts::Verb, Command) {
        let preamble = Preamble {
            key_prefix: &self.prefix,
            broker: call.broker,
            not_after_ms: call.not_after_ms,
            era_id: call.era_id,
            era_tag: match form {
                KeyForm::Node { .. } => None,
                KeyForm::Cluster => Some(SLOT_TAG),
            },
            is_sharded: matches!(form, KeyForm::Cluster),
            is_watched: false,
        };
        with_call!(call.command, call.lock, self.bounds, |script_call, _| {
            let can_notify = matches!(
                call.command,
                StoreCommand::Release(..)
                    | StoreCommand::Cancel(..)
                    | StoreCommand::Revoke(_)
                    | StoreCommand::Close(_)
                    | StoreCommand::Open
            );
            let script_call = match call.notifies_release && can_notify {
                true => script_call.with_release_notification(),
                false => script_call,
            };
            (script_call.verb(), script_call.command(&preamble))
        })
    }

    /// Adds a command for each era of the steps, which stores the era, or none. Returns their keys.
    fn push_eras<'a>(
        &mut self,
        steps: impl Iterator<Item = &'a Step>,
    ) -> BTreeMap<Option<String>, String> {
        let mut keys = BTreeMap::new();
        for era in steps.map(era_text) {
            if !keys.contains_key(&era) {
                let key = format!("{}era:{}", self.prefix, keys.len());
                match &era {
                    Some(text) => self.pipeline.push(["SET", &key, text].iter()),
                    None => self.pipeline.push(["DEL", &key].iter()),
                }
                keys.insert(era, key);
            }
        }
        keys
    }
}

fn count_key(prefix: &str, verb: scripts::Verb, case: &str) -> String {
    format!("{prefix}count:{verb:?}:{case}")
}

/// Returns the text that runs the plain case of a verb, if it has one, and counts the cases.
fn counted_plain_call(prefix: &str, verb: scripts::Verb) -> String {
    let [plain, other] = ["plain", "other"].map(|case| count_key(prefix, verb, case));
    format!(
        "{PLAIN_CALL}  if plain then redis.call('INCR', reply and '{plain}' or '{other}') end\n"
    )
}

/// Returns the text of the era that the store holds at a step, if it holds one.
fn era_text(step: &Step) -> Option<String> {
    let era = match step.era {
        Era::Verified => format!("{ERA_ID}|0|2|fields"),
        Era::Recovering => format!("{ERA_ID}|{RECOVERED_MS}|2|fields"),
        Era::Other => "another|0|2|fields".to_owned(),
        Era::Absent => return None,
    };
    let era = match step.token_floor {
        Some(floor) => format!("{era}|token:{}", floor.get()),
        None => era,
    };
    Some(match step.span_limit {
        SpanLimit::Changing {
            before_ms,
            after_ms,
            at_ms,
        } => format!("{era}|span:{before_ms}:{after_ms}:{at_ms}|more"),
        SpanLimit::None | SpanLimit::Min => era,
    })
}

/// Returns the text of a script with other bounds.
fn with_bounds(text: &str, bounds: Bounds) -> String {
    let Bounds {
        holders_max,
        entries_max,
        attempts_max,
        touch_slots_max,
        expirations_max,
        tombstones_max,
        released_max,
        expired_max,
        ..
    } = bounds;
    assert_eq!(
        text.matches(COMMAND_BOUNDS).count(),
        1,
        "the bounds stand once"
    );
    let names = COMMAND_BOUNDS.split(" = ").next().unwrap_or_default();
    let text = text.replace(
        COMMAND_BOUNDS,
        &format!("{names} = 256, 64, 31, {touch_slots_max}, {expirations_max}\n"),
    );
    let bounds = [
        ("HOLDERS_MAX", u64::try_from(holders_max)),
        ("ENTRIES_MAX", u64::try_from(entries_max)),
        ("ATTEMPTS_MAX", u64::try_from(attempts_max)),
        ("TOMBSTONES_MAX", u64::try_from(tombstones_max)),
        ("RELEASED_MAX", Ok(released_max)),
        ("EXPIRED_MAX", Ok(expired_max)),
    ];
    bounds.into_iter().fold(text, |text, (name, bound)| {
        text.replace(name, &bound.expect("a small bound").to_string())
    })
}

/// Returns the key of a lock's twin.
#[must_use]
pub fn twin_key(key: &str) -> String {
    format!("twin:{key}")
}

/// Returns the reply to a command that ran for a lock and for its twin.
#[must_use]
pub fn decode_reply(
    broker: BrokerId,
    lock: &LockKey,
    command: &StoreCommand,
    reply: Value,
) -> StepResult {
    let failed = |reason: String| (StoreReply::Failed(reason), Vec::new());
    if let Value::String(error) = &reply {
        return failed(error.to_string());
    }
    let twins = reply.into_array();
    let [reply, twin] = <[Value; 2]>::try_from(twins).expect("an answer for each");
    if reply != twin {
        return failed(format!("the twins differ: {reply:?}, {twin:?}"));
    }
    decode_single_reply(broker, lock, command, reply)
}

/// Returns the reply to a command that ran for one lock.
#[must_use]
pub fn decode_single_reply(
    me: BrokerId,
    lock: &LockKey,
    command: &StoreCommand,
    reply: Value,
) -> StepResult {
    if let Value::String(error) = &reply {
        return (StoreReply::Failed(error.to_string()), Vec::new());
    }
    with_call!(command, lock, Bounds::default(), |script_call, as_reply| {
        into_step_result(script_call.decode(reply, me), as_reply)
    })
}

fn into_step_result<T>(
    answer: Result<redis::ScriptReply<T>, StoreError>,
    as_answer: fn(Result<Outcome<T>, Rejected>) -> StoreReply,
) -> StepResult {
    match answer {
        Ok(answer) => (as_answer(answer.outcome), answer.ended),
        Err(error) => (StoreReply::Failed(error.to_string()), Vec::new()),
    }
}
