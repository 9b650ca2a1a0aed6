//! Cost of Redis and fred alone: the broker's own scripts with the same arguments, without a
//! broker.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use fred::prelude::*;
use fred::types::RespVersion;
use fred::types::config::TcpConfig;
use leasehold_server::lock::{
    AcquireCommand, ArgumentsHash, AttemptId, BrokerId, COMMAND_DEADLINE_MS, ExpectedAttachment,
    LeaseBinding, LeaseId, LeaseOptions, LeaseRef, Limits, LockKey, LockName, Mode, Namespace,
    Owner, ReleaseScope, RequestId, WAITERS_MAX,
};
use leasehold_server::store::Acquired;
use leasehold_server::store::redis::ScriptReply;
use leasehold_server::store::redis::scripts::{Command, Preamble, Scripts as Texts, Verb, calls};
use leasehold_tests::broker::process::KEY_PREFIX;
use leasehold_tests::store_fixture::released_now;

use crate::grpc::lock_name;
use crate::pairs::{self, Pair, Sample};

/// A single connection, as a broker has for its commands.
#[derive(Clone)]
pub(crate) struct Scripts {
    client: Client,
    acquire: String,
    release: String,
    era_id: String,
    me: BrokerId,
}

pub(crate) struct Caller {
    scripts: Scripts,
    lock: LockKey,
}

impl Scripts {
    /// Connects to a store that `init-store` has prepared.
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        let server = ServerConfig::new_centralized(addr.ip().to_string(), addr.port());
        let config = Config {
            server,
            version: RespVersion::RESP3,
            ..Config::default()
        };
        let mut builder = Builder::from_config(config);
        builder.with_connection_config(|connection| {
            connection.tcp = TcpConfig {
                nodelay: Some(true),
                ..TcpConfig::default()
            };
        });
        let client = builder.build().expect("a client");
        client
            .init()
            .await
            .expect("connect to the Redis of this run");
        let era: String = client
            .get(format!("{KEY_PREFIX}era"))
            .await
            .expect("read the era");
        let (era_id, _) = era.split_once('|').expect("an era begins with its id");
        Self {
            acquire: load(&client, Verb::Acquire).await,
            release: load(&client, Verb::Release).await,
            era_id: era_id.to_owned(),
            me: BrokerId::random(),
            client,
        }
    }

    fn preamble(&self) -> Preamble<'_> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a clock after 1970");
        let now_ms = u64::try_from(now.as_millis()).expect("a clock of this age");
        let not_after_ms = now_ms + COMMAND_DEADLINE_MS;
        Preamble {
            key_prefix: KEY_PREFIX,
            broker: self.me,
            not_after_ms,
            era_id: &self.era_id,
            era_tag: None,
            is_sharded: false,
            is_watched: false,
        }
    }

    async fn run(&self, sha: &str, command: Command) -> Value {
        self.client
            .evalsha(sha, command.keys, command.args)
            .await
            .expect("a script runs")
    }
}

impl Pair for Caller {
    async fn pair(&mut self) {
        let request = RequestId::random().hash();
        let acquire = AcquireCommand {
            lock: self.lock.clone(),
            mode: Mode::Exclusive,
            binding: LeaseBinding::New,
            stream: None,
            lease_id: LeaseId::parse(request.as_str()).expect("both are 128 bits in base32"),
            request,
            arguments: ArgumentsHash::of(&[b"bench"]),
            attempt: AttemptId::random(),
            options: LeaseOptions::default(),
            ttl: Limits::default().ttl(None),
            wait_ms: 0,
            owner: Owner {
                id: "bench".to_owned(),
                ..Owner::default()
            },
            rejoin: false,
        };
        let call = calls::acquire(&acquire, WAITERS_MAX);
        let command = call.command(&self.scripts.preamble());
        let value = self.scripts.run(&self.scripts.acquire, command).await;
        let Acquired::Granted(grant) = reply(call.decode(value, self.scripts.me)) else {
            panic!("the caller's own lock is free");
        };
        let lease = LeaseRef {
            lock: self.lock.clone(),
            lease_id: acquire.lease_id,
            fencing_token: grant.fencing_token,
        };
        let call = calls::release(&lease, ReleaseScope::All, ExpectedAttachment::Any);
        let command = call.command(&self.scripts.preamble());
        let value = self.scripts.run(&self.scripts.release, command).await;
        assert_eq!(reply(call.decode(value, self.scripts.me)), released_now(0));
    }
}

/// Runs one round of `callers`.
pub(crate) async fn pairs(scripts: &Scripts, callers: usize) -> Sample {
    pairs::run(of(scripts, callers)).await
}

/// Returns `callers` callers, each with its own lock.
pub(crate) fn of(scripts: &Scripts, callers: usize) -> Vec<Caller> {
    let namespace = Namespace::parse("").expect("the default namespace");
    let caller = |at| {
        let name = LockName::parse(&lock_name(at)).expect("a legal name");
        Caller {
            scripts: scripts.clone(),
            lock: LockKey::new(namespace.clone(), name),
        }
    };
    (0..callers).map(caller).collect()
}

async fn load(client: &Client, verb: Verb) -> String {
    let text = Mutex::new(String::new());
    Texts::edited(|of, standard| {
        if of == verb {
            text.lock().expect("one thread").push_str(standard);
        }
        standard.to_owned()
    });
    let text = text.into_inner().expect("one thread");
    client.script_load(text).await.expect("load a script")
}

fn reply<T: std::fmt::Debug, E: std::fmt::Debug>(answer: Result<ScriptReply<T>, E>) -> T {
    answer
        .expect("an answer")
        .outcome
        .expect("the store serves")
        .reply
}
