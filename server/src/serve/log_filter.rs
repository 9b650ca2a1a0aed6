//! `POST /log-filter` on the admin listener: sets the log filter until the configuration is
//! reloaded or the broker stops.

use axum::{
    Router,
    body::to_bytes,
    extract::Request,
    http::{StatusCode, header::AUTHORIZATION},
    routing::post,
};

use crate::{
    access::{AuthError, Verb},
    browsers,
    inspection::InspectionService,
    request::{RequestError, bearer_token},
    telemetry,
    transport::Peer,
};

const PATH: &str = "/log-filter";
const LENGTH_MAX: usize = 4_096;

type Reply = (StatusCode, String);

/// Returns the route `/log-filter`.
pub(super) fn route(inspection: &InspectionService) -> Router {
    let inspection = inspection.clone();
    let set = move |request: Request| {
        let inspection = inspection.clone();
        async move {
            let result = set(&inspection, request).await;
            let (code, text) = result.unwrap_or_else(|rejection| rejection);
            (code, text + "\n")
        }
    };
    Router::new().route(PATH, post(set))
}

async fn set(inspection: &InspectionService, request: Request) -> Result<Reply, Reply> {
    let (parts, body) = request.into_parts();
    if browsers::is_from_page(&parts.headers) {
        let message = "requests from browsers are rejected: any open page could send them";
        return Err((StatusCode::FORBIDDEN, message.to_owned()));
    }
    let peer = parts.extensions.get::<Peer>();
    let authorization = parts.headers.get(AUTHORIZATION);
    let bearer = authorization.map(|header| bearer_token(header.as_bytes()));
    let result = inspection.authenticate(peer, bearer);
    let context = result.map_err(|error| rejection(&error))?;
    let result = context.authorize_any(Verb::Admin);
    result.map_err(|error| rejection(&error))?;
    let bad_request = |message: String| (StatusCode::BAD_REQUEST, message);
    let body = to_bytes(body, LENGTH_MAX).await;
    let body = body.map_err(|_| {
        bad_request(format!(
            "the body has more than {LENGTH_MAX} bytes, or was not received in time"
        ))
    })?;
    let filter = str::from_utf8(&body).unwrap_or_default().trim();
    if filter.is_empty() {
        return Err(bad_request(
            "missing log filter; send one such as info,leasehold_server=debug".to_owned(),
        ));
    }
    telemetry::check(filter)
        .map_err(|message| bad_request(format!("invalid log filter: {message}")))?;
    // Logged before the change: the new filter could suppress this entry.
    tracing::info!(
        target: "audit",
        caller = &*context.caller.name,
        peer = context.peer.map(tracing::field::display),
        what = filter,
        "an operator has changed the log filter"
    );
    telemetry::set_filter(filter);
    Ok((StatusCode::OK, format!("log.filter is {filter}")))
}

fn rejection(error: &RequestError) -> Reply {
    let code = match error {
        RequestError::Unauthenticated(AuthError::RateLimited(_)) => StatusCode::TOO_MANY_REQUESTS,
        RequestError::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
        RequestError::Denied(..)
        | RequestError::DeniedEverywhere(_)
        | RequestError::Invalid(_)
        | RequestError::Failed { .. } => StatusCode::FORBIDDEN,
    };
    (code, error.to_string())
}
