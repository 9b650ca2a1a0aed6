//! Free loopback ports, which stay reserved across restarts of the process that uses them.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::{LazyLock, Mutex, PoisonError};

use rand::Rng;

/// A UDP socket on each reserved port. Other test processes skip the port because of the socket,
/// even before the server has bound it.
static RESERVED: LazyLock<Mutex<HashMap<u16, UdpSocket>>> = LazyLock::new(Mutex::default);

/// Reserves a port below the ephemeral range of the kernel, so that no outgoing connection occupies
/// the port while its server is down.
#[must_use]
pub fn free_port() -> u16 {
    let mut taken = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
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
