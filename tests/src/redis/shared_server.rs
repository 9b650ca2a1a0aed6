//! A Redis server shared by tests with different key prefixes. It is the server of the run if the
//! test runner has started one for all processes, else a server of this process, which the kernel
//! ends with the process.

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
    location::{Address, StoreLocation},
};

use crate::{
    process::{binaries::store_command, ports::free_port},
    redis::shared_stores::{NODES, REDIS, shared_addresses},
};

const START_LIMIT: Duration = Duration::from_secs(30);
/// Length of the message buffer. Each message costs 600 bytes when a store connects, and tests
/// create many stores.
pub(crate) const MESSAGES_MAX: usize = 1_024;
const READY: &str = "Ready to accept connections";

/// Returns the address of a Redis server that other processes may use as well.
pub fn shared_redis() -> SocketAddr {
    match shared_addresses(REDIS) {
        Some(addrs) => addrs[0],
        None => own_redis(),
    }
}

/// Returns the addresses of three independent servers that other processes may use as well.
pub fn shared_nodes() -> [SocketAddr; 3] {
    match shared_addresses(NODES) {
        Some(addrs) => addrs.try_into().expect("three addresses"),
        None => own_nodes(),
    }
}

/// Returns the address of a Redis server that only this process uses.
pub fn own_redis() -> SocketAddr {
    static ADDR: OnceLock<SocketAddr> = OnceLock::new();
    *ADDR.get_or_init(start)
}

/// Returns the addresses of three independent servers that only this process uses.
pub fn own_nodes() -> [SocketAddr; 3] {
    static ADDRS: OnceLock<[SocketAddr; 3]> = OnceLock::new();
    *ADDRS.get_or_init(|| [(); 3].map(|()| start()))
}

fn start() -> SocketAddr {
    let port = free_port();
    let (ready, is_ready) = mpsc::channel();
    // The kernel sends the signal when the thread that started the server ends. The thread must
    // therefore live as long as the process.
    thread::spawn(move || serve(port, &ready));
    let answer = is_ready.recv_timeout(START_LIMIT);
    answer.expect("redis-server must be installed and start");
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Returns the configuration of a store with this key prefix on [`own_redis`].
pub fn redis_config(key_prefix: &str, trust_empty_store: bool) -> RedisConfig {
    config_of(own_redis(), key_prefix, trust_empty_store)
}

/// Returns the configuration of a store with this key prefix on this server.
pub fn config_of(addr: SocketAddr, key_prefix: &str, trust_empty_store: bool) -> RedisConfig {
    RedisConfig {
        key_prefix: key_prefix.to_owned(),
        trust_empty_store,
        messages_max: MESSAGES_MAX,
        ..RedisConfig::at(StoreLocation::Server(config_address(addr)))
    }
}

/// Converts an address to the type of a store's configuration.
pub fn config_address(addr: SocketAddr) -> Address {
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
            // Sending fails only if the test has timed out already.
            let _ = ready.send(());
        }
    }
    let status = server.wait();
    panic!("redis-server ended before its tests: {status:?}");
}
