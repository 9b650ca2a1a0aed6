//! The form that takes a lease away: what it must show before the RPC of the same name is asked.

use std::time::Duration;

use axum::{
    extract::{Form, FromRequest as _, Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Redirect, Response},
};
use leasehold_proto::v1::{ForceReleaseLeaseRequest, LockRef};
use serde::Deserialize;

use super::{
    Shared,
    frame::{Failure, Guest},
    guard::is_ours,
    lock::done_at,
    seal::Bound,
};
use crate::browsers::host;

/// The longest grace of the form; the API takes longer ones.
const GRACE_MOST_S: u64 = 3_600;

#[derive(Debug, Deserialize)]
struct Asked {
    namespace: String,
    name: String,
    lease_id: String,
    mark: String,
    reason: String,
    /// Seconds.
    #[serde(default)]
    grace: String,
}

pub(super) async fn take(
    State(page): State<Shared>,
    Guest(visitor): Guest,
    request: Request,
) -> Result<Response, Failure> {
    let refused = |status, why: &str| Failure::new(status, why).of(&visitor);
    if !is_ours(request.headers(), host(&request).as_ref()) {
        let why = "No browser says that this form was sent from a page of this replica.";
        return Err(refused(StatusCode::FORBIDDEN, why));
    }
    let form = Form::<Asked>::from_request(request, &()).await;
    let Form(asked) = form.map_err(|_| {
        let why = "This is not the form of the page of a lock.";
        refused(StatusCode::BAD_REQUEST, why)
    })?;
    let bound = Bound {
        visitor: visitor.name(),
        namespace: &asked.namespace,
        name: &asked.name,
        lease_id: &asked.lease_id,
    };
    if !page.seal.is_good(&asked.mark, bound) {
        let why = "The form is not one that this replica has made for you and this lease in the last hour: \
                   open it again.";
        return Err(refused(StatusCode::FORBIDDEN, why));
    }
    let grace = match asked.grace.trim() {
        "" => Some(0),
        grace => grace.parse().ok(),
    };
    let grace = grace.filter(|grace| *grace <= GRACE_MOST_S);
    let grace = grace.ok_or_else(|| {
        let why = "The grace is a number of seconds, at most 3600. Nothing was done.";
        refused(StatusCode::BAD_REQUEST, why)
    })?;
    let done = if grace > 0 { "asked" } else { "revoked" };
    let back = done_at(&asked.namespace, &asked.name, done);
    let request = ForceReleaseLeaseRequest {
        lease_id: asked.lease_id,
        reason: asked.reason.trim().to_owned(),
        grace: Duration::from_secs(grace)
            .try_into()
            .ok()
            .filter(|_| grace > 0),
        lock: Some(LockRef {
            namespace: asked.namespace,
            name: asked.name,
        }),
        ..ForceReleaseLeaseRequest::default()
    };
    let taken = page.desk.force_release(&visitor, request).await;
    taken.map_err(|refusal| Failure::from(refusal).of(&visitor))?;
    Ok(Redirect::to(&back).into_response())
}
