//! Free loopback ports that stay free across a restart of the process that uses them.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::{LazyLock, Mutex, PoisonError};

use rand::Rng;

/// A datagram socket on each port that was given out: other test processes then leave it alone, also
/// before its server has bound it.
static TAKEN: LazyLock<Mutex<HashMap<u16, UdpSocket>>> = LazyLock::new(Mutex::default);

/// A port below the range from which the kernel takes the local ports of outgoing connections,
/// so that none of them sits on it while its server is down.
#[must_use]
pub fn free_port() -> u16 {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let port = rand::thread_rng().gen_range(12_000..32_000);
        if let Ok(mine) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port))
            && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
        {
            taken.insert(port, mine);
            return port;
        }
    }
}
