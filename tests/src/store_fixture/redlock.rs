//! The RedLock store on three real servers. All servers' clocks have the same added skew.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold_server::{
    lock::{BrokerId, DeploymentKey, LockKey},
    store::{
        Store,
        redis::{connection::RedisConfig, era::EraBounds},
        redlock::RedlockStore,
    },
};
use tokio::sync::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Backend, InitialState,
    redis::{AGE_SCRIPT, scripts_with_skew},
};
use crate::redis::{
    connection::RedisConnection,
    shared_server::{config_of, shared_nodes},
};

pub(super) struct RedlockBackend {
    prefix: String,
    skew_key: String,
    configs: Vec<RedisConfig>,
    connections: Mutex<Vec<RedisConnection>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl RedlockBackend {
    pub(super) async fn new(start: InitialState) -> Self {
        let store_fixture = uuid::Uuid::new_v4();
        let prefix = format!("{store_fixture}:");
        let key = DeploymentKey::random();
        let configs = shared_nodes().map(|addr| RedisConfig {
            deployment_key: Some(key.clone()),
            span_limit: None,
            // Four brokers for each of many behaviours connect at once.
            wait_for_store: true,
            ..config_of(addr, &prefix, start == InitialState::Trusted)
        });
        let mut connections = Vec::new();
        for addr in shared_nodes() {
            let connection = RedisConnection::open(addr).await;
            connections.push(connection.expect("connect to the tests' Redis"));
        }
        Self {
            prefix,
            skew_key: format!("skew:{store_fixture}"),
            configs: configs.to_vec(),
            connections: Mutex::new(connections),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    async fn on_every_node(&self, command: &[&str]) {
        for connection in &mut *self.connections.lock().await {
            connection.must(command).await;
        }
    }
}

#[async_trait]
impl Backend for RedlockBackend {
    async fn connect(&self, broker: BrokerId) -> Arc<dyn Store> {
        let scripts = scripts_with_skew(&self.skew_key);
        let (configs, stop) = (self.configs.clone(), self.stop.clone());
        let store = RedlockStore::start(configs, broker, scripts, &self.tasks, stop).await;
        let store = store.expect("nodes that can keep locks");
        while store.deployment_key().await.is_err() {}
        Arc::new(store)
    }

    async fn advance_ms(&self, ms: u64) {
        let ms = ms.to_string();
        self.on_every_node(&["EVAL", AGE_SCRIPT, "1", &self.skew_key, &self.prefix, &ms])
            .await;
    }

    async fn step_back_ms(&self, ms: u64) {
        self.on_every_node(&["DECRBY", &self.skew_key, &ms.to_string()])
            .await;
    }

    async fn remove_ttl(&self, lock: &LockKey) {
        let key = format!("{}{}", self.prefix, lock.encoded());
        self.on_every_node(&["PERSIST", &key]).await;
    }

    fn quarantine_ms(&self) -> u64 {
        EraBounds::default().quarantine_ms()
    }

    /// Asserts that every key except the era has a time to live, and that a node keeps only locks.
    async fn check_invariants(&self) {
        for connection in &mut *self.connections.lock().await {
            for (key, pttl) in connection.keys_with_pttl(&self.prefix).await {
                let is_era = key == format!("{}era", self.prefix);
                assert!(is_era || pttl > 0, "{key} has PTTL {pttl}");
                assert!(is_era || key.contains('{'), "{key} is no lock");
                if !is_era {
                    let line = connection.must(&["HEXISTS", &key, "q"]).await.integer();
                    assert_eq!(line, 0, "{key} has a line");
                }
            }
            connection.must(&["DEL", &self.skew_key]).await;
        }
        self.stop.cancel();
    }
}
