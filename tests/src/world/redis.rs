//! The Redis store on real servers. Its clock is the server's plus a skew that the scripts read
//! from a key of the test.

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use leasehold_server::{
    lock::{BrokerId, LockKey},
    store::{
        Store,
        redis::{
            RedisStore, connection::RedisConfig, era::EraBounds, place::Place, scripts::Scripts,
        },
    },
};
use tokio::sync::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Backend, Start};
use crate::{
    redis_connection::RedisConnection,
    shared_redis::{MESSAGES_MAX, address, shared_redis},
    shared_sentinel::shared_sentinel,
};

pub(super) const CLOCK: &str = "local t = redis.call('TIME')\n";
/// Redis' own expiry does not know the skew: time that goes by is taken off every record's TTL.
pub(super) const AGE: &str = "for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '{*')) do
  local pttl = redis.call('PTTL', key)
  if pttl >= 0 then redis.call('PEXPIRE', key, pttl - ARGV[2]) end
end
return redis.call('INCRBY', KEYS[1], ARGV[2])";

pub(super) struct OnRedis {
    config: RedisConfig,
    skew_key: String,
    connection: Mutex<RedisConnection>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl OnRedis {
    /// One server.
    pub(super) async fn server(start: Start) -> Self {
        let server = shared_redis();
        Self::new(start, Place::Server(address(server)), server).await
    }

    /// The master that Sentinel names.
    pub(super) async fn sentinel(start: Start) -> Self {
        let shared = shared_sentinel();
        Self::new(start, shared.place.clone(), shared.master).await
    }

    /// The store is at `place`, and `server` keeps the keys.
    async fn new(start: Start, place: Place, server: SocketAddr) -> Self {
        let world = uuid::Uuid::new_v4();
        let connection = RedisConnection::open(server).await;
        Self {
            config: RedisConfig {
                key_prefix: format!("{world}:"),
                trust_empty_store: start == Start::Trusted,
                messages_max: MESSAGES_MAX,
                ..RedisConfig::at(place)
            },
            skew_key: format!("skew:{world}"),
            connection: Mutex::new(connection.expect("connect to the tests' Redis")),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }
}

/// Scripts whose clock is the server's plus what a key says.
pub fn skewed_by(skew_key: &str) -> Scripts {
    let skewed = format!(
        "local t = redis.call('TIME')
local skew = tonumber(redis.call('GET', '{skew_key}') or 0)
t[2] = t[2] + skew * 1000
not_after = not_after + skew
"
    );
    Scripts::edited(|_, text| {
        assert_eq!(
            text.matches(CLOCK).count(),
            1,
            "the clock is read in one line"
        );
        text.replace(CLOCK, &skewed)
    })
}

#[async_trait]
impl Backend for OnRedis {
    async fn connect(&self, broker: BrokerId) -> Arc<dyn Store> {
        let (config, stop) = (self.config.clone(), self.stop.clone());
        let scripts = skewed_by(&self.skew_key);
        let store = RedisStore::start(config, broker, scripts, &self.tasks, stop).await;
        Arc::new(store.expect("a Redis that can keep locks"))
    }

    async fn advance_ms(&self, ms: u64) {
        let mut connection = self.connection.lock().await;
        let ms = ms.to_string();
        connection
            .must(&[
                "EVAL",
                AGE,
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

    async fn lose_ttl(&self, lock: &LockKey) {
        let key = format!("{}{}", self.config.key_prefix, lock.encoded());
        let mut connection = self.connection.lock().await;
        let lost = connection.must(&["PERSIST", &key]).await.integer();
        assert_eq!(lost, 1, "the record had a time to live");
    }

    fn quarantine_ms(&self) -> u64 {
        EraBounds::default().quarantine_ms()
    }

    /// Every key but the era and the deployment key has a time to live.
    async fn check(&self) {
        let mut connection = self.connection.lock().await;
        for (key, pttl) in connection.keys_with_pttl(&self.config.key_prefix).await {
            let kept = ["era", "key"]
                .iter()
                .any(|name| key == format!("{}{name}", self.config.key_prefix));
            assert!(kept || pttl > 0, "{key} has PTTL {pttl}");
        }
        connection.must(&["DEL", &self.skew_key]).await;
        self.stop.cancel();
    }
}
