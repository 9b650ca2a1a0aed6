//! A broker on a Redis of its own that is made to refuse: what callers are told, what the broker
//! sends meanwhile, and how soon all is well again.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::{
    ErrorReason, Lock, LockRef, ReleaseResponse, SetLockLimitRequest,
    admin_service_client::AdminServiceClient,
};
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_types::StatusExt as _;

use crate::broker_process::{BrokerOptions, BrokerProcess, KEY_PREFIX};
use crate::client::{AcquireCall, Client, Held, channel};
use crate::redis_connection::{RedisConnection, Reply};
use crate::redis_server::RedisServer;
use crate::status::reason;

/// What a program reads of a refusal: code, reason, when to try again.
pub type Told = (Code, Option<ErrorReason>, Option<Duration>);
/// What became of the same call at many locks.
pub type Answers<T> = Vec<Result<T, Status>>;

/// The store cannot be used now.
pub const UNAVAILABLE: Told = (
    Code::Unavailable,
    Some(ErrorReason::StoreUnavailable),
    Some(Duration::from_secs(1)),
);
/// The store has no memory for it.
pub const FULL: Told = (
    Code::ResourceExhausted,
    Some(ErrorReason::StoreFull),
    Some(Duration::from_secs(5)),
);
/// What the store holds cannot be read.
pub const INTERNAL: Told = (Code::Internal, Some(ErrorReason::Internal), None);
/// Nobody knows the lock.
pub const IDLE: Told = (Code::NotFound, Some(ErrorReason::LeaseNotFound), None);

/// A call is answered within a second, whatever the store does; many together may take a busy machine
/// longer.
const PROMPT: Duration = Duration::from_secs(3);
const GIVE_UP: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(60);

/// What Redis was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Scripts run by their digest, also those that were refused.
    pub scripts: usize,
    /// Scripts loaded.
    pub loads: usize,
    /// Connections opened.
    pub connections: usize,
}

/// One broker, its Redis, and connections to both.
#[derive(Debug)]
pub struct Refusing {
    /// The broker.
    pub broker: BrokerProcess,
    /// Its store.
    pub redis: RedisServer,
    /// A connection that was opened before anything went wrong.
    pub raw: RedisConnection,
    /// A client of the broker.
    pub client: Client,
}

impl Refusing {
    /// Defaults.
    pub async fn start() -> Self {
        let redis = RedisServer::start().await;
        let options = BrokerOptions::on(redis.url());
        Self::start_on(redis, &options).await
    }

    /// A broker with these settings (`LEASEHOLD__` left away) on this Redis.
    pub async fn start_with(redis: RedisServer, settings: &[(&str, &str)]) -> Self {
        let mut options = BrokerOptions::on(redis.url());
        let setting = |(key, value): &(&str, &str)| (format!("LEASEHOLD__{key}"), (*value).into());
        options.env = settings.iter().map(setting).collect();
        Self::start_on(redis, &options).await
    }

    /// A broker with `options` on this empty Redis.
    pub async fn start_on(redis: RedisServer, options: &BrokerOptions) -> Self {
        options.init_store().await;
        let raw = redis.connect().await;
        let broker = BrokerProcess::start(options).await;
        let client = Client::new("caller", &[broker.addr()], 0);
        let probe = client.get_lock_at(0, "nobody-s").await;
        assert_eq!(told(&probe.expect_err("nobody knows it")), IDLE);
        Self {
            broker,
            redis,
            raw,
            client,
        }
    }

    /// Acquires each lock, without waiting, all at once.
    pub async fn acquires(&self, locks: &[String]) -> Answers<Held> {
        let calls = locks
            .iter()
            .map(|lock| AcquireCall::new(lock, TTL, Duration::ZERO));
        let calls: Vec<_> = calls.collect();
        let answers = calls.iter().map(|call| self.client.acquire_at(0, call));
        prompt(join_all(answers)).await
    }

    /// Renews each lease, all at once.
    pub async fn renews(&self, held: &[Held]) -> Answers<Held> {
        let answers = held.iter().map(|held| self.client.renew_at(0, held));
        prompt(join_all(answers)).await
    }

    /// Releases each lease, all at once.
    pub async fn releases(&self, held: &[Held]) -> Answers<ReleaseResponse> {
        let answers = held.iter().map(|held| self.client.release_at(0, held));
        prompt(join_all(answers)).await
    }

    /// Looks at each lock, all at once.
    pub async fn looks(&self, locks: &[String]) -> Answers<Lock> {
        let answers = locks.iter().map(|lock| self.client.get_lock_at(0, lock));
        prompt(join_all(answers)).await
    }

    /// Fixes the limit of a semaphore.
    pub async fn set_limit(&self, lock: &str) -> Result<(), Status> {
        let lock = LockRef {
            name: lock.to_owned(),
            ..LockRef::default()
        };
        let request = SetLockLimitRequest {
            lock: Some(lock),
            limit: 3,
        };
        let mut admin = AdminServiceClient::new(channel(self.broker.admin()));
        admin.set_lock_limit(request).await.map(drop)
    }

    /// Calls of all four kinds, together as many as there are leases, are refused so.
    pub async fn refuses_all(&self, held: &[Held], expected: Told) {
        let (renewed, released) = held.split_at(held.len() / 2);
        let others = names("refused", renewed.len() / 2);
        let (acquires, renews, releases, looks) = tokio::join!(
            self.acquires(&others),
            self.renews(&renewed[..others.len()]),
            self.releases(&released[..others.len()]),
            self.looks(&others),
        );
        assert_told(acquires, expected);
        assert_told(renews, expected);
        assert_told(releases, expected);
        assert_told(looks, expected);
    }

    /// Returns once an acquire is granted, with how long that took.
    pub async fn recovers(&self) -> Duration {
        let start = Instant::now();
        loop {
            let call = AcquireCall::new("recovered", TTL, Duration::ZERO);
            if let Ok(held) = self.client.acquire_at(0, &call).await {
                let took = start.elapsed();
                let released = self.client.release_at(0, &held).await;
                released.expect("the store takes commands again");
                return took;
            }
            assert!(start.elapsed() < GIVE_UP, "{}", self.broker.log());
        }
    }

    /// The process has run on without a panic, and says that it serves.
    pub async fn is_sound(&self) {
        let mut health = HealthClient::new(channel(self.broker.addr()));
        let check = health.check(HealthCheckRequest::default()).await;
        let status = check.expect("health answers").into_inner().status();
        assert_eq!(status, ServingStatus::Serving);
        assert!(!self.broker.log().contains("panicked"));
    }

    /// How many lines of the log contain this.
    #[must_use]
    pub fn logged(&self, text: &str) -> usize {
        let log = self.broker.log();
        log.lines().filter(|line| line.contains(text)).count()
    }

    /// Whether the broker has lost a connection, or could not open one.
    #[must_use]
    pub fn was_lost(&self) -> bool {
        self.logged("is lost") > 0
    }

    /// What Redis was sent since it started.
    pub async fn sent(&mut self) -> Sent {
        let stats = self.raw.must(&["INFO", "commandstats"]).await;
        let count = |command: &str| {
            let line = stats.text().lines().find_map(|line| {
                line.strip_prefix("cmdstat_")?
                    .strip_prefix(command)?
                    .strip_prefix(':')
            });
            let field = |name: &str| {
                let mut fields = line.unwrap_or_default().split(',');
                let value = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
                value.map_or(0, |value| value.parse().expect("a count"))
            };
            field("calls") + field("rejected_calls")
        };
        let (scripts, loads) = (count("evalsha"), count("script|load"));
        let connections = self.raw.info("stats", "total_connections_received").await;
        Sent {
            scripts,
            loads,
            connections: connections
                .and_then(|count| count.parse().ok())
                .expect("INFO counts connections"),
        }
    }

    /// The record of a lock.
    #[must_use]
    pub fn key(lock: &str) -> String {
        format!("{KEY_PREFIX}{{default:{lock}}}")
    }
}

impl Sent {
    /// What came after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            scripts: self.scripts - before.scripts,
            loads: self.loads - before.loads,
            connections: self.connections - before.connections,
        }
    }
}

/// So many names of locks.
#[must_use]
pub fn names(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{what}-{index}")).collect()
}

/// Every call succeeded.
pub fn done<T>(answers: Answers<T>) -> Vec<T> {
    let answers = answers.into_iter();
    answers.map(|answer| answer.expect("it is done")).collect()
}

/// What a program reads of a status.
#[must_use]
pub fn told(status: &Status) -> Told {
    let retry = status.get_details_retry_info();
    let retry = retry.map(|info| info.retry_delay.expect("a delay"));
    (status.code(), reason(status), retry)
}

/// Every call was refused so, in a sentence about its lock that quotes nothing of Redis.
pub fn assert_told<T>(answers: Answers<T>, expected: Told) {
    assert!(!answers.is_empty(), "no call was made");
    for answer in answers {
        let status = answer.err().expect("a refusal");
        assert_eq!(told(&status), expected, "{status}");
        let message = status.message();
        assert!(message.starts_with("lock default/"), "{message}");
        let quoted = ["script", "user_script", "ERR ", "OOM", "MISCONF", "BUSY"];
        assert!(
            !quoted.iter().any(|word| message.contains(word)),
            "{message}"
        );
    }
}

/// Returns once Redis answers a command with this error.
pub async fn until_refused(redis: &mut RedisConnection, command: &[&str], word: &str) -> String {
    let start = Instant::now();
    loop {
        let reply = redis.command(command).await.expect("Redis answers");
        if let Reply::Error(text) = &reply
            && text.starts_with(word)
        {
            return text.clone();
        }
        assert!(start.elapsed() < GIVE_UP, "{command:?}: {reply:?}");
    }
}

/// Returns once Redis takes a command.
pub async fn until_taken(redis: &mut RedisConnection, command: &[&str]) {
    let start = Instant::now();
    while let Reply::Error(text) = redis.command(command).await.expect("Redis answers") {
        assert!(start.elapsed() < GIVE_UP, "{command:?}: {text}");
    }
}

async fn prompt<T>(answers: impl Future<Output = T>) -> T {
    let answers = timeout(PROMPT, answers).await;
    answers.expect("every call is answered within a second")
}
