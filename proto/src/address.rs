//! Addresses to which a connection needs no encryption.

use std::net::IpAddr;

/// Returns whether a host is this machine: an address in 127.0.0.0/8, `::1` (with or without
/// brackets), or `localhost`. Other names are not resolved.
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    let bracketed = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = bracketed.unwrap_or(host).parse::<IpAddr>();
    address.is_ok_and(|ip| ip.is_loopback()) || host.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_machine_are_loopback() {
        for host in [
            "127.0.0.1",
            "127.9.8.7",
            "::1",
            "[::1]",
            "localhost",
            "LocalHost",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "10.1.2.3",
            "0.0.0.0",
            "::",
            "2001:db8::1",
            "locks.example.com",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
