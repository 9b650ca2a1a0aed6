//! A broker in the test's own process, on the memory store and on free ports.

use std::net::SocketAddr;

use leasehold_server::{
    Listeners, RunError,
    config::{Config, Flags},
    run,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::client::channel;

/// One broker as `dev` runs it.
#[derive(Debug)]
pub struct InProcess {
    /// Where the API listens.
    pub api: SocketAddr,
    /// Where health and the admin service listen.
    pub admin: SocketAddr,
    stop: CancellationToken,
    run: JoinHandle<Result<(), RunError>>,
}

impl InProcess {
    /// Starts one on loopback.
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1").await
    }

    /// Starts one on this address of the machine.
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

    /// A connection to the API.
    #[must_use]
    pub fn channel(&self) -> Channel {
        channel(self.api)
    }

    /// Begins the orderly stop.
    pub fn begin_stop(&self) {
        self.stop.cancel();
    }

    /// Stops it and returns when it has ended.
    pub async fn stop(self) {
        self.stop.cancel();
        self.run.await.expect("no panic").expect("an orderly end");
    }
}
