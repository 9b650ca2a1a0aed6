//! A Redis with Sentinel shared by tests with different key prefixes. It is the deployment of the
//! run if the test runner has started one for all processes, else a deployment of this process,
//! which the kernel ends with the process.

use std::{
    net::SocketAddr,
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use leasehold_server::store::redis::{
    credentials::Credentials,
    location::{Sentinel, StoreLocation},
};

use crate::{
    redis::{
        shared_server::config_address,
        shared_stores::{self, SENTINELS, shared_addresses},
    },
    sentinel::deployment::{MASTER, SentinelDeployment, SentinelOptions},
};

const START_LIMIT: Duration = Duration::from_secs(60);

/// Addresses of a shared deployment.
#[derive(Debug)]
pub struct SharedSentinel {
    /// Address of the Sentinels, as a store's configuration has it.
    pub place: StoreLocation,
    /// Address of the server that is the master during the whole run.
    pub master: SocketAddr,
}

impl SharedSentinel {
    fn new(sentinels: Vec<SocketAddr>, master: SocketAddr) -> Self {
        Self {
            place: StoreLocation::Sentinel(Sentinel {
                addresses: sentinels.into_iter().map(config_address).collect(),
                master: MASTER.to_owned(),
                credentials: Credentials::default(),
            }),
            master,
        }
    }
}

/// Returns the options of a deployment without failovers.
#[must_use]
pub fn stable_options() -> SentinelOptions {
    SentinelOptions {
        server_options: ["--appendonly", "no"].map(str::to_owned).to_vec(),
        ..SentinelOptions::without_failovers()
    }
}

/// Returns the deployment of the run, or else of this process.
pub fn shared_sentinel() -> &'static SharedSentinel {
    static SHARED: OnceLock<SharedSentinel> = OnceLock::new();
    SHARED.get_or_init(|| {
        let of_run = shared_addresses(SENTINELS).zip(shared_addresses(shared_stores::MASTER));
        if let Some((sentinels, master)) = of_run {
            return SharedSentinel::new(sentinels, master[0]);
        }
        let (ready, is_ready) = mpsc::channel();
        // The processes of the deployment end with the thread that started them.
        thread::spawn(move || run_deployment(&ready));
        let shared = is_ready.recv_timeout(START_LIMIT);
        shared.expect("a Redis with Sentinel must start")
    })
}

fn run_deployment(ready: &mpsc::Sender<SharedSentinel>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("start a runtime");
    runtime.block_on(async {
        let all = SentinelDeployment::start(stable_options()).await;
        let shared = SharedSentinel::new(all.sentinel_addrs(), all.addr(0));
        // Sending fails only if the test has timed out already.
        let _ = ready.send(shared);
        std::future::pending().await
    })
}
