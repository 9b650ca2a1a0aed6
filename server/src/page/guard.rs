//! What holds for every request and every answer of the page: where it is asked from, and what a browser may do
//! with it.

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

/// Refuses what a page of somebody else asks for.
pub(super) async fn admit(request: Request, next: Next) -> Response {
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

fn is_foreign(headers: &HeaderMap) -> bool {
    let site = headers.get(FETCH_SITE);
    site.is_some_and(|site| site == "cross-site" || site == "same-site")
}

/// Somebody follows a link.
fn is_visit(request: &Request) -> bool {
    let mode = request.headers().get(FETCH_MODE);
    request.method() == Method::GET && mode.is_some_and(|mode| mode == "navigate")
}
