//! The Redis store on a real server. Its clock is the server's plus a skew that the scripts read
//! from a key of the test.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold_server::{
    lock::{BrokerId, LockKey},
    store::{
        Store,
        redis::{RedisStore, era::EraBounds, scripts::Scripts},
    },
};
use tokio::sync::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Backend, Start};
use crate::{
    redis_connection::RedisConnection,
    shared_redis::{redis_config, shared_redis},
};

pub(super) const CLOCK: &str = "local t = redis.call('TIME')\n";
/// Redis' own expiry does not know the skew: time that goes by is taken off every record's TTL.
const AGE: &str = "for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '{*')) do
  local pttl = redis.call('PTTL', key)
  if pttl >= 0 then redis.call('PEXPIRE', key, pttl - ARGV[2]) end
end
return redis.call('INCRBY', KEYS[1], ARGV[2])";

pub(super) struct OnRedis {
    prefix: String,
    skew_key: String,
    trust_empty_store: bool,
    connection: Mutex<RedisConnection>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl OnRedis {
    pub(super) async fn new(start: Start) -> Self {
        let world = uuid::Uuid::new_v4();
        let connection = RedisConnection::open(shared_redis()).await;
        Self {
            prefix: format!("{world}:"),
            skew_key: format!("skew:{world}"),
            trust_empty_store: start == Start::Trusted,
            connection: Mutex::new(connection.expect("connect to the tests' Redis")),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    fn scripts(&self) -> Scripts {
        let skewed = format!(
            "local t = redis.call('TIME')
local skew = tonumber(redis.call('GET', '{}') or 0)
t[2] = t[2] + skew * 1000
not_after = not_after + skew
",
            self.skew_key
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
}

#[async_trait]
impl Backend for OnRedis {
    async fn connect(&self, broker: BrokerId) -> Arc<dyn Store> {
        let config = redis_config(&self.prefix, self.trust_empty_store);
        let stop = self.stop.clone();
        let store = RedisStore::start(config, broker, self.scripts(), &self.tasks, stop).await;
        Arc::new(store.expect("a Redis that can keep locks"))
    }

    async fn advance_ms(&self, ms: u64) {
        let mut connection = self.connection.lock().await;
        let ms = ms.to_string();
        connection
            .must(&["EVAL", AGE, "1", &self.skew_key, &self.prefix, &ms])
            .await;
    }

    async fn step_back_ms(&self, ms: u64) {
        let mut connection = self.connection.lock().await;
        connection
            .must(&["DECRBY", &self.skew_key, &ms.to_string()])
            .await;
    }

    async fn lose_ttl(&self, lock: &LockKey) {
        let key = format!("{}{}", self.prefix, lock.encoded());
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
        for (key, pttl) in connection.keys_with_pttl(&self.prefix).await {
            let kept = ["era", "key"]
                .iter()
                .any(|name| key == format!("{}{name}", self.prefix));
            assert!(kept || pttl > 0, "{key} has PTTL {pttl}");
        }
        connection.must(&["DEL", &self.skew_key]).await;
        self.stop.cancel();
    }
}
