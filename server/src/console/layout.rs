//! Authentication, layout and error pages of the console.

use askama::Template;
use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{AUTHORIZATION, WWW_AUTHENTICATE},
    },
    middleware::Next,
    response::{Html, IntoResponse, Response},
};
use data_encoding::BASE64;

use super::{ConsoleState, SharedState};
use crate::{
    access::AuthError,
    broker::Broker,
    lock::LockError,
    request::{RequestContext, RequestError},
    telemetry::plain,
    transport::Peer,
};

/// The challenge for which browsers prompt their user for a token.
const CHALLENGE: HeaderValue = HeaderValue::from_static(
    "Basic realm=\"Leasehold: the password is your token\", charset=\"UTF-8\"",
);

/// The layout of each page.
pub(super) struct Layout {
    pub(super) title: String,
    /// The entry of the menu for this page.
    pub(super) entry: &'static str,
    /// Address of the live updates of the page.
    pub(super) live: Option<String>,
    pub(super) user: Option<String>,
    pub(super) is_draining: bool,
    pub(super) broker: Option<String>,
}

/// An error page, which [`authenticate`] renders.
#[derive(Debug, Clone)]
pub(super) struct ErrorPage {
    status: StatusCode,
    title: &'static str,
    message: String,
}

#[derive(Template)]
#[template(path = "failure.html")]
struct ErrorTemplate<'a> {
    frame: Layout,
    failure: &'a ErrorPage,
}

/// Authenticates the user of a request, and renders the error page that the request fails with.
pub(super) async fn authenticate(
    State(console): State<SharedState>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>();
    let credential = token(request.headers());
    let user = match console.service.authenticate(peer, credential.as_deref()) {
        Ok(user) => user,
        Err(error) => {
            let title = "Authentication required";
            let page = ErrorPage::from(error);
            return ErrorPage { title, ..page }.render(None);
        }
    };
    let name = display_name(&user);
    request.extensions_mut().insert(user);
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<ErrorPage>() {
        Some(page) => page.render(Some(name)),
        None => response,
    }
}

/// Returns the bearer token that a program sends, or the password that a browser sends with basic
/// authentication. The user name is ignored.
fn token(headers: &HeaderMap) -> Option<String> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, credential) = header.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(credential.to_owned());
    }
    let is_basic = scheme.eq_ignore_ascii_case("basic");
    let pair = is_basic.then(|| BASE64.decode(credential.trim().as_bytes()).ok())?;
    let pair = String::from_utf8(pair?).ok()?;
    let (_user, password) = pair.split_once(':')?;
    Some(password.to_owned())
}

impl Layout {
    pub(super) fn new(
        console: &ConsoleState,
        user: &RequestContext,
        title: impl Into<String>,
        entry: &'static str,
    ) -> Self {
        let broker = console.service.broker();
        Self {
            title: title.into(),
            entry,
            live: None,
            user: Some(display_name(user)),
            is_draining: broker.is_some_and(Broker::is_draining),
            broker: broker.map(|broker| broker.id().to_string()),
        }
    }

    /// Sets the address of the live updates.
    pub(super) fn live_at(self, live: String) -> Self {
        let live = Some(live);
        Self { live, ..self }
    }
}

impl ErrorPage {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let title = match status.as_u16() {
            400 => "Invalid request",
            401 | 403 => "Permission denied",
            404 => "Not found",
            409 => "Nothing was changed",
            429 => "Too many requests",
            503 => "Temporarily unavailable",
            _ => "The request failed",
        };
        Self {
            status,
            title,
            message: message.into(),
        }
    }

    fn render(&self, user: Option<String>) -> Response {
        let layout = Layout {
            title: self.title.to_owned(),
            entry: "",
            live: None,
            user,
            is_draining: false,
            broker: None,
        };
        let mut response = render(&ErrorTemplate {
            frame: layout,
            failure: self,
        });
        *response.status_mut() = self.status;
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, CHALLENGE);
        }
        response
    }
}

impl From<RequestError> for ErrorPage {
    fn from(error: RequestError) -> Self {
        let status = match &error {
            RequestError::Unauthenticated(AuthError::RateLimited(_)) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            RequestError::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            RequestError::Invalid(_) => StatusCode::BAD_REQUEST,
            RequestError::Denied(..) | RequestError::DeniedEverywhere(_) => StatusCode::FORBIDDEN,
            RequestError::Failed { error, .. } => status_of(error),
        };
        Self::new(status, error.to_string())
    }
}

/// Returns the HTTP status of a failed operation, which corresponds to its gRPC code.
fn status_of(error: &LockError) -> StatusCode {
    match error {
        LockError::RequestIdReused => StatusCode::BAD_REQUEST,
        LockError::LeaseNotFound => StatusCode::NOT_FOUND,
        LockError::Held(_)
        | LockError::WaitTimeout(_)
        | LockError::StillQueued
        | LockError::LeaseExpired
        | LockError::LeaseReleased
        | LockError::LeaseRevoked { .. }
        | LockError::MaxHold
        | LockError::NotHolder
        | LockError::StaleToken { .. }
        | LockError::LimitMismatch { .. }
        | LockError::UpgradeDenied
        | LockError::StaleAttach
        | LockError::Unsupported(_) => StatusCode::CONFLICT,
        LockError::TooManyEntries
        | LockError::TooManyLocks
        | LockError::QuotaExceeded(_)
        | LockError::QueueFull
        | LockError::StoreFull => StatusCode::TOO_MANY_REQUESTS,
        LockError::TooManyAttempts
        | LockError::Overloaded
        | LockError::StoreUnavailable
        | LockError::StoreRecovering { .. }
        | LockError::Draining => StatusCode::SERVICE_UNAVAILABLE,
        LockError::Cancelled => StatusCode::GATEWAY_TIMEOUT,
        LockError::StoreCorrupt | LockError::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for ErrorPage {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Renders a page as an HTML response.
pub(super) fn render(template: &impl Template) -> Response {
    match template.render() {
        Ok(html) => Html(html).into_response(),
        // Rendering writes to memory, so it fails only because of a bug.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Returns the broker, or an error page before the broker has started.
pub(super) fn require_broker(console: &ConsoleState) -> Result<&Broker, ErrorPage> {
    console.service.broker().ok_or_else(|| {
        let message =
            "This replica is starting: its store has not answered yet. Try again in a few seconds.";
        ErrorPage::new(StatusCode::SERVICE_UNAVAILABLE, message)
    })
}

fn display_name(user: &RequestContext) -> String {
    match &*user.caller.name {
        "" => "authentication is not required".to_owned(),
        name => plain(name),
    }
}
