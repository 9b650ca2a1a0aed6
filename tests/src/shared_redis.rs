//! A Redis that tests share, apart by their key prefixes: that of the run, if the test runner started
//! one for all processes, else one of this process, which the kernel ends with it.

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

use crate::{
    binary::store_command,
    port::free_port,
    shared_stores::{NODES, REDIS, of_the_run},
};

const START_LIMIT: Duration = Duration::from_secs(30);
/// Room for messages costs a store 600 bytes each when it connects, and tests make many stores.
pub(crate) const MESSAGES_MAX: usize = 1_024;
const READY: &str = "Ready to accept connections";

/// Returns the address of a Redis that other processes may use, too.
pub fn shared_redis() -> SocketAddr {
    match of_the_run(REDIS) {
        Some(addrs) => addrs[0],
        None => own_redis(),
    }
}

/// Returns the addresses of three servers that do not know each other and that other processes may
/// use, too.
pub fn shared_nodes() -> [SocketAddr; 3] {
    match of_the_run(NODES) {
        Some(addrs) => addrs.try_into().expect("three addresses"),
        None => own_nodes(),
    }
}

/// Returns the address of a Redis that only this process uses.
pub fn own_redis() -> SocketAddr {
    static ADDR: OnceLock<SocketAddr> = OnceLock::new();
    *ADDR.get_or_init(start)
}

/// Returns the addresses of three servers that do not know each other and that only this process uses.
pub fn own_nodes() -> [SocketAddr; 3] {
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

/// Returns how a store of this key prefix reaches [`own_redis`].
pub fn redis_config(key_prefix: &str, trust_empty_store: bool) -> RedisConfig {
    config_of(own_redis(), key_prefix, trust_empty_store)
}

/// Returns how a store of this key prefix reaches this server.
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
