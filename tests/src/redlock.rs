//! Servers that know nothing of each other, as RedLock wants them.

use futures::future::join_all;

use crate::{
    redis_server::{Data, RedisOptions, RedisServer},
    store_clock::StoreClock,
};

/// Keeps every answered write through a kill.
const KEEPS: [&str; 2] = ["--appendonly", "yes"];

/// Independent masters.
#[derive(Debug)]
pub struct RedlockDeployment {
    servers: Vec<RedisServer>,
}

impl RedlockDeployment {
    /// Starts so many empty ones.
    pub async fn start(servers: usize) -> Self {
        let launches = (0..servers).map(|_| launch(None));
        Self {
            servers: join_all(launches).await,
        }
    }

    /// Starts so many empty ones, each with a wall clock of its own.
    pub async fn start_with_clocks(servers: usize) -> Self {
        let launches =
            (0..servers).map(|_| async { launch(Some(StoreClock::build().await)).await });
        Self {
            servers: join_all(launches).await,
        }
    }

    /// What `--store` takes.
    #[must_use]
    pub fn url(&self) -> String {
        let addrs = self.servers.iter().map(|server| server.addr().to_string());
        format!("redlock://{}", addrs.collect::<Vec<_>>().join(","))
    }

    /// All of them.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// SIGKILL.
    pub async fn lose(&mut self, index: usize) {
        self.servers[index].kill().await;
    }

    /// Starts one again on its port.
    pub async fn restart(&mut self, index: usize, data: Data) {
        self.servers[index].restart_with(data, &[]).await;
    }
}

async fn launch(clock: Option<StoreClock>) -> RedisServer {
    RedisServer::start_as(RedisOptions {
        options: KEEPS.map(str::to_owned).to_vec(),
        clock,
        ..RedisOptions::default()
    })
    .await
}
