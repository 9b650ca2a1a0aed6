//! The Redis store on a real cluster. Its clock is the servers' plus a skew that the scripts read
//! from a key beside each lock.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures::future::join_all;
use leasehold_server::{
    lock::{BrokerId, LockKey},
    store::{
        Store,
        redis::{era::EraBounds, scripts::Scripts},
    },
};
use tokio::sync::OnceCell;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Backend, Start,
    redis::CLOCK,
    skewed::{Skew, Skewed},
};
use crate::{
    redis_connection::RedisConnection,
    shared_cluster::{cluster_config, master_of, shared_cluster},
};

/// As on one node, for the locks of one master.
const AGE: &str = "#!lua flags=allow-cross-slot-keys
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '{*')) do
  local pttl = redis.call('PTTL', key)
  if pttl >= 0 then redis.call('PEXPIRE', key, pttl - ARGV[2]) end
end";

pub(super) struct OnCluster {
    prefix: String,
    skew_key: String,
    skew: Arc<Skew>,
    trust_empty_store: bool,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl OnCluster {
    pub(super) async fn new(start: Start) -> Self {
        let world = uuid::Uuid::new_v4();
        let skew_key = format!("skew:{world}");
        Self {
            prefix: format!("{world}:"),
            skew: Arc::new(Skew::new(skew_key.clone())),
            skew_key,
            trust_empty_store: start == Start::Trusted,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    fn scripts(&self) -> Scripts {
        let skewed = format!(
            "local t = redis.call('TIME')
local skew = tonumber(redis.call('GET', '{}' .. string.match(lock, '{{.*}}')) or 0)
t[2] = t[2] + skew * 1000
not_after = not_after + skew
",
            self.skew_key
        );
        Scripts::edited(|_, text| text.replace(CLOCK, &skewed))
    }
}

#[async_trait]
impl Backend for OnCluster {
    async fn connect(&self, broker: BrokerId) -> Arc<dyn Store> {
        Arc::new(Skewed {
            broker,
            config: cluster_config(&self.prefix, self.trust_empty_store),
            scripts: self.scripts(),
            skew: Arc::clone(&self.skew),
            tasks: self.tasks.clone(),
            stop: self.stop.clone(),
            listener: OnceLock::new(),
            connected: OnceCell::new(),
        })
    }

    async fn advance_ms(&self, ms: u64) {
        self.skew.add(i64::try_from(ms).expect("a short time"));
        let ms = ms.to_string();
        let age = ["EVAL", AGE, "0", &self.prefix, &ms];
        join_all(masters().map(async |master| drop(master.await.must(&age).await))).await;
    }

    async fn step_back_ms(&self, ms: u64) {
        self.skew.add(-i64::try_from(ms).expect("a short time"));
    }

    async fn lose_ttl(&self, lock: &LockKey) {
        let key = format!("{}{}", self.prefix, lock.encoded());
        let mut connection = open(master_of(&key)).await;
        let lost = connection.must(&["PERSIST", &key]).await.integer();
        assert_eq!(lost, 1, "the record had a time to live");
    }

    fn quarantine_ms(&self) -> u64 {
        EraBounds::default().quarantine_ms()
    }

    /// Every key but the eras has a time to live. The next tests find none of them.
    async fn check(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let era = format!("{}era{{", self.prefix);
        for master in masters() {
            let mut master = master.await;
            for (key, pttl) in master.keys_with_pttl(&self.prefix).await {
                assert!(key.starts_with(&era) || pttl > 0, "{key} has PTTL {pttl}");
                master.must(&["DEL", &key]).await;
            }
        }
    }
}

fn masters() -> impl Iterator<Item = impl Future<Output = RedisConnection>> {
    shared_cluster().iter().map(|&addr| open(addr))
}

async fn open(addr: std::net::SocketAddr) -> RedisConnection {
    let connection = RedisConnection::open(addr).await;
    connection.expect("connect to the tests' cluster")
}
