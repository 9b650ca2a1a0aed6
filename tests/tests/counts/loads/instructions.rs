//! Instructions of Redis for each verb.

use std::{
    env::consts::ARCH,
    fmt::Debug,
    time::{SystemTime, UNIX_EPOCH},
};

use fred::types::Value;
use leasehold_server::{
    lock::{
        BrokerId, COMMAND_DEADLINE_MS, ExpectedAttachment, LeaseRef, ReleaseScope, WAITERS_MAX,
    },
    store::{
        Acquired,
        redis::{
            init::init_store,
            scripts::{Command, Preamble, ScriptCall, Scripts, calls},
        },
    },
};
use leasehold_tests::{
    differential::pipeline::Pipeline,
    redis::{callgrind::CallgrindRedis, shared_server::config_of},
    scale::print_figures,
    store_fixture::{lease_of, released_now},
};

use crate::{
    kept::{Count, INSTRUCTIONS, REDIS_BUILD},
    locks::{CALLS, acquires, attachment},
};

const KEY_PREFIX: &str = "lh:";
/// A script that never changes, to which the instructions of another version of the server are
/// related. It does what the verbs do, in about the same proportions: creates functions, and reads,
/// parses, joins and writes a record. Most instructions of the verbs are those of Lua. With a
/// snapshot of Valkey after 8.0, a script that only calls HSET and PEXPIRE is cheaper by 15 %, one
/// that does nothing by 28 %, but the verbs by only 5 %.
const REFERENCE_SCRIPT: &str = "local functions = {}
for n = 1, 30 do
    functions[n] = function(text) return n, functions, text end
end
local fields = {}
local record = redis.call('HMGET', KEYS[1], 'record')[1] or ARGV[1]
for field in string.gmatch(record, '[^|]+') do
    fields[#fields + 1] = tonumber(field) or field
end
redis.call('HSET', KEYS[1], 'record', table.concat(fields, '|'))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return fields";
const REFERENCE_RECORD: &str =
    "1|2|me|1796093017772651|10000|1073741824|l0000000000000000000000001|";
const REFERENCE: &str = "reference script";

/// A client of the scripts on a server that counts instructions.
struct CountedScripts {
    redis: CallgrindRedis,
    pipeline: Pipeline,
    /// Digests of the scripts, in the order of the verbs.
    digests: Vec<String>,
    broker: BrokerId,
    era_id: String,
}

/// Numbers of locks of a run: a call alone, and the largest batch of a broker.
const LOCKS_PER_RUN: [usize; 2] = [1, 16];

#[tokio::test]
async fn a_lock_costs_the_kept_number_of_instructions() {
    let mut scripts = CountedScripts::start().await;
    let mut measured = vec![scripts.reference().await];
    for locks_per_run in LOCKS_PER_RUN {
        // The first round creates the records of the locks.
        scripts.round(locks_per_run).await;
        measured.extend(scripts.round(locks_per_run).await);
    }
    let build = scripts.build();
    if build == REDIS_BUILD {
        INSTRUCTIONS.compare(&measured);
    } else {
        print_figures(&format!("counts: {build} instead of {REDIS_BUILD}"));
        INSTRUCTIONS.compare_relative(REFERENCE, &measured);
    }
}

impl CountedScripts {
    /// Starts a server with an era and the scripts.
    async fn start() -> Self {
        let redis = CallgrindRedis::start().await;
        let addr = redis.server().addr();
        let written = init_store(config_of(addr, KEY_PREFIX, true)).await;
        assert!(written.is_ok(), "{:?}", written.err());
        let mut pipeline = Pipeline::connect(addr);
        let era = text(pipeline.command(&["GET", &format!("{KEY_PREFIX}era")]));
        let (era_id, _) = era.split_once('|').expect("an era begins with its id");
        let scripts = Scripts::standard().all();
        let digests = scripts
            .iter()
            .map(|script| load(&mut pipeline, script.text()));
        Self {
            digests: digests.collect(),
            era_id: era_id.to_owned(),
            broker: BrokerId::random(),
            redis,
            pipeline,
        }
    }

    /// Returns the name and version of the server, and the architecture.
    fn build(&mut self) -> String {
        let info = text(self.pipeline.command(&["INFO", "server"]));
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        let (name, version) = match field("valkey_version:") {
            Some(version) => ("Valkey", version),
            None => ("Redis", field("redis_version:").expect("INFO says so")),
        };
        format!("{name} {version} on {ARCH}")
    }

    /// Counts the reference script, which creates each key before.
    async fn reference(&mut self) -> Count {
        let digest = load(&mut self.pipeline, REFERENCE_SCRIPT);
        let mut number = 0.0;
        for _ in 0..2 {
            self.redis.instructions().await;
            for call in 0..CALLS {
                let key = format!("reference:{call:05}");
                let words = ["EVALSHA", &digest, "1", &key, REFERENCE_RECORD, "10000"];
                let fields = self.pipeline.command(&words).into_array();
                assert_eq!(fields.len(), 7, "{fields:?}");
            }
            number = self.per_lock().await;
        }
        let name = REFERENCE.to_owned();
        Count { name, number }
    }

    /// Calls each verb for each lock. The lease that is attached is another one than the lease that
    /// is renewed.
    async fn round(&mut self, locks_per_run: usize) -> [Count; 4] {
        self.redis.instructions().await;
        let leases = self.acquire(locks_per_run);
        let acquire = self.per_lock().await;

        let via = ExpectedAttachment::Any;
        let calls = leases.iter().map(|lease| calls::renew(lease, None, via));
        for renewed in self.run(calls.collect(), locks_per_run) {
            assert!(renewed.is_ok(), "{renewed:?}");
        }
        let renew = self.per_lock().await;

        self.release(&leases, via, locks_per_run);
        let release = self.per_lock().await;

        let leases = self.acquire(locks_per_run);
        self.redis.instructions().await;
        let to = attachment(self.broker);
        let calls = leases.iter().map(|lease| calls::attach(lease, to));
        for attached in self.run(calls.collect(), locks_per_run) {
            assert!(attached.is_ok(), "{attached:?}");
        }
        let attach = self.per_lock().await;
        self.release(
            &leases,
            ExpectedAttachment::Stream(to.stream),
            locks_per_run,
        );

        let numbers = [
            ("acquire", acquire),
            ("renew", renew),
            ("attach", attach),
            ("release", release),
        ];
        numbers.map(|(verb, number)| Count {
            name: format!("{verb}, {locks_per_run} per run"),
            number,
        })
    }

    fn acquire(&mut self, locks_per_run: usize) -> Vec<LeaseRef> {
        let calls = acquires();
        let acquires = calls.iter().map(|call| calls::acquire(call, WAITERS_MAX));
        let replies = self.run(acquires.collect(), locks_per_run);
        let lease = |(call, reply)| {
            let Acquired::Granted(grant) = reply else {
                panic!("{reply:?} instead of a grant");
            };
            lease_of(call, grant.fencing_token)
        };
        calls.iter().zip(replies).map(lease).collect()
    }

    fn release(&mut self, leases: &[LeaseRef], via: ExpectedAttachment, locks_per_run: usize) {
        let release = |lease| calls::release(lease, ReleaseScope::All, via);
        for released in self.run(leases.iter().map(release).collect(), locks_per_run) {
            assert_eq!(released, released_now(0));
        }
    }

    /// Runs a script for several locks at a time, and returns the replies.
    fn run<T: Debug>(&mut self, calls: Vec<ScriptCall<T>>, locks_per_run: usize) -> Vec<T> {
        let mut replies = Vec::new();
        for batch in calls.chunks(locks_per_run) {
            let preamble = self.preamble();
            let commands = batch.iter().map(|call| call.command(&preamble));
            let Command { keys, args } = Command::merge(commands).expect("a batch is not empty");
            let digest = &self.digests[batch[0].verb() as usize];
            let mut words = vec!["EVALSHA".to_owned(), digest.clone(), keys.len().to_string()];
            words.extend(keys.into_iter().chain(args.into_iter().map(text)));
            self.pipeline.push(words.iter());
            let reply = self.pipeline.replies().remove(0);
            let replied = match batch.len() {
                1 => vec![reply],
                _ => reply.into_array(),
            };
            assert_eq!(replied.len(), batch.len(), "{replied:?}");
            replies.extend(batch.iter().zip(replied).map(|(call, reply)| {
                let reply = call.decode(reply, self.broker).expect("a reply");
                reply.outcome.expect("the store serves").reply
            }));
        }
        replies
    }

    fn preamble(&self) -> Preamble<'_> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = now.expect("a clock after 1970").as_millis();
        Preamble {
            key_prefix: KEY_PREFIX,
            broker: self.broker,
            not_after_ms: u64::try_from(now_ms).expect("a clock of this age") + COMMAND_DEADLINE_MS,
            era_id: &self.era_id,
            era_tag: None,
            is_sharded: false,
            is_watched: false,
        }
    }

    /// Returns the number of instructions since the last count, per lock.
    async fn per_lock(&mut self) -> f64 {
        self.redis.instructions().await as f64 / CALLS as f64
    }
}

fn load(pipeline: &mut Pipeline, script: &str) -> String {
    text(pipeline.command(&["SCRIPT", "LOAD", script]))
}

fn text(value: Value) -> String {
    value.into_string().expect("Redis replies with text")
}
