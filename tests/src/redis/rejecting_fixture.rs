//! A broker on a Redis that is made to reject commands. Tests check the errors that callers
//! receive, the commands that Redis receives, and the time until recovery.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::{
    ErrorReason, Lock, LockRef, ReleaseResponse, SetLockLimitRequest,
    lock_service_client::LockServiceClient,
};
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_types::StatusExt as _;

use crate::broker::process::{BrokerOptions, BrokerProcess, KEY_PREFIX};
use crate::client::unary::{AcquireCall, Client, HeldLease, channel};
use crate::redis::connection::{RedisConnection, Reply};
use crate::redis::server::RedisServer;
use crate::status::error_reason;

/// Machine-readable part of an error: code, reason, retry delay.
pub type ErrorSummary = (Code, Option<ErrorReason>, Option<Duration>);
/// Results of the same call for many locks.
pub type CallResults<T> = Vec<Result<T, Status>>;

/// Error while the store cannot be used.
pub const UNAVAILABLE: ErrorSummary = (
    Code::Unavailable,
    Some(ErrorReason::StoreUnavailable),
    Some(Duration::from_secs(1)),
);
/// Error if the store has no memory for the command.
pub const STORE_FULL: ErrorSummary = (
    Code::ResourceExhausted,
    Some(ErrorReason::StoreFull),
    Some(Duration::from_secs(5)),
);
/// Error if the record in the store is unreadable.
pub const INTERNAL: ErrorSummary = (Code::Internal, Some(ErrorReason::Internal), None);
/// Error for a lock without a record.
pub const LEASE_NOT_FOUND: ErrorSummary = (Code::NotFound, Some(ErrorReason::LeaseNotFound), None);

/// Upper bound of the time until concurrent calls return. One call returns within a second whatever
/// the store does, but many calls may take longer on a busy machine.
const CALLS_TIMEOUT: Duration = Duration::from_secs(3);
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(60);

/// Commands and connections that Redis has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandCounts {
    /// Scripts run with `EVALSHA`, including rejected ones.
    pub scripts: usize,
    /// Scripts loaded with `SCRIPT LOAD`.
    pub loads: usize,
    pub connections: usize,
}

/// A broker, its Redis, and connections to both.
#[derive(Debug)]
pub struct RejectingRedisFixture {
    pub broker: BrokerProcess,
    pub redis: RedisServer,
    /// Connection that was opened before the first fault.
    pub raw: RedisConnection,
    pub client: Client,
}

impl RejectingRedisFixture {
    /// Starts a broker with default settings.
    pub async fn start() -> Self {
        let redis = RedisServer::start().await;
        let options = BrokerOptions::for_store(redis.url());
        Self::start_on(redis, &options).await
    }

    /// Starts a broker on this Redis with settings, given without `LEASEHOLD__`.
    pub async fn start_with(redis: RedisServer, settings: &[(&str, &str)]) -> Self {
        let mut options = BrokerOptions::for_store(redis.url());
        let setting = |(key, value): &(&str, &str)| (format!("LEASEHOLD__{key}"), (*value).into());
        options.env = settings.iter().map(setting).collect();
        Self::start_on(redis, &options).await
    }

    /// Starts a broker with `options` on this empty Redis.
    pub async fn start_on(redis: RedisServer, options: &BrokerOptions) -> Self {
        options.init_store().await;
        let raw = redis.connect().await;
        let broker = BrokerProcess::start(options).await;
        let client = Client::new("caller", &[broker.addr()], 0);
        let probe = client.get_lock_at(0, "nobody-s").await;
        assert_eq!(
            error_summary(&probe.expect_err("no caller knows it")),
            LEASE_NOT_FOUND
        );
        Self {
            broker,
            redis,
            raw,
            client,
        }
    }

    /// Acquires all locks concurrently, without waiting.
    pub async fn acquire_all(&self, locks: &[String]) -> CallResults<HeldLease> {
        let calls = locks
            .iter()
            .map(|lock| AcquireCall::new(lock, TTL, Duration::ZERO));
        let calls: Vec<_> = calls.collect();
        let answers = calls.iter().map(|call| self.client.acquire_at(0, call));
        within_timeout(join_all(answers)).await
    }

    /// Renews all leases concurrently.
    pub async fn renew_all(&self, held: &[HeldLease]) -> CallResults<HeldLease> {
        let answers = held.iter().map(|held| self.client.renew_at(0, held));
        within_timeout(join_all(answers)).await
    }

    /// Releases all leases concurrently.
    pub async fn release_all(&self, held: &[HeldLease]) -> CallResults<ReleaseResponse> {
        let answers = held.iter().map(|held| self.client.release_at(0, held));
        within_timeout(join_all(answers)).await
    }

    /// Gets the states of all locks concurrently.
    pub async fn get_all(&self, locks: &[String]) -> CallResults<Lock> {
        let answers = locks.iter().map(|lock| self.client.get_lock_at(0, lock));
        within_timeout(join_all(answers)).await
    }

    /// Sets the limit of a semaphore to 3.
    pub async fn set_limit(&self, lock: &str) -> Result<(), Status> {
        let lock = LockRef {
            name: lock.to_owned(),
            ..LockRef::default()
        };
        let request = SetLockLimitRequest {
            lock: Some(lock),
            limit: 3,
        };
        let mut locks = LockServiceClient::new(channel(self.broker.addr()));
        locks.set_lock_limit(request).await.map(drop)
    }

    /// Sends acquires, renewals, releases and reads concurrently, at most as many as there are
    /// leases, and asserts that all fail with `expected`.
    pub async fn expect_all_rejected(&self, held: &[HeldLease], expected: ErrorSummary) {
        let (renewed, released) = held.split_at(held.len() / 2);
        let others = numbered_names("refused", renewed.len() / 2);
        let (acquires, renews, releases, looks) = tokio::join!(
            self.acquire_all(&others),
            self.renew_all(&renewed[..others.len()]),
            self.release_all(&released[..others.len()]),
            self.get_all(&others),
        );
        assert_all_failed(acquires, expected);
        assert_all_failed(renews, expected);
        assert_all_failed(releases, expected);
        assert_all_failed(looks, expected);
    }

    /// Waits until an acquire is granted and returns the time that it took.
    pub async fn wait_for_recovery(&self) -> Duration {
        let start = Instant::now();
        loop {
            let call = AcquireCall::new("recovered", TTL, Duration::ZERO);
            if let Ok(held) = self.client.acquire_at(0, &call).await {
                let took = start.elapsed();
                let released = self.client.release_at(0, &held).await;
                released.expect("the store takes commands again");
                return took;
            }
            assert!(start.elapsed() < RECOVERY_TIMEOUT, "{}", self.broker.log());
        }
    }

    /// Asserts that the broker reports that it serves and has not panicked.
    pub async fn assert_healthy(&self) {
        let mut health = HealthClient::new(channel(self.broker.addr()));
        let check = health.check(HealthCheckRequest::default()).await;
        let status = check.expect("health answers").into_inner().status();
        assert_eq!(status, ServingStatus::Serving);
        assert!(!self.broker.log().contains("panicked"));
    }

    /// Returns the number of log lines that contain `text`.
    #[must_use]
    pub fn count_log_lines(&self, text: &str) -> usize {
        let log = self.broker.log();
        log.lines().filter(|line| line.contains(text)).count()
    }

    /// Returns true if the broker has logged that a connection was lost or could not be opened.
    #[must_use]
    pub fn has_logged_lost_connection(&self) -> bool {
        self.count_log_lines("is lost") > 0
    }

    /// Returns the totals since Redis started.
    pub async fn command_counts(&mut self) -> CommandCounts {
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
        CommandCounts {
            scripts,
            loads,
            connections: connections
                .and_then(|count| count.parse().ok())
                .expect("INFO counts connections"),
        }
    }

    /// Returns the key of a lock's record.
    #[must_use]
    pub fn record_key(lock: &str) -> String {
        format!("{KEY_PREFIX}{{default:{lock}}}")
    }
}

impl CommandCounts {
    /// Returns the difference to an earlier total.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            scripts: self.scripts - before.scripts,
            loads: self.loads - before.loads,
            connections: self.connections - before.connections,
        }
    }
}

/// Returns `count` lock names.
#[must_use]
pub fn numbered_names(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{what}-{index}")).collect()
}

/// Asserts that every call succeeded, and returns the results.
pub fn expect_all_ok<T>(answers: CallResults<T>) -> Vec<T> {
    let answers = answers.into_iter();
    answers.map(|answer| answer.expect("it is done")).collect()
}

/// Returns the machine-readable part of a status.
#[must_use]
pub fn error_summary(status: &Status) -> ErrorSummary {
    let retry = status.get_details_retry_info();
    let retry = retry.map(|info| info.retry_delay.expect("a delay"));
    (status.code(), error_reason(status), retry)
}

/// Asserts that every call failed with `expected`, and that the message names the lock but quotes
/// no error of Redis.
pub fn assert_all_failed<T>(answers: CallResults<T>, expected: ErrorSummary) {
    assert!(!answers.is_empty(), "no call was made");
    for answer in answers {
        let status = answer.err().expect("a refusal");
        assert_eq!(error_summary(&status), expected, "{status}");
        let message = status.message();
        assert!(message.starts_with("lock default/"), "{message}");
        let quoted = ["script", "user_script", "ERR ", "OOM", "MISCONF", "BUSY"];
        assert!(
            !quoted.iter().any(|word| message.contains(word)),
            "{message}"
        );
    }
}

/// Repeats a command until Redis rejects it with an error that begins with `word`, and returns the
/// error.
pub async fn repeat_until_rejected(
    redis: &mut RedisConnection,
    command: &[&str],
    word: &str,
) -> String {
    let start = Instant::now();
    loop {
        let reply = redis.command(command).await.expect("Redis answers");
        if let Reply::Error(text) = &reply
            && text.starts_with(word)
        {
            return text.clone();
        }
        assert!(start.elapsed() < RECOVERY_TIMEOUT, "{command:?}: {reply:?}");
    }
}

/// Repeats a command until Redis accepts it.
pub async fn repeat_until_accepted(redis: &mut RedisConnection, command: &[&str]) {
    let start = Instant::now();
    while let Reply::Error(text) = redis.command(command).await.expect("Redis answers") {
        assert!(start.elapsed() < RECOVERY_TIMEOUT, "{command:?}: {text}");
    }
}

async fn within_timeout<T>(answers: impl Future<Output = T>) -> T {
    let answers = timeout(CALLS_TIMEOUT, answers).await;
    answers.expect("every call is answered within a second")
}
