//! Request headers of browsers: whether a page sent the request, from which site, and to which host
//! name.

use std::net::IpAddr;

use axum::{
    extract::Request,
    http::{
        HeaderMap, HeaderName,
        header::{HOST, ORIGIN},
        uri::Authority,
    },
};

/// Header in which browsers send the relation of the requesting site to this one. Pages cannot
/// change it.
pub(crate) const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Header in which browsers send the purpose of a request, such as a navigation.
pub(crate) const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Returns true if a browser sent the request on behalf of a page.
pub(crate) fn is_from_page(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE)
}

/// Returns the host name and port to which the client sent the request.
pub(crate) fn host(request: &Request) -> Option<Authority> {
    let named = request.uri().authority().cloned();
    let header = || request.headers().get(HOST)?.to_str().ok()?.parse().ok();
    named.or_else(header)
}

/// Returns true if the host is an IP address or `localhost`. The owner of any other domain can make
/// its name resolve to this listener (DNS rebinding). Browsers then treat the pages of that domain
/// as pages of this listener.
pub(crate) fn is_address(host: &Authority) -> bool {
    let host = host.host();
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    literal.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_cannot_be_rebound() {
        for (host, expected) in [
            ("127.0.0.1:7071", true),
            ("[::1]:7071", true),
            ("[2001:db8::7]", true),
            ("10.0.0.1:7071", true),
            ("localhost:1", true),
            ("LOCALHOST", true),
            ("localhost.example.org:7071", false),
            ("127.0.0.1.example.org", false),
            ("127.1", false),
            ("2130706433", false),
            ("broker", false),
        ] {
            let authority: Authority = host.parse().expect("an authority");
            assert_eq!(is_address(&authority), expected, "{host}");
        }
    }
}
