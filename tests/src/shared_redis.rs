//! One Redis for all tests of a process, or several; ended by the kernel when the process ends.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::Stdio,
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use leasehold_server::store::redis::{
    connection::RedisConfig,
    place::{Address, Place},
};

use crate::{binary::store_command, port::free_port};

const START_LIMIT: Duration = Duration::from_secs(30);
/// Room for messages costs a store 600 bytes each when it connects, and tests make many stores.
pub(crate) const MESSAGES_MAX: usize = 1_024;
const READY: &str = "Ready to accept connections";

/// Where it listens. Tests keep apart by their key prefixes.
pub fn shared_redis() -> SocketAddr {
    static ADDR: OnceLock<SocketAddr> = OnceLock::new();
    *ADDR.get_or_init(start)
}

/// Where three that do not know each other listen.
pub fn shared_nodes() -> [SocketAddr; 3] {
    static ADDRS: OnceLock<[SocketAddr; 3]> = OnceLock::new();
    *ADDRS.get_or_init(|| [(); 3].map(|()| start()))
}

fn start() -> SocketAddr {
    let port = free_port();
    let (ready, is_ready) = mpsc::channel();
    // The kernel's signal comes when the thread that started the server ends, so that thread
    // must live as long as the process.
    thread::spawn(move || serve(port, &ready));
    let answer = is_ready.recv_timeout(START_LIMIT);
    answer.expect("redis-server must be installed and start");
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// How a store of its own key prefix reaches it.
pub fn redis_config(key_prefix: &str, trust_empty_store: bool) -> RedisConfig {
    config_of(shared_redis(), key_prefix, trust_empty_store)
}

/// The same of any server.
pub fn config_of(addr: SocketAddr, key_prefix: &str, trust_empty_store: bool) -> RedisConfig {
    RedisConfig {
        key_prefix: key_prefix.to_owned(),
        trust_empty_store,
        messages_max: MESSAGES_MAX,
        ..RedisConfig::at(Place::Server(address(addr)))
    }
}

/// The same as a store's configuration has it.
pub fn address(addr: SocketAddr) -> Address {
    Address {
        host: addr.ip().to_string(),
        port: addr.port(),
    }
}

fn serve(port: u16, ready: &mpsc::Sender<()>) {
    let mut server = store_command()
        .args([
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
        ])
        .arg(std::env::temp_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start redis-server");
    let stdout = server.stdout.take().expect("stdout is piped");
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if line.contains(READY) {
            // The receiver gave up only if the test has failed already.
            let _ = ready.send(());
        }
    }
    let status = server.wait();
    panic!("redis-server ended before its tests: {status:?}");
}
