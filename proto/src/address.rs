//! Detection of addresses that need no encryption.

use std::net::IpAddr;

use tonic::codegen::http::Uri;

/// Returns true if data sent to a URL crosses a network unencrypted.
#[must_use]
pub fn is_exposed(url: &Uri) -> bool {
    url.scheme_str() != Some("https") && !url.host().is_some_and(is_loopback)
}

/// Returns true if a host is this machine: an address in 127.0.0.0/8, `::1` (with or without
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
    fn only_plaintext_to_other_machines_is_exposed() {
        for (url, is) in [
            ("http://127.0.0.1:7070", false),
            ("http://[::1]:7070", false),
            ("http://LOCALHOST", false),
            ("https://locks.example.com", false),
            ("http://locks.example.com", true),
            ("http://localhost.example.com", true),
            ("http://10.1.2.3:7070", true),
            ("http://[2001:db8::1]:7070", true),
        ] {
            assert_eq!(is_exposed(&url.parse().expect(url)), is, "{url}");
        }
    }

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
