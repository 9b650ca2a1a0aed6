//! A broker in the process of the test, on the memory store and on free ports.

use std::net::SocketAddr;

use leasehold_server::{
    Listeners, RunError,
    config::{Config, Flags},
    run,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::client::unary::channel;

/// A broker with the configuration of `leasehold-server dev`.
#[derive(Debug)]
pub struct InProcessBroker {
    pub api: SocketAddr,
    /// Address of the health checks and the admin service.
    pub admin: SocketAddr,
    stop: CancellationToken,
    run: JoinHandle<Result<(), RunError>>,
}

impl InProcessBroker {
    /// Starts a broker on 127.0.0.1.
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1").await
    }

    /// Starts a broker on a local address.
    pub async fn start_at(ip: &str) -> Self {
        let flags = Flags {
            listen: Some(format!("{ip}:0")),
            admin_listen: Some(format!("{ip}:0")),
            insecure: true,
            ..Flags::default()
        };
        let config = Config::load(&flags, true).expect("the defaults are legal");
        let listeners = Listeners::bind(&config).await.expect("two free ports");
        let api = listeners.api.local_addr().expect("a bound address");
        let admin = listeners.admin.local_addr().expect("a bound address");
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let run = tokio::spawn(run(config, listeners, stopped));
        Self {
            api,
            admin,
            stop,
            run,
        }
    }

    /// Opens a connection to the API.
    #[must_use]
    pub fn channel(&self) -> Channel {
        channel(self.api)
    }

    /// Starts a graceful shutdown.
    pub fn start_shutdown(&self) {
        self.stop.cancel();
    }

    /// Shuts the broker down and waits until it has stopped.
    pub async fn stop(self) {
        self.stop.cancel();
        self.run.await.expect("no panic").expect("an orderly end");
    }
}
