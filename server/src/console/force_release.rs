//! Handler of the form to revoke a lease, which checks the origin and the CSRF token before it
//! revokes the lease.

use axum::{
    Extension,
    extract::{Form, FromRequest as _, Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Redirect, Response},
};
use serde::Deserialize;

use super::{
    SharedState, csrf::TokenScope, layout::ErrorPage, lock::notice_address,
    security::is_same_origin,
};
use crate::{
    browsers::host,
    lock::{RevokeCommand, RevokeMode},
    request::{FieldValidator, RequestContext, RequestError},
};

/// Maximum grace period of the form in seconds; the API allows longer ones.
const GRACE_MAX_S: u64 = 3_600;

#[derive(Debug, Deserialize)]
struct ForceReleaseForm {
    namespace: String,
    name: String,
    lease_id: String,
    mark: String,
    reason: String,
    /// Grace period in seconds.
    #[serde(default)]
    grace: String,
}

pub(super) async fn force_release(
    State(console): State<SharedState>,
    Extension(user): Extension<RequestContext>,
    request: Request,
) -> Result<Response, ErrorPage> {
    if !is_same_origin(request.headers(), host(&request).as_ref()) {
        let message = "The request has no header that proves that the form was sent from a page \
                       of this replica.";
        return Err(ErrorPage::new(StatusCode::FORBIDDEN, message));
    }
    let result = Form::<ForceReleaseForm>::from_request(request, &()).await;
    let Form(form) = result.map_err(|_| {
        let message = "The form is invalid: open it again on the page of the lock.";
        ErrorPage::new(StatusCode::BAD_REQUEST, message)
    })?;
    let scope = TokenScope {
        user: &user.caller.name,
        namespace: &form.namespace,
        name: &form.name,
        subject: &form.lease_id,
    };
    if !console.csrf_tokens.verify(&form.mark, scope) {
        let message = "The form is invalid: this replica did not create it for you and this lease \
                       within the last hour. Open it again.";
        return Err(ErrorPage::new(StatusCode::FORBIDDEN, message));
    }
    let grace = match form.grace.trim() {
        "" => Some(0),
        grace => grace.parse().ok(),
    };
    let grace = grace.filter(|grace| *grace <= GRACE_MAX_S);
    let grace = grace.ok_or_else(|| {
        let message =
            "The grace period must be a number of seconds, at most 3600. Nothing was done.";
        ErrorPage::new(StatusCode::BAD_REQUEST, message)
    })?;
    let done = if grace > 0 { "asked" } else { "revoked" };
    let return_address = notice_address(&form.namespace, &form.name, done);
    let command = form.into_command(grace * 1_000)?;
    console.service.revoke(&user, &command).await?;
    Ok(Redirect::to(&return_address).into_response())
}

impl ForceReleaseForm {
    fn into_command(self, grace_ms: u64) -> Result<RevokeCommand, RequestError> {
        let reason = self.reason.trim().to_owned();
        let mut fields = FieldValidator::default();
        let lock = fields.lock("lock", &self.namespace, &self.name);
        let lease_id = fields.lease_id("lease_id", &self.lease_id);
        fields.operator_reason(&reason);
        let (lock, lease_id) = fields.finish(lock.zip(lease_id))?;
        Ok(RevokeCommand {
            lock,
            lease_id,
            reason,
            grace_ms,
            lock_delay_ms: None,
            mode: RevokeMode::Graceful,
        })
    }
}
