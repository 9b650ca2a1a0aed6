//! Stores that one run of many test processes shares. The program `shared_stores` starts them and prints
//! where they are; the test runner passes that on in the environment.

use std::net::SocketAddr;

/// One server.
pub const REDIS: &str = "LEASEHOLD_TEST_REDIS";
/// Three servers that do not know each other.
pub const NODES: &str = "LEASEHOLD_TEST_NODES";
/// The masters of a cluster.
pub const CLUSTER: &str = "LEASEHOLD_TEST_CLUSTER";
/// Sentinels.
pub const SENTINELS: &str = "LEASEHOLD_TEST_SENTINELS";
/// The master that the Sentinels name.
pub const MASTER: &str = "LEASEHOLD_TEST_MASTER";

/// Returns the addresses in a variable of the environment, if the run shares such a store.
///
/// # Panics
/// If the variable has anything but addresses.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the test runner passes the addresses in the environment"
)]
pub fn of_the_run(variable: &str) -> Option<Vec<SocketAddr>> {
    let text = std::env::var(variable).ok()?;
    Some(addresses(&text))
}

/// Reads addresses with spaces in between.
pub(crate) fn addresses(text: &str) -> Vec<SocketAddr> {
    let addrs = text.split_whitespace().map(str::parse);
    addrs.collect::<Result<_, _>>().expect("addresses")
}
