//! `POST /log-filter` on the admin listener: what is logged, changed by an operator until the configuration is read
//! again, or the broker ends.

use axum::{
    Router,
    body::to_bytes,
    extract::Request,
    http::{HeaderMap, StatusCode, header::ORIGIN},
    routing::post,
};
use tonic::{Code, Status, metadata::MetadataMap};

use crate::{access::Gate, grpc::Operator, telemetry};

const PATH: &str = "/log-filter";
const LENGTH_MAX: usize = 4_096;
/// What browsers say of the page that a request is from.
const FROM_SITE: &str = "sec-fetch-site";

type Answer = (StatusCode, String);

/// The same, with this path.
pub(super) fn beside(router: Router, gate: &Gate) -> Router {
    let gate = gate.clone();
    let set = move |request: Request| {
        let gate = gate.clone();
        async move {
            let answer = set(&gate, request).await;
            let (code, text) = answer.unwrap_or_else(|refused| refused);
            (code, text + "\n")
        }
    };
    router.route(PATH, post(set))
}

async fn set(gate: &Gate, request: Request) -> Result<Answer, Answer> {
    let (parts, body) = request.into_parts();
    if is_from_browser(&parts.headers) {
        let why = "not for browsers: any page that is open there could ask";
        return Err((StatusCode::FORBIDDEN, why.to_owned()));
    }
    let metadata = MetadataMap::from_headers(parts.headers);
    let asked = tonic::Request::from_parts(metadata, parts.extensions, ());
    let operator = Operator::of(gate, &asked).map_err(|status| refused(&status))?;
    let bad = |why: String| (StatusCode::BAD_REQUEST, why);
    let body = to_bytes(body, LENGTH_MAX).await;
    let body = body.map_err(|_| bad(format!("more than {LENGTH_MAX} bytes")))?;
    let filter = str::from_utf8(&body).unwrap_or_default().trim();
    if filter.is_empty() {
        return Err(bad(
            "no filter, such as info,leasehold_server=debug".to_owned()
        ));
    }
    telemetry::check(filter).map_err(|why| bad(format!("no log filter: {why}")))?;
    // Before, or a filter that leaves it out would hide who set it.
    operator.tells("has changed what is logged", filter);
    telemetry::set_filter(filter);
    Ok((StatusCode::OK, format!("log.filter is {filter}")))
}

fn is_from_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN) || headers.contains_key(FROM_SITE)
}

fn refused(status: &Status) -> Answer {
    let known = [
        (Code::Unauthenticated, StatusCode::UNAUTHORIZED),
        (Code::ResourceExhausted, StatusCode::TOO_MANY_REQUESTS),
    ];
    let code = known.into_iter().find(|(code, _)| *code == status.code());
    let code = code.map_or(StatusCode::FORBIDDEN, |(_, code)| code);
    (code, status.message().to_owned())
}
