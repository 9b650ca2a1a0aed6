//! `POST /log-filter` on the admin listener: what is logged, changed by an operator until the configuration is read
//! again, or the broker ends.

use axum::{
    Router,
    body::to_bytes,
    extract::Request,
    http::{StatusCode, header::AUTHORIZATION},
    routing::post,
};
use tonic::{Code, Status};

use crate::{access::Gate, browsers, grpc::Operator, telemetry, transport::Peer};

const PATH: &str = "/log-filter";
const LENGTH_MAX: usize = 4_096;

type Answer = (StatusCode, String);

/// Returns the path.
pub(super) fn route(gate: &Gate) -> Router {
    let gate = gate.clone();
    let set = move |request: Request| {
        let gate = gate.clone();
        async move {
            let answer = set(&gate, request).await;
            let (code, text) = answer.unwrap_or_else(|refused| refused);
            (code, text + "\n")
        }
    };
    Router::new().route(PATH, post(set))
}

async fn set(gate: &Gate, request: Request) -> Result<Answer, Answer> {
    let (parts, body) = request.into_parts();
    if browsers::is_from_page(&parts.headers) {
        let why = "not for browsers: any page that is open there could ask";
        return Err((StatusCode::FORBIDDEN, why.to_owned()));
    }
    let peer = parts.extensions.get::<Peer>();
    let authorization = parts.headers.get(AUTHORIZATION);
    let authorization = authorization.map(|header| header.as_bytes());
    let operator = Operator::of(gate, peer, authorization).map_err(|status| refused(&status))?;
    let bad = |why: String| (StatusCode::BAD_REQUEST, why);
    let body = to_bytes(body, LENGTH_MAX).await;
    let body = body.map_err(|_| {
        bad(format!(
            "more than {LENGTH_MAX} bytes, or they came too late"
        ))
    })?;
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

fn refused(status: &Status) -> Answer {
    let known = [
        (Code::Unauthenticated, StatusCode::UNAUTHORIZED),
        (Code::ResourceExhausted, StatusCode::TOO_MANY_REQUESTS),
    ];
    let code = known.into_iter().find(|(code, _)| *code == status.code());
    let code = code.map_or(StatusCode::FORBIDDEN, |(_, code)| code);
    (code, status.message().to_owned())
}
