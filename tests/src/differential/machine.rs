//! Runs the steps of a sequence on the scripts, in one go: each step for the lock and for a twin of it, which
//! must fare the same.

use std::{cell::RefCell, net::SocketAddr};

use fred::types::Value;
use leasehold_server::{
    lock::SHOWN_MAX,
    store::{
        Outcome, Refused, StoreError,
        redis::{
            self, decode,
            scripts::{self, Command, Preamble, Scripts},
        },
    },
};

use super::{
    Told,
    pipeline::Pipeline,
    steps::{
        ATTEMPTS_MAX, Answer, ENDS_MAX, ENTRIES_MAX, Era, HOLDERS_MAX, RECOVERED_MS, Step,
        TOLD_SLOTS_MAX, Verb, WAITERS_MAX,
    },
};

const ERA_ID: &str = "theverifiedera";
/// The line of the scripts that reads the clock, and the one that takes the time of the step: one part
/// follows the arguments of the lock, the other those of its twin.
const CLOCK: [&str; 2] = [
    "local t = redis.call('TIME')\n",
    "local t = { ARGV[3 + (#ARGV - 3) / 2], ARGV[#ARGV] }\n",
];
/// What a command says before the arguments of a lock.
const PREAMBLE: usize = 3;

/// The line of the scripts that bounds the holders, a lease's entries, and the attempts of a request.
const BOUNDS: &str = "local HOLDERS_MAX, ENTRIES_MAX, ATTEMPTS_MAX, TOLD_SLOTS_MAX, ENDS_MAX = 1000, 64, 8, 256, 128\n";

/// The scripts under injected time, and keys of their own.
pub struct Machine {
    pipeline: Pipeline,
    /// In the order of the verbs.
    digests: Vec<String>,
    prefix: String,
}

impl Machine {
    /// Loads the scripts after `edit`, which may break them.
    pub fn new(addr: SocketAddr, edit: impl Fn(&str) -> String) -> Self {
        let mut pipeline = Pipeline::connect(addr);
        let texts = RefCell::new(Vec::new());
        Scripts::edited(|_, text| {
            assert_eq!(
                text.matches(CLOCK[0]).count(),
                1,
                "the clock is read in one line"
            );
            assert_eq!(text.matches(BOUNDS).count(), 1, "bounds stand once");
            let text = text.replace(CLOCK[0], CLOCK[1]);
            let bounds = [
                HOLDERS_MAX,
                ENTRIES_MAX,
                ATTEMPTS_MAX,
                TOLD_SLOTS_MAX,
                ENDS_MAX,
            ]
            .map(|most| most.to_string());
            let bounds = bounds.join(", ");
            let bounds = format!(
                "{} = {bounds}\n",
                BOUNDS.split(" = ").next().unwrap_or_default()
            );
            let edited = edit(&text.replace(BOUNDS, &bounds));
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

    /// The scripts' answers, and the record's PTTL after them: -2 if there is none.
    pub fn run<'a>(&mut self, steps: impl Iterator<Item = &'a Step> + Clone) -> (Vec<Told>, i64) {
        let mut key = String::new();
        for step in steps.clone() {
            let (verb, mut command) = self.command(step);
            command.keys[1] = self.era_key(step.era);
            key.clone_from(&command.keys[0]);
            let time = [step.now_us / 1_000_000, step.now_us % 1_000_000];
            self.push(verb, &command, time);
        }
        self.pipeline.push(["PTTL", &key].iter());
        self.pipeline.push(["DEL", &key, &twin_of(&key)].iter());
        let mut replies = self.pipeline.replies().into_iter();
        let answers = steps.map(|step| told(step, replies.next().expect("one for each")));
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
            Verb::Acquire(acquire) => (
                scripts::Verb::Acquire,
                preamble.acquire(acquire, WAITERS_MAX),
            ),
            Verb::Renew(lease, ttl, via) => {
                (scripts::Verb::Renew, preamble.renew(lease, *ttl, *via))
            }
            Verb::Attach(lease, to) => (scripts::Verb::Attach, preamble.attach(lease, *to)),
            Verb::Release(lease, what, via) => {
                (scripts::Verb::Release, preamble.release(lease, *what, *via))
            }
            Verb::Cancel(request, attempt) => (
                scripts::Verb::Cancel,
                preamble.cancel(&step.lock, *request, *attempt),
            ),
            Verb::Touch(from) => (scripts::Verb::Touch, preamble.touch(&step.lock, *from)),
            Verb::SetLimit(limit) => (
                scripts::Verb::SetLimit,
                preamble.set_limit(&step.lock, *limit),
            ),
            Verb::Revoke(revoke) => (scripts::Verb::Revoke, preamble.revoke(revoke)),
            Verb::Get => (scripts::Verb::Get, preamble.get(&step.lock, SHOWN_MAX)),
            Verb::Check(token) => (scripts::Verb::Check, preamble.check(&step.lock, *token)),
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
        let keys: Vec<_> = keys.chain([twin_of(&command.keys[0])]).collect();
        words.push(keys.len().to_string());
        words.extend(keys);
        let (preamble, of_lock) = command.args.split_at(PREAMBLE);
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

/// The key of a lock's twin.
fn twin_of(key: &str) -> String {
    format!("twin:{key}")
}

fn told(step: &Step, reply: Value) -> Told {
    let failed = |why: String| (Answer::Failed(why), Vec::new());
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
        Verb::Acquire(_) => read(decode::acquired(reply, me), Answer::Acquire),
        Verb::Renew(..) => read(decode::renewed(reply, me), Answer::Renew),
        Verb::Attach(..) => read(decode::attached(reply, me), Answer::Attach),
        Verb::Release(..) => read(decode::released(reply, me), Answer::Release),
        Verb::Cancel(..) => read(decode::cancelled(reply, me), Answer::Cancel),
        Verb::Touch(_) => read(decode::touched(reply, me), Answer::Touch),
        Verb::SetLimit(_) => read(decode::limit_set(reply, me), Answer::SetLimit),
        Verb::Revoke(_) => read(decode::revoked(reply, me), Answer::Revoke),
        Verb::Check(_) => read(decode::checked(reply, me), Answer::Check),
        Verb::Get => read(decode::state(reply, me), Answer::Get),
    }
}

fn read<T>(
    answer: Result<redis::Answer<T>, StoreError>,
    as_answer: fn(Result<Outcome<T>, Refused>) -> Answer,
) -> Told {
    match answer {
        Ok(answer) => (as_answer(answer.outcome), answer.ended),
        Err(error) => (Answer::Failed(error.to_string()), Vec::new()),
    }
}
