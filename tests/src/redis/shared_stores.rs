//! Stores shared by all test processes of a run. The program `shared_stores` starts them and prints
//! their addresses, which the test runner passes on in environment variables.

use std::net::SocketAddr;

/// Address of one server.
pub const REDIS: &str = "LEASEHOLD_TEST_REDIS";
/// Addresses of three independent servers.
pub const NODES: &str = "LEASEHOLD_TEST_NODES";
/// Addresses of the masters of a cluster.
pub const CLUSTER: &str = "LEASEHOLD_TEST_CLUSTER";
/// Addresses of Sentinels.
pub const SENTINELS: &str = "LEASEHOLD_TEST_SENTINELS";
/// Address of the master of the Sentinels.
pub const MASTER: &str = "LEASEHOLD_TEST_MASTER";

/// Returns the addresses in an environment variable, if the run shares such a store.
///
/// # Panics
/// If the variable contains anything but addresses.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the test runner passes the addresses in the environment"
)]
pub fn shared_addresses(variable: &str) -> Option<Vec<SocketAddr>> {
    let text = std::env::var(variable).ok()?;
    Some(parse_addresses(&text))
}

/// Parses addresses separated by spaces.
pub(crate) fn parse_addresses(text: &str) -> Vec<SocketAddr> {
    let addrs = text.split_whitespace().map(str::parse);
    addrs.collect::<Result<_, _>>().expect("addresses")
}
