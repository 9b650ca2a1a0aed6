//! Several brokers on one Redis, as in a default installation.

use std::net::SocketAddr;

use crate::broker::process::{BrokerOptions, BrokerProcess};
use crate::redis::server::RedisServer;

/// Brokers and their store. The brokers are declared first, so that they end before the store.
#[derive(Debug)]
pub struct Deployment {
    pub brokers: Vec<BrokerProcess>,
    pub redis: RedisServer,
}

impl Deployment {
    /// Starts brokers with default settings on an empty Redis.
    pub async fn start(brokers: usize) -> Self {
        let redis = RedisServer::start().await;
        let options = BrokerOptions::for_store(redis.url());
        Self::start_on(redis, &options, brokers).await
    }

    /// Starts one broker with these options, on its own empty Redis.
    pub async fn start_single(options: BrokerOptions) -> Self {
        let redis = RedisServer::start().await;
        let store = redis.url();
        Self::start_on(redis, &BrokerOptions { store, ..options }, 1).await
    }

    /// Starts brokers with `options` on this empty Redis.
    pub async fn start_on(redis: RedisServer, options: &BrokerOptions, brokers: usize) -> Self {
        options.init_store().await;
        Self {
            brokers: BrokerProcess::start_many(options, brokers).await,
            redis,
        }
    }

    /// Returns the addresses of the brokers.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.brokers.iter().map(BrokerProcess::addr).collect()
    }
}
