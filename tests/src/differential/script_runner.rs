//! Runs the steps of a sequence on the scripts in one pipeline. Each step runs for the lock and for
//! a twin of it, with equal replies.

use std::{cell::RefCell, net::SocketAddr};

use fred::types::Value;
use leasehold_server::{
    lock::INSPECT_ENTRIES_MAX,
    store::{
        Outcome, Rejected, StoreError,
        redis::{
            self, decode,
            scripts::{self, Command, Preamble, Scripts},
        },
    },
};

use super::{
    StepResult,
    pipeline::Pipeline,
    steps::{
        ATTEMPTS_MAX, ENTRIES_MAX, EXPIRATIONS_MAX, Era, HOLDERS_MAX, RECOVERED_MS, Step,
        StoreCommand, StoreReply, TOUCH_SLOTS_MAX, WAITERS_MAX,
    },
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

/// The line of the scripts that sets the bounds of holders, entries, attempts, slots of a touch,
/// and ends of a command.
const BOUNDS_LINE: &str = "local HOLDERS_MAX, ENTRIES_MAX, ATTEMPTS_MAX, REPORTED_SLOTS_MAX, EXPIRATIONS_MAX = 1000, 64, 8, 256, 128\n";

/// The scripts with injected time and a key prefix of their own.
pub struct ScriptRunner {
    pipeline: Pipeline,
    /// Digests of the scripts, in the order of the verbs.
    digests: Vec<String>,
    prefix: String,
}

impl ScriptRunner {
    /// Loads the scripts after `edit`, which may introduce mistakes.
    pub fn new(addr: SocketAddr, edit: impl Fn(&str) -> String) -> Self {
        let mut pipeline = Pipeline::connect(addr);
        let texts = RefCell::new(Vec::new());
        Scripts::edited(|_, text| {
            assert_eq!(
                text.matches(CLOCK_LINES[0]).count(),
                1,
                "the clock is read in one line"
            );
            assert_eq!(text.matches(BOUNDS_LINE).count(), 1, "bounds stand once");
            let text = text.replace(CLOCK_LINES[0], CLOCK_LINES[1]);
            let bounds = [
                HOLDERS_MAX,
                ENTRIES_MAX,
                ATTEMPTS_MAX,
                TOUCH_SLOTS_MAX,
                EXPIRATIONS_MAX,
            ]
            .map(|most| most.to_string());
            let bounds = bounds.join(", ");
            let bounds = format!(
                "{} = {bounds}\n",
                BOUNDS_LINE.split(" = ").next().unwrap_or_default()
            );
            let edited = edit(&text.replace(BOUNDS_LINE, &bounds));
            texts.borrow_mut().push(edited.clone());
            edited
        });
        let digests = texts.into_inner();
        let digests = digests
            .iter()
            .map(|text| pipeline.command(&["SCRIPT", "LOAD", text]));
        let digests = digests
            .map(|digest| digest.into_string().expect("a digest"))
            .collect();
        let prefix = format!("{}:", uuid::Uuid::new_v4());
        let mut machine = Self {
            pipeline,
            digests,
            prefix,
        };
        for (era, value) in [
            (Era::Verified, format!("{ERA_ID}|0|")),
            (Era::Recovering, format!("{ERA_ID}|{RECOVERED_MS}|")),
            (Era::Other, "another|0|".to_owned()),
        ] {
            let key = machine.era_key(era);
            machine.pipeline.command(&["SET", &key, &value]);
        }
        machine
    }

    /// Returns the replies of the scripts, and the record's PTTL after them: -2 if there is no
    /// record.
    pub fn run<'a>(
        &mut self,
        steps: impl Iterator<Item = &'a Step> + Clone,
    ) -> (Vec<StepResult>, i64) {
        let mut key = String::new();
        for step in steps.clone() {
            let (verb, mut command) = self.command(step);
            command.keys[1] = self.era_key(step.era);
            key.clone_from(&command.keys[0]);
            let time = [step.now_us / 1_000_000, step.now_us % 1_000_000];
            self.push(verb, &command, time);
        }
        self.pipeline.push(["PTTL", &key].iter());
        self.pipeline.push(["DEL", &key, &twin_key(&key)].iter());
        let mut replies = self.pipeline.replies().into_iter();
        let answers = steps.map(|step| decode_reply(step, replies.next().expect("one for each")));
        let answers = answers.collect();
        let pttl = replies.next().and_then(|pttl| pttl.as_i64());
        (answers, pttl.expect("PTTL answers a number"))
    }

    fn command(&self, step: &Step) -> (scripts::Verb, Command) {
        let preamble = Preamble {
            key_prefix: &self.prefix,
            broker: step.broker,
            not_after_ms: step.not_after_ms,
            era_id: ERA_ID,
            era_tag: None,
            is_sharded: false,
            is_watched: false,
        };
        match &step.verb {
            StoreCommand::Acquire(acquire) => (
                scripts::Verb::Acquire,
                preamble.acquire(acquire, WAITERS_MAX),
            ),
            StoreCommand::Renew(lease, ttl, via) => {
                (scripts::Verb::Renew, preamble.renew(lease, *ttl, *via))
            }
            StoreCommand::Attach(lease, to) => (scripts::Verb::Attach, preamble.attach(lease, *to)),
            StoreCommand::Release(lease, what, via) => {
                (scripts::Verb::Release, preamble.release(lease, *what, *via))
            }
            StoreCommand::Cancel(request, attempt) => (
                scripts::Verb::Cancel,
                preamble.cancel(&step.lock, *request, *attempt),
            ),
            StoreCommand::Touch(from) => (scripts::Verb::Touch, preamble.touch(&step.lock, *from)),
            StoreCommand::SetLimit(limit) => (
                scripts::Verb::SetLimit,
                preamble.set_limit(&step.lock, *limit),
            ),
            StoreCommand::Revoke(revoke) => (scripts::Verb::Revoke, preamble.revoke(revoke)),
            StoreCommand::Get => (
                scripts::Verb::Get,
                preamble.get(&step.lock, INSPECT_ENTRIES_MAX),
            ),
            StoreCommand::Check(token) => {
                (scripts::Verb::Check, preamble.check(&step.lock, *token))
            }
        }
    }

    fn push(&mut self, verb: scripts::Verb, command: &Command, time: [u64; 2]) {
        let text = |value: &Value| {
            value
                .as_bytes_str()
                .expect("arguments are text")
                .to_string()
        };
        let mut words = vec!["EVALSHA".to_owned(), self.digests[verb as usize].clone()];
        let keys = command.keys.iter().cloned();
        let keys: Vec<_> = keys.chain([twin_key(&command.keys[0])]).collect();
        words.push(keys.len().to_string());
        words.extend(keys);
        let (preamble, of_lock) = command.args.split_at(PREAMBLE_ARGS);
        words.extend(preamble.iter().map(text));
        for part in time {
            words.extend(of_lock.iter().map(text));
            words.push(part.to_string());
        }
        self.pipeline.push(words.iter());
    }

    fn era_key(&self, era: Era) -> String {
        format!("{}{era:?}", self.prefix)
    }
}

/// Returns the key of a lock's twin.
fn twin_key(key: &str) -> String {
    format!("twin:{key}")
}

fn decode_reply(step: &Step, reply: Value) -> StepResult {
    let failed = |reason: String| (StoreReply::Failed(reason), Vec::new());
    if let Value::String(error) = &reply {
        return failed(error.to_string());
    }
    let twins = reply.into_array();
    let [reply, twin] = <[Value; 2]>::try_from(twins).expect("an answer for each");
    if reply != twin {
        return failed(format!("the twins differ: {reply:?}, {twin:?}"));
    }
    let me = step.broker;
    match &step.verb {
        StoreCommand::Acquire(_) => {
            into_step_result(decode::acquired(reply, me), StoreReply::Acquire)
        }
        StoreCommand::Renew(..) => into_step_result(decode::renewed(reply, me), StoreReply::Renew),
        StoreCommand::Attach(..) => {
            into_step_result(decode::attached(reply, me), StoreReply::Attach)
        }
        StoreCommand::Release(..) => {
            into_step_result(decode::released(reply, me), StoreReply::Release)
        }
        StoreCommand::Cancel(..) => {
            into_step_result(decode::cancelled(reply, me), StoreReply::Cancel)
        }
        StoreCommand::Touch(_) => into_step_result(decode::touched(reply, me), StoreReply::Touch),
        StoreCommand::SetLimit(_) => {
            into_step_result(decode::limit_set(reply, me), StoreReply::SetLimit)
        }
        StoreCommand::Revoke(_) => into_step_result(decode::revoked(reply, me), StoreReply::Revoke),
        StoreCommand::Check(_) => into_step_result(decode::checked(reply, me), StoreReply::Check),
        StoreCommand::Get => into_step_result(decode::state(reply, me), StoreReply::Get),
    }
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
