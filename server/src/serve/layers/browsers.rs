//! Keeps web pages away from gRPC. A browser sends a page's request with the credentials of its user, but not with one
//! of the content types below, unless the server agrees beforehand; and it marks each request of a page.

use axum::{
    extract::Request,
    http::{
        Method, StatusCode, Version,
        header::{ALLOW, CONTENT_TYPE},
    },
    response::{IntoResponse as _, Response},
};

use super::small::Check;
use crate::{
    browsers,
    metrics::{Metrics, Refusal},
};

/// The content types that a call may have.
const CONTENT_TYPES: [&str; 2] = ["application/grpc", "application/grpc+proto"];

type Refused = (StatusCode, &'static str);

/// Refuses what no client of gRPC sends. Cheap to clone.
#[derive(Clone)]
pub(super) struct GrpcOnly(pub(super) Metrics);

impl Check for GrpcOnly {
    fn refusal(&self, request: &mut Request) -> Option<Response> {
        let (status, why) = check(request).err()?;
        self.0.refused(Refusal::NotGrpc);
        Some(match status {
            StatusCode::METHOD_NOT_ALLOWED => (status, [(ALLOW, "POST")], why).into_response(),
            _ => (status, why).into_response(),
        })
    }
}

fn check(request: &Request) -> Result<(), Refused> {
    if browsers::is_from_page(request.headers()) {
        let why =
            "web pages cannot call gRPC: the request has an Origin or Sec-Fetch-Site header\n";
        return Err((StatusCode::FORBIDDEN, why));
    }
    if request.version() != Version::HTTP_2 {
        let why = "gRPC is served over HTTP/2 only\n";
        return Err((StatusCode::HTTP_VERSION_NOT_SUPPORTED, why));
    }
    if request.method() != Method::POST {
        let why = "calls of gRPC are sent with POST\n";
        return Err((StatusCode::METHOD_NOT_ALLOWED, why));
    }
    if !is_accepted(request) {
        let why = "calls of gRPC have the content type application/grpc\n";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    Ok(())
}

fn is_accepted(request: &Request) -> bool {
    let given = request.headers().get(CONTENT_TYPE);
    let given = given.and_then(|given| given.to_str().ok());
    let media = given.and_then(|given| given.split(';').next());
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

    fn answered(version: Version, method: Method, headers: &[(&str, &str)]) -> Option<u16> {
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
            let what = format!("{version:?} {method} {headers:?}");
            assert_eq!(answered(version, method, &headers), expected, "{what}");
        }
    }
}
