//! The Redis store on real servers. Its clock is the server's clock plus a skew that the scripts
//! read from a key of the test.

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use leasehold_server::{
    lock::{BrokerId, FencingToken, LockKey},
    store::{
        Store,
        memory::context::SpanLimit,
        redis::{
            RedisStore, connection::RedisConfig, era::EraBounds, location::StoreLocation,
            scripts::Scripts,
        },
    },
};
use tokio::sync::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Backend, InitialState};
use crate::{
    redis::{
        connection::RedisConnection,
        shared_server::{MESSAGES_MAX, config_address, shared_redis},
    },
    sentinel::shared::shared_sentinel,
};

pub(super) const CLOCK_LINE: &str = "local t = redis.call('TIME')\n";
/// Subtracts elapsed time from the TTL of every record, because the expiry of Redis ignores the
/// skew.
pub(super) const AGE_SCRIPT: &str = "for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '{*')) do
  local pttl = redis.call('PTTL', key)
  if pttl >= 0 then redis.call('PEXPIRE', key, pttl - ARGV[2]) end
end
return redis.call('INCRBY', KEYS[1], ARGV[2])";

pub(super) struct RedisBackend {
    config: RedisConfig,
    skew_key: String,
    connection: Mutex<RedisConnection>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl RedisBackend {
    /// Returns the store on one server.
    pub(super) async fn server(start: InitialState) -> Self {
        let server = shared_redis();
        Self::new(start, StoreLocation::Server(config_address(server)), server).await
    }

    /// Returns the store on the master that Sentinel names.
    pub(super) async fn sentinel(start: InitialState) -> Self {
        let shared = shared_sentinel();
        Self::new(start, shared.place.clone(), shared.master).await
    }

    /// Returns a store at `place`, whose keys are on `server`.
    async fn new(start: InitialState, place: StoreLocation, server: SocketAddr) -> Self {
        let store_fixture = uuid::Uuid::new_v4();
        let connection = RedisConnection::open(server).await;
        Self {
            config: RedisConfig {
                key_prefix: format!("{store_fixture}:"),
                trust_empty_store: start == InitialState::Trusted,
                messages_max: MESSAGES_MAX,
                ..RedisConfig::at(place)
            },
            skew_key: format!("skew:{store_fixture}"),
            connection: Mutex::new(connection.expect("connect to the tests' Redis")),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }
}

/// Returns scripts whose clock is the server's clock plus the value of `skew_key` in milliseconds.
pub fn scripts_with_skew(skew_key: &str) -> Scripts {
    let skewed = format!(
        "local t = redis.call('TIME')
local skew = tonumber(redis.call('GET', '{skew_key}') or 0)
t[2] = t[2] + skew * 1000
not_after = not_after + skew
"
    );
    Scripts::edited(|_, text| {
        assert_eq!(
            text.matches(CLOCK_LINE).count(),
            1,
            "the clock is read in one line"
        );
        text.replace(CLOCK_LINE, &skewed)
    })
}

/// Removes a field from the era under `key`, and adds it at the end with another value.
pub(super) async fn replace_era_field(
    connection: &mut RedisConnection,
    key: &str,
    name: &str,
    value: &str,
) {
    let era = connection.must(&["GET", key]).await;
    let fields = era.text().split('|');
    let fields: Vec<_> = fields.filter(|field| !field.starts_with(name)).collect();
    let era = format!("{}|{name}{value}", fields.join("|"));
    connection.must(&["SET", key, &era]).await;
}

#[async_trait]
impl Backend for RedisBackend {
    async fn connect(&self, broker: BrokerId) -> Arc<dyn Store> {
        let (config, stop) = (self.config.clone(), self.stop.clone());
        let scripts = scripts_with_skew(&self.skew_key);
        let store = RedisStore::start(config, broker, scripts, &self.tasks, stop).await;
        Arc::new(store.expect("a Redis that can keep locks"))
    }

    async fn advance_ms(&self, ms: u64) {
        let mut connection = self.connection.lock().await;
        let ms = ms.to_string();
        connection
            .must(&[
                "EVAL",
                AGE_SCRIPT,
                "1",
                &self.skew_key,
                &self.config.key_prefix,
                &ms,
            ])
            .await;
    }

    async fn step_back_ms(&self, ms: u64) {
        let mut connection = self.connection.lock().await;
        connection
            .must(&["DECRBY", &self.skew_key, &ms.to_string()])
            .await;
    }

    async fn remove_ttl(&self, lock: &LockKey) {
        let key = format!("{}{}", self.config.key_prefix, lock.encoded());
        let mut connection = self.connection.lock().await;
        let lost = connection.must(&["PERSIST", &key]).await.integer();
        assert_eq!(lost, 1, "the record had a time to live");
    }

    fn quarantine_ms(&self) -> u64 {
        EraBounds::default().quarantine_ms()
    }

    /// Replaces the limit at the end of the era.
    async fn limit_spans(&self, limit: SpanLimit) {
        let SpanLimit::Changing {
            before_ms,
            after_ms,
            at_ms,
        } = limit
        else {
            panic!("{limit:?} is not a limit of an era");
        };
        let key = format!("{}era", self.config.key_prefix);
        let value = format!("{before_ms}:{after_ms}:{at_ms}");
        let mut connection = self.connection.lock().await;
        replace_era_field(&mut connection, &key, "span:", &value).await;
    }

    async fn set_token_floor(&self, _lock: &LockKey, floor: FencingToken) {
        let key = format!("{}era", self.config.key_prefix);
        let mut connection = self.connection.lock().await;
        replace_era_field(&mut connection, &key, "token:", &floor.get().to_string()).await;
    }

    /// Asserts that every key except the era and the deployment key has a time to live.
    async fn check_invariants(&self) {
        let mut connection = self.connection.lock().await;
        for (key, pttl) in connection.keys_with_pttl(&self.config.key_prefix).await {
            let kept = ["era", "key"]
                .iter()
                .any(|name| key == format!("{}{name}", self.config.key_prefix));
            let is_lock = key.contains('{');
            let kept = kept || is_lock && connection.has_set_limit(&key).await;
            assert_eq!(pttl < 0, kept, "{key} has PTTL {pttl}");
        }
        connection.must(&["DEL", &self.skew_key]).await;
        self.stop.cancel();
    }
}
