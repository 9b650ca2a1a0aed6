//! Handler of the form to revoke a lease.

use axum::{
    Extension,
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use serde::Deserialize;

use super::{
    SharedState,
    form::{FormFields, LockForm},
    layout::ErrorPage,
};
use crate::{
    lock::{RevokeCommand, RevokeMode},
    request::{FieldValidator, RequestContext, RequestError},
};

/// Maximum grace period of the form in seconds; the API allows longer ones.
const GRACE_MAX_S: u64 = 3_600;

#[derive(Debug, Deserialize)]
struct RevokeFields {
    lease_id: String,
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
    let form = LockForm::<RevokeFields>::verify(&console, &user, request).await?;
    let grace = match form.fields.grace.trim() {
        "" => Some(0),
        grace => grace.parse().ok(),
    };
    let grace = grace.filter(|grace| *grace <= GRACE_MAX_S);
    let grace = grace.ok_or_else(|| {
        let message =
            "The grace period must be a number of seconds, at most 3600. Nothing was done.";
        ErrorPage::new(StatusCode::BAD_REQUEST, message)
    })?;
    let command = form.to_command(grace * 1_000)?;
    console.service.revoke(&user, &command).await?;
    Ok(form.redirect(match grace {
        0 => "revoked",
        _ => "asked",
    }))
}

impl FormFields for RevokeFields {
    fn token_subject(&self) -> &str {
        &self.lease_id
    }
}

impl LockForm<RevokeFields> {
    fn to_command(&self, grace_ms: u64) -> Result<RevokeCommand, RequestError> {
        let reason = self.fields.reason.trim().to_owned();
        let mut validator = FieldValidator::default();
        let lock = self.lock(&mut validator);
        let lease_id = validator.lease_id("lease_id", &self.fields.lease_id);
        validator.operator_reason(&reason);
        let (lock, lease_id) = validator.finish(lock.zip(lease_id))?;
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
