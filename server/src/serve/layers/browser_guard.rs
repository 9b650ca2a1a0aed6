//! Rejects gRPC requests from web pages. A browser sends the user's credentials with a page's
//! request, but sends one of the content types below only if the server agreed beforehand (CORS
//! preflight). It also marks each request of a page with headers.

use axum::{
    extract::Request,
    http::{
        Method, StatusCode, Version,
        header::{ALLOW, CONTENT_TYPE},
    },
    response::{IntoResponse as _, Response},
};

use crate::{
    browsers,
    metrics::{Metrics, RejectionReason},
};

/// Content types of gRPC calls.
const CONTENT_TYPES: [&str; 2] = ["application/grpc", "application/grpc+proto"];

type Rejection = (StatusCode, &'static str);

/// Returns a check that rejects requests which no gRPC client sends.
pub(super) fn browser_guard(metrics: Metrics) -> impl Fn(&mut Request) -> Option<Response> + Clone {
    move |request: &mut Request| {
        let (status, message) = check(request).err()?;
        metrics.request_rejected(RejectionReason::NotGrpc);
        Some(match status {
            StatusCode::METHOD_NOT_ALLOWED => (status, [(ALLOW, "POST")], message).into_response(),
            _ => (status, message).into_response(),
        })
    }
}

fn check(request: &Request) -> Result<(), Rejection> {
    if browsers::is_from_page(request.headers()) {
        let message =
            "web pages cannot call gRPC: the request has an Origin or Sec-Fetch-Site header\n";
        return Err((StatusCode::FORBIDDEN, message));
    }
    if request.version() != Version::HTTP_2 {
        let message = "gRPC is served over HTTP/2 only\n";
        return Err((StatusCode::HTTP_VERSION_NOT_SUPPORTED, message));
    }
    if request.method() != Method::POST {
        let message = "gRPC calls must use the method POST\n";
        return Err((StatusCode::METHOD_NOT_ALLOWED, message));
    }
    if !is_accepted(request) {
        let message = "gRPC calls must have the content type application/grpc\n";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    Ok(())
}

fn is_accepted(request: &Request) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    let content_type = content_type.and_then(|content_type| content_type.to_str().ok());
    let media = content_type.and_then(|content_type| content_type.split(';').next());
    media.is_some_and(|media| {
        let media = media.trim();
        CONTENT_TYPES
            .iter()
            .any(|accepted| media.eq_ignore_ascii_case(accepted))
    })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn status_of(version: Version, method: Method, headers: &[(&str, &str)]) -> Option<u16> {
        let mut request = Request::builder().version(version).method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("a request");
        check(&request).err().map(|(status, _)| status.as_u16())
    }

    #[test]
    fn only_calls_of_grpc_pass() {
        let (h2, post) = (Version::HTTP_2, Method::POST);
        let grpc = ("content-type", "application/grpc");
        for (version, method, headers, expected) in [
            (h2, post.clone(), vec![grpc], None),
            (
                h2,
                post.clone(),
                vec![("content-type", "Application/gRPC+proto")],
                None,
            ),
            (
                h2,
                post.clone(),
                vec![("content-type", "application/grpc; a=b")],
                None,
            ),
            (
                h2,
                post.clone(),
                vec![("content-type", "application/grpc-web")],
                Some(415),
            ),
            (
                h2,
                post.clone(),
                vec![("content-type", "application/json")],
                Some(415),
            ),
            (
                h2,
                post.clone(),
                vec![("content-type", "text/plain")],
                Some(415),
            ),
            (h2, post.clone(), vec![], Some(415)),
            (h2, Method::GET, vec![grpc], Some(405)),
            (h2, Method::OPTIONS, vec![grpc], Some(405)),
            (Version::HTTP_11, post.clone(), vec![grpc], Some(505)),
            (h2, post.clone(), vec![grpc, ("origin", "null")], Some(403)),
            (h2, post, vec![grpc, ("sec-fetch-site", "none")], Some(403)),
        ] {
            let case = format!("{version:?} {method} {headers:?}");
            assert_eq!(status_of(version, method, &headers), expected, "{case}");
        }
    }
}
