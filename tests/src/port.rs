//! Free loopback ports that stay free across a restart of the process that uses them.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{LazyLock, Mutex, PoisonError};

use rand::Rng;

static TAKEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// A port below the range from which the kernel takes the local ports of outgoing connections,
/// so that none of them sits on it while its server is down.
#[must_use]
pub fn free_port() -> u16 {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let port = rand::thread_rng().gen_range(12_000..32_000);
        if !taken.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            taken.insert(port);
            return port;
        }
    }
}
