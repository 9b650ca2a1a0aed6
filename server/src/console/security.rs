//! Security of the console: origin checks of requests, and security headers of responses.

use axum::{
    extract::Request,
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
            X_FRAME_OPTIONS,
        },
        uri::Authority,
    },
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use crate::browsers::{FETCH_MODE, FETCH_SITE};

const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
    img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Rejects requests from pages of other sites.
pub(super) async fn check_origin(request: Request, next: Next) -> Response {
    if is_cross_site(request.headers()) && !is_navigation(&request) {
        return (
            StatusCode::FORBIDDEN,
            "Requests from other sites are rejected.\n",
        )
            .into_response();
    }
    next.run(request).await
}

/// Adds headers that restrict browsers to what the console needs.
pub(super) async fn security_headers(request: Request, next: Next) -> Response {
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

/// Returns true if a form was sent from a page of this server. Browsers send one of two headers for
/// this, and pages of other origins cannot change them.
pub(super) fn is_same_origin(headers: &HeaderMap, host: Option<&Authority>) -> bool {
    if let Some(fetch_site) = headers.get(FETCH_SITE) {
        return fetch_site == "same-origin";
    }
    let origin = headers
        .get("origin")
        .and_then(|origin| origin.to_str().ok());
    let origin = origin.and_then(|origin| origin.split_once("://"));
    let origin = origin.map(|(_scheme, authority)| authority);
    origin.is_some_and(|origin| host.is_some_and(|host| host.as_str() == origin))
}

fn is_cross_site(headers: &HeaderMap) -> bool {
    let fetch_site = headers.get(FETCH_SITE);
    fetch_site.is_some_and(|value| value == "cross-site" || value == "same-site")
}

/// Returns true if the user navigates to the page, for example by a link.
fn is_navigation(request: &Request) -> bool {
    let fetch_mode = request.headers().get(FETCH_MODE);
    request.method() == Method::GET && fetch_mode.is_some_and(|value| value == "navigate")
}
