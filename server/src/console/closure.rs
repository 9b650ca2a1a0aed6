//! Handlers of the forms to close and to open a lock.

use std::time::Duration;

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
    lock::{CloseCommand, Owner},
    request::{FieldValidator, RequestContext, RequestError},
    time::{millis, now_unix_millis},
};

/// Action of a form on the closure of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClosureAction {
    Close,
    Open,
}

#[derive(Debug, Deserialize)]
struct CloseFields {
    /// Reason for closing the lock.
    reason: String,
    /// Time for which the lock is closed, such as `2h`.
    duration: String,
}

#[derive(Debug, Deserialize)]
struct OpenFields {}

impl ClosureAction {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Open => "open",
        }
    }
}

impl FormFields for CloseFields {
    fn token_subject(&self) -> &str {
        ClosureAction::Close.name()
    }
}

impl FormFields for OpenFields {
    fn token_subject(&self) -> &str {
        ClosureAction::Open.name()
    }
}

pub(super) async fn close(
    State(console): State<SharedState>,
    Extension(user): Extension<RequestContext>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let form = LockForm::<CloseFields>::verify(&console, &user, request).await?;
    let duration = humantime::parse_duration(form.fields.duration.trim()).ok();
    let duration = duration.filter(|duration| *duration > Duration::ZERO);
    let duration = duration.ok_or_else(|| {
        let message = "The time must be a duration such as 30m or 2h. Nothing was done.";
        ErrorPage::new(StatusCode::BAD_REQUEST, message)
    })?;
    let command = form.to_command(&user, duration)?;
    console.service.close(&user, &command).await?;
    Ok(form.redirect("closed"))
}

pub(super) async fn open(
    State(console): State<SharedState>,
    Extension(user): Extension<RequestContext>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let form = LockForm::<OpenFields>::verify(&console, &user, request).await?;
    let mut validator = FieldValidator::default();
    let lock = form.lock(&mut validator);
    let lock = validator.finish(lock)?;
    Ok(
        form.redirect(match console.service.open(&user, &lock).await? {
            Some(_) => "opened",
            None => "not-closed",
        }),
    )
}

impl LockForm<CloseFields> {
    fn to_command(
        &self,
        user: &RequestContext,
        duration: Duration,
    ) -> Result<CloseCommand, RequestError> {
        let reason = self.fields.reason.trim();
        let now_ms = now_unix_millis();
        let until_ms = now_ms.saturating_add(millis(duration));
        let mut validator = FieldValidator::default();
        let lock = self.lock(&mut validator);
        validator.operator_reason(reason);
        validator.closure_end("duration", until_ms, now_ms);
        let lock = validator.finish(lock)?;
        Ok(CloseCommand {
            lock,
            until_ms,
            operator: Owner {
                id: user.operator_name("").to_owned(),
                reason: reason.to_owned(),
                ..Owner::default()
            },
        })
    }
}
