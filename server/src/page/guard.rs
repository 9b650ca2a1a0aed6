//! What holds for every request and every answer of the page: where it is asked from, and what a browser may do
//! with it.

use std::net::IpAddr;

use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
            X_FRAME_OPTIONS,
        },
        uri::Authority,
    },
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use super::Shared;

const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
    img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// By what a browser says of a request where it is from.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Refuses what a page of somebody else asks for.
pub(super) async fn admit(State(page): State<Shared>, request: Request, next: Next) -> Response {
    if page.is_local && !page.desk.asks() && !names_this_machine(host(&request).as_ref()) {
        // A name that leads here by the choice of whoever owns it: its pages would read ours.
        let why =
            "This page is for the machine that it runs on: call it by 127.0.0.1 or localhost.\n";
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    if is_foreign(request.headers()) && !is_visit(&request) {
        return (StatusCode::FORBIDDEN, "Another site asks for this.\n").into_response();
    }
    next.run(request).await
}

/// Tells browsers what the page needs, so that they do nothing else with it.
pub(super) async fn protect(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (CACHE_CONTROL, "no-store"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let referrer = headers.entry(REFERRER_POLICY);
    referrer.or_insert(HeaderValue::from_static("no-referrer"));
    response
}

/// Whether a form was sent by a page of ours. A browser says so in one of two headers, and no page of
/// anybody else can change them.
pub(super) fn is_ours(headers: &HeaderMap, host: Option<&Authority>) -> bool {
    if let Some(site) = headers.get(FETCH_SITE) {
        return site == "same-origin";
    }
    let origin = headers
        .get("origin")
        .and_then(|origin| origin.to_str().ok());
    let origin = origin.and_then(|origin| origin.split_once("://"));
    let origin = origin.map(|(_scheme, authority)| authority);
    origin.is_some_and(|origin| host.is_some_and(|host| host.as_str() == origin))
}

/// What the client calls this listener.
pub(super) fn host(request: &Request) -> Option<Authority> {
    let named = request.uri().authority().cloned();
    let header = || request.headers().get(HOST)?.to_str().ok()?.parse().ok();
    named.or_else(header)
}

fn names_this_machine(host: Option<&Authority>) -> bool {
    let Some(host) = host.map(Authority::host) else {
        return false;
    };
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    match literal.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

fn is_foreign(headers: &HeaderMap) -> bool {
    let site = headers.get(FETCH_SITE);
    site.is_some_and(|site| site == "cross-site" || site == "same-site")
}

/// Somebody follows a link.
fn is_visit(request: &Request) -> bool {
    let mode = request.headers().get(FETCH_MODE);
    request.method() == Method::GET && mode.is_some_and(|mode| mode == "navigate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_few() {
        for (host, is_ours) in [
            ("127.0.0.1:7071", true),
            ("127.8.9.1", true),
            ("[::1]:7071", true),
            ("localhost:1", true),
            ("LOCALHOST", true),
            ("10.0.0.1:7071", false),
            ("localhost.example.org:7071", false),
            ("127.0.0.1.example.org", false),
            ("broker", false),
        ] {
            let host: Authority = host.parse().expect("an authority");
            assert_eq!(names_this_machine(Some(&host)), is_ours, "{host}");
        }
        assert!(!names_this_machine(None));
    }
}
