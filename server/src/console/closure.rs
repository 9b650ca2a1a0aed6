//! Handlers of the forms to close and to open a lock, which check the origin and the CSRF token first.

use std::time::Duration;

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
    lock::{CloseCommand, LockKey, Owner},
    request::{FieldValidator, RequestContext, RequestError},
    time::{millis, now_unix_millis},
};

/// Name of an operator who is not authenticated.
const UNNAMED_OPERATOR: &str = "operator";

/// Action of a form on the closure of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClosureAction {
    Close,
    Open,
}

#[derive(Debug, Deserialize)]
struct ClosureFields {
    namespace: String,
    name: String,
    mark: String,
    /// Reason for closing the lock.
    #[serde(default)]
    reason: String,
    /// Time for which the lock is closed, such as `2h`.
    #[serde(default)]
    duration: String,
}

impl ClosureAction {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Open => "open",
        }
    }
}

pub(super) async fn close(
    State(console): State<SharedState>,
    Extension(user): Extension<RequestContext>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let form = verified_form(&console, &user, request, ClosureAction::Close).await?;
    let duration = humantime::parse_duration(form.duration.trim()).ok();
    let duration = duration.filter(|duration| *duration > Duration::ZERO);
    let duration = duration.ok_or_else(|| {
        let message = "The time must be a duration such as 30m or 2h. Nothing was done.";
        ErrorPage::new(StatusCode::BAD_REQUEST, message)
    })?;
    let command = form.to_command(&user, duration)?;
    console.service.close(&user, &command).await?;
    Ok(Redirect::to(&notice_address(&form.namespace, &form.name, "closed")).into_response())
}

pub(super) async fn open(
    State(console): State<SharedState>,
    Extension(user): Extension<RequestContext>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let form = verified_form(&console, &user, request, ClosureAction::Open).await?;
    let opened = console.service.open(&user, &form.lock()?).await?;
    let done = match opened {
        Some(_) => "opened",
        None => "not-closed",
    };
    Ok(Redirect::to(&notice_address(&form.namespace, &form.name, done)).into_response())
}

/// Returns the fields of a form that a page of this replica has shown to the user for this action.
async fn verified_form(
    console: &SharedState,
    user: &RequestContext,
    request: Request,
    action: ClosureAction,
) -> Result<ClosureFields, ErrorPage> {
    if !is_same_origin(request.headers(), host(&request).as_ref()) {
        let message = "The request has no header that proves that the form was sent from a page \
                       of this replica.";
        return Err(ErrorPage::new(StatusCode::FORBIDDEN, message));
    }
    let result = Form::<ClosureFields>::from_request(request, &()).await;
    let Form(form) = result.map_err(|_| {
        let message = "The form is invalid: open it again on the page of the lock.";
        ErrorPage::new(StatusCode::BAD_REQUEST, message)
    })?;
    let scope = TokenScope {
        user: &user.caller.name,
        namespace: &form.namespace,
        name: &form.name,
        subject: action.name(),
    };
    if !console.csrf_tokens.verify(&form.mark, scope) {
        let message = "The form is invalid: this replica did not create it for you and this lock \
                       within the last hour. Open it again.";
        return Err(ErrorPage::new(StatusCode::FORBIDDEN, message));
    }
    Ok(form)
}

impl ClosureFields {
    fn lock(&self) -> Result<LockKey, RequestError> {
        let mut fields = FieldValidator::default();
        let lock = fields.lock("lock", &self.namespace, &self.name);
        fields.finish(lock)
    }

    fn to_command(
        &self,
        user: &RequestContext,
        duration: Duration,
    ) -> Result<CloseCommand, RequestError> {
        let reason = self.reason.trim();
        let now_ms = now_unix_millis();
        let until_ms = now_ms.saturating_add(millis(duration));
        let mut fields = FieldValidator::default();
        let lock = fields.lock("lock", &self.namespace, &self.name);
        fields.operator_reason(reason);
        fields.closure_end("duration", until_ms, now_ms);
        let lock = fields.finish(lock)?;
        Ok(CloseCommand {
            lock,
            until_ms,
            operator: Owner {
                id: match &*user.caller.name {
                    "" => UNNAMED_OPERATOR.to_owned(),
                    name => name.to_owned(),
                },
                reason: reason.to_owned(),
                ..Owner::default()
            },
        })
    }
}
