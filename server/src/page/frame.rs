//! Who looks, what stands around each page, and what is shown where a page is not.

use askama::Template;
use axum::{
    extract::FromRequestParts,
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{AUTHORIZATION, WWW_AUTHENTICATE},
        request::Parts,
    },
    response::{Html, IntoResponse, Response},
};
use data_encoding::BASE64;
use leasehold_proto::text::plain;

use super::{Page, Shared};
use crate::{
    broker::Broker,
    grpc::{Refusal, Visitor},
    transport::Peer,
};

/// What browsers ask their user by.
const ASKS: HeaderValue = HeaderValue::from_static(
    "Basic realm=\"Leasehold: the password is your token\", charset=\"UTF-8\"",
);

/// Somebody who was let in.
pub(super) struct Guest(pub(super) Visitor);

/// What stands around each page.
pub(super) struct Frame {
    pub(super) title: String,
    /// The entry of the menu that is this page.
    pub(super) entry: &'static str,
    /// Where the script hears that the page has changed.
    pub(super) live: Option<String>,
    pub(super) visitor: Option<String>,
    pub(super) is_draining: bool,
    pub(super) broker: Option<String>,
}

/// Why there is no page.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    title: &'static str,
    message: String,
    /// Whom it was.
    visitor: Option<String>,
}

#[derive(Template)]
#[template(path = "failure.html")]
struct FailurePage<'a> {
    frame: Frame,
    failure: &'a Failure,
}

impl FromRequestParts<Shared> for Guest {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, page: &Shared) -> Result<Self, Failure> {
        let peer = parts.extensions.get::<Peer>().cloned();
        let bearer = token(&parts.headers);
        let visitor = page.desk.admit(peer, bearer.as_deref());
        visitor.map(Self).map_err(|refusal| Failure {
            title: "Who are you?",
            ..refusal.into()
        })
    }
}

/// A token, as programs show it or as browsers do: the password of whatever user.
fn token(headers: &HeaderMap) -> Option<String> {
    let shown = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, credential) = shown.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(credential.to_owned());
    }
    let is_basic = scheme.eq_ignore_ascii_case("basic");
    let pair = is_basic.then(|| BASE64.decode(credential.trim().as_bytes()).ok())?;
    let pair = String::from_utf8(pair?).ok()?;
    let (_user, password) = pair.split_once(':')?;
    Some(password.to_owned())
}

impl Frame {
    pub(super) fn new(
        page: &Page,
        visitor: &Visitor,
        title: impl Into<String>,
        entry: &'static str,
    ) -> Self {
        let broker = page.desk.broker();
        Self {
            title: title.into(),
            entry,
            live: None,
            visitor: Some(name_of(visitor)),
            is_draining: broker.is_some_and(Broker::is_draining),
            broker: broker.map(|broker| broker.id().to_string()),
        }
    }

    /// Told where the script hears of changes.
    pub(super) fn live_at(self, live: String) -> Self {
        let live = Some(live);
        Self { live, ..self }
    }
}

impl Failure {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let title = match status.as_u16() {
            400 => "This cannot be asked for",
            401 | 403 => "You may not do that",
            404 => "There is nothing here",
            409 => "Nothing was done",
            429 => "Too much at once",
            503 => "Not now",
            _ => "That did not work",
        };
        Self {
            status,
            title,
            message: message.into(),
            visitor: None,
        }
    }

    /// Tells whom it was.
    pub(super) fn of(self, visitor: &Visitor) -> Self {
        let visitor = Some(name_of(visitor));
        Self { visitor, ..self }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let status = StatusCode::from_u16(refusal.status);
        Self::new(
            status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            refusal.message,
        )
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let frame = Frame {
            title: self.title.to_owned(),
            entry: "",
            live: None,
            visitor: self.visitor.clone(),
            is_draining: false,
            broker: None,
        };
        let failure = &self;
        let mut response = rendered(&FailurePage { frame, failure });
        *response.status_mut() = self.status;
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, ASKS);
        }
        response
    }
}

/// The page as it goes to a browser.
pub(super) fn rendered(template: &impl Template) -> Response {
    match template.render() {
        Ok(html) => Html(html).into_response(),
        // It writes into memory, so that only a fault of ours ends it.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The broker, once there is one.
pub(super) fn broker<'a>(page: &'a Page, visitor: &Visitor) -> Result<&'a Broker, Failure> {
    page.desk.broker().ok_or_else(|| {
        let why =
            "This replica is starting: its store has not answered yet. Try again in a moment.";
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, why).of(visitor)
    })
}

fn name_of(visitor: &Visitor) -> String {
    match &**visitor.name() {
        "" => "nobody is asked who they are".to_owned(),
        name => plain(name),
    }
}
