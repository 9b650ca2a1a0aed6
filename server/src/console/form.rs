//! Forms of operators: fields are read only after the origin and the CSRF token were checked.

use axum::{
    extract::{Form, FromRequest as _, Request},
    http::StatusCode,
    response::{IntoResponse as _, Redirect, Response},
};
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    ConsoleState, csrf::TokenScope, layout::ErrorPage, lock::notice_address,
    security::is_same_origin,
};
use crate::{
    browsers::host,
    lock::LockKey,
    request::{FieldValidator, RequestContext},
};

/// A form on the page of a lock.
#[derive(Debug, Deserialize)]
pub(super) struct LockForm<Fields> {
    namespace: String,
    name: String,
    /// CSRF token.
    mark: String,
    #[serde(flatten)]
    pub(super) fields: Fields,
}

/// Fields of one kind of form.
pub(super) trait FormFields: DeserializeOwned {
    /// Returns what the CSRF token is bound to beside the user and the lock: the id of the lease, or
    /// the name of the action.
    fn token_subject(&self) -> &str;
}

impl<Fields: FormFields> LockForm<Fields> {
    /// Reads a form that a page of this replica has shown to the user.
    ///
    /// # Errors
    /// With status 403 if the request was not sent from a page of this replica, or if this replica
    /// has not issued the CSRF token for this form; with status 400 if a field is missing.
    pub(super) async fn verify(
        console: &ConsoleState,
        user: &RequestContext,
        request: Request,
    ) -> Result<Self, ErrorPage> {
        if !is_same_origin(request.headers(), host(&request).as_ref()) {
            let message = "The request has no header that proves that the form was sent from a \
                           page of this replica.";
            return Err(ErrorPage::new(StatusCode::FORBIDDEN, message));
        }
        let result = Form::<Self>::from_request(request, &()).await;
        let Form(form) = result.map_err(|_| {
            let message = "The form is invalid: open it again on the page of the lock.";
            ErrorPage::new(StatusCode::BAD_REQUEST, message)
        })?;
        let scope = TokenScope {
            user: &user.caller.name,
            namespace: &form.namespace,
            name: &form.name,
            subject: form.fields.token_subject(),
        };
        if !console.csrf_tokens.verify(&form.mark, scope) {
            let message = "The form is invalid: this replica did not create it for you and for \
                           this lock or lease within the last hour. Open it again.";
            return Err(ErrorPage::new(StatusCode::FORBIDDEN, message));
        }
        Ok(form)
    }
}

impl<Fields> LockForm<Fields> {
    /// Validates the name of the lock.
    pub(super) fn lock(&self, validator: &mut FieldValidator) -> Option<LockKey> {
        validator.lock("lock", &self.namespace, &self.name)
    }

    /// Returns to the page of the lock, with a notice about the operator action `done`.
    pub(super) fn redirect(&self, done: &str) -> Response {
        Redirect::to(&notice_address(&self.namespace, &self.name, done)).into_response()
    }
}
