//! One Redis with Sentinel for all tests of a process; ended by the kernel when the process ends.

use std::{
    net::SocketAddr,
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use leasehold_server::store::redis::{
    login::Login,
    place::{Place, Sentinel},
};

use crate::{
    sentinel::{MASTER, SentinelDeployment, SentinelOptions},
    shared_redis::address,
};

const START_LIMIT: Duration = Duration::from_secs(60);

/// Where it is. Tests keep apart by their key prefixes.
#[derive(Debug)]
pub struct SharedSentinel {
    /// As a store's configuration has it.
    pub place: Place,
    /// The server that is the master all the time.
    pub master: SocketAddr,
}

/// The one of this process.
pub fn shared_sentinel() -> &'static SharedSentinel {
    static SHARED: OnceLock<SharedSentinel> = OnceLock::new();
    SHARED.get_or_init(|| {
        let (ready, is_ready) = mpsc::channel();
        // Its processes end with the thread that started them.
        thread::spawn(move || keep(&ready));
        let shared = is_ready.recv_timeout(START_LIMIT);
        shared.expect("a Redis with Sentinel must start")
    })
}

fn keep(ready: &mpsc::Sender<SharedSentinel>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("start a runtime");
    runtime.block_on(async {
        let options = SentinelOptions {
            options: ["--appendonly", "no"].map(str::to_owned).to_vec(),
            ..SentinelOptions::undisturbed()
        };
        let all = SentinelDeployment::start(options).await;
        let shared = SharedSentinel {
            place: Place::Sentinel(Sentinel {
                addresses: all.sentinel_addrs().into_iter().map(address).collect(),
                master: MASTER.to_owned(),
                login: Login::default(),
            }),
            master: all.addr(0),
        };
        // The receiver gave up only if the test has failed already.
        let _ = ready.send(shared);
        std::future::pending().await
    })
}
