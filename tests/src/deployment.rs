//! Several brokers on one Redis, as an installation leaves them.

use std::net::SocketAddr;

use crate::broker_process::{BrokerOptions, BrokerProcess};
use crate::redis_server::RedisServer;

/// Brokers first: they end before the store does.
#[derive(Debug)]
pub struct Deployment {
    /// The brokers.
    pub brokers: Vec<BrokerProcess>,
    /// The store.
    pub redis: RedisServer,
}

impl Deployment {
    /// Default brokers on an empty Redis.
    pub async fn start(brokers: usize) -> Self {
        let redis = RedisServer::start().await;
        let options = BrokerOptions::on(redis.url());
        Self::start_on(redis, &options, brokers).await
    }

    /// One broker with these options, on an empty Redis of its own.
    pub async fn of(options: BrokerOptions) -> Self {
        let redis = RedisServer::start().await;
        let store = redis.url();
        Self::start_on(redis, &BrokerOptions { store, ..options }, 1).await
    }

    /// Brokers with `options` on this empty Redis.
    pub async fn start_on(redis: RedisServer, options: &BrokerOptions, brokers: usize) -> Self {
        options.init_store().await;
        Self {
            brokers: BrokerProcess::start_many(options, brokers).await,
            redis,
        }
    }

    /// Where the brokers listen.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.brokers.iter().map(BrokerProcess::addr).collect()
    }
}
