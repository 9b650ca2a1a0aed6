//! The Redis store on a real cluster. Its clock is the servers' clock plus a skew that the scripts
//! read from a key beside each lock.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures::future::join_all;
use leasehold_server::{
    lock::{BrokerId, FencingToken, LockKey},
    store::{
        Store,
        redis::{era::EraBounds, scripts::Scripts},
    },
};
use tokio::sync::OnceCell;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Backend, InitialState,
    redis::{CLOCK_LINE, replace_era_field},
    skewed_store::{Skew, SkewedStore},
};
use crate::{
    cluster::{
        deployment::slot_of,
        shared::{cluster_config, master_of, shared_cluster},
    },
    redis::connection::RedisConnection,
};

/// Ages the locks of one master, as [`super::redis::AGE_SCRIPT`] does on one node.
const AGE_SCRIPT: &str = "#!lua flags=allow-cross-slot-keys
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '{*')) do
  local pttl = redis.call('PTTL', key)
  if pttl >= 0 then redis.call('PEXPIRE', key, pttl - ARGV[2]) end
end";

pub(super) struct ClusterBackend {
    prefix: String,
    skew_key: String,
    skew: Arc<Skew>,
    trust_empty_store: bool,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl ClusterBackend {
    pub(super) async fn new(start: InitialState) -> Self {
        let store_fixture = uuid::Uuid::new_v4();
        let skew_key = format!("skew:{store_fixture}");
        Self {
            prefix: format!("{store_fixture}:"),
            skew: Arc::new(Skew::new(skew_key.clone())),
            skew_key,
            trust_empty_store: start == InitialState::Trusted,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    fn scripts(&self) -> Scripts {
        let skewed = format!(
            "local t = redis.call('TIME')
local skew = tonumber(redis.call('GET', '{}' .. string.match(KEYS[1], '{{.*}}')) or 0)
t[2] = t[2] + skew * 1000
not_after = not_after + skew
",
            self.skew_key
        );
        Scripts::edited(|_, text| text.replace(CLOCK_LINE, &skewed))
    }
}

#[async_trait]
impl Backend for ClusterBackend {
    async fn connect(&self, broker: BrokerId) -> Arc<dyn Store> {
        Arc::new(SkewedStore {
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
        let age = ["EVAL", AGE_SCRIPT, "0", &self.prefix, &ms];
        join_all(masters().map(async |master| drop(master.await.must(&age).await))).await;
    }

    async fn step_back_ms(&self, ms: u64) {
        self.skew.add(-i64::try_from(ms).expect("a short time"));
    }

    async fn remove_ttl(&self, lock: &LockKey) {
        let key = format!("{}{}", self.prefix, lock.encoded());
        let mut connection = open(master_of(&key)).await;
        let lost = connection.must(&["PERSIST", &key]).await.integer();
        assert_eq!(lost, 1, "the record had a time to live");
    }

    fn quarantine_ms(&self) -> u64 {
        EraBounds::default().quarantine_ms()
    }

    async fn set_token_floor(&self, lock: &LockKey, floor: FencingToken) {
        let lock_key = format!("{}{}", self.prefix, lock.encoded());
        let mut connection = open(master_of(&lock_key)).await;
        let eras = format!("{}era{{", self.prefix);
        let eras = connection.keys_with_pttl(&eras).await;
        let mut keys = eras.into_iter().map(|(key, _)| key);
        let key = keys.find(|key| slot_of(key) == slot_of(&lock_key));
        let key = key.expect("the slot has an era");
        replace_era_field(&mut connection, &key, "token:", &floor.get().to_string()).await;
    }

    /// Asserts that every key except the eras has a time to live, so that no key remains for later
    /// tests.
    async fn check_invariants(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let era = format!("{}era{{", self.prefix);
        for master in masters() {
            let mut master = master.await;
            for (key, pttl) in master.keys_with_pttl(&self.prefix).await {
                let kept = key.starts_with(&era) || master.has_set_limit(&key).await;
                assert_eq!(pttl < 0, kept, "{key} has PTTL {pttl}");
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
