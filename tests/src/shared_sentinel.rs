//! A Redis with Sentinel that tests share, apart by their key prefixes: that of the run, if the test
//! runner started one for all processes, else one of this process, which the kernel ends with it.

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
    shared_stores::{self, SENTINELS, of_the_run},
};

const START_LIMIT: Duration = Duration::from_secs(60);

/// Where it is.
#[derive(Debug)]
pub struct SharedSentinel {
    /// As a store's configuration has it.
    pub place: Place,
    /// The server that is the master all the time.
    pub master: SocketAddr,
}

impl SharedSentinel {
    fn at(sentinels: Vec<SocketAddr>, master: SocketAddr) -> Self {
        Self {
            place: Place::Sentinel(Sentinel {
                addresses: sentinels.into_iter().map(address).collect(),
                master: MASTER.to_owned(),
                login: Login::default(),
            }),
            master,
        }
    }
}

/// Returns the options of a master that stays the master.
#[must_use]
pub fn undisturbed() -> SentinelOptions {
    SentinelOptions {
        options: ["--appendonly", "no"].map(str::to_owned).to_vec(),
        ..SentinelOptions::undisturbed()
    }
}

/// Returns the one of the run, or else of this process.
pub fn shared_sentinel() -> &'static SharedSentinel {
    static SHARED: OnceLock<SharedSentinel> = OnceLock::new();
    SHARED.get_or_init(|| {
        let of_run = of_the_run(SENTINELS).zip(of_the_run(shared_stores::MASTER));
        if let Some((sentinels, master)) = of_run {
            return SharedSentinel::at(sentinels, master[0]);
        }
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
        let all = SentinelDeployment::start(undisturbed()).await;
        let shared = SharedSentinel::at(all.sentinel_addrs(), all.addr(0));
        // The receiver gave up only if the test has failed already.
        let _ = ready.send(shared);
        std::future::pending().await
    })
}
