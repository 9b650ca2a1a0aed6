//! Audit page: operator actions, denied requests and lost leases, as recorded by this broker.

use askama::Template;
use axum::{Extension, extract::State, response::Response};

use super::{
    SharedState,
    format::{Link, span, time},
    layout::{ErrorPage, Layout, render, require_broker},
    sse::{View, updates_address},
};
use crate::{
    access::Verb,
    recent_events::{AuditEvent, AuditEventKind, LeaseEnd, LeaseEndReason},
    request::{RequestContext, RequestError},
    telemetry::plain,
};

/// Maximum number of rows of each table. The log contains all events.
const ROWS: usize = 200;

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Layout,
    events: Vec<AuditRow>,
    losses: Vec<EndRow>,
}

struct AuditRow {
    at: String,
    what: &'static str,
    css_class: &'static str,
    lock: Option<Link>,
    lease_id: String,
    caller: String,
    peer: String,
    detail: String,
}

/// A row about the end of a lease.
pub(super) struct EndRow {
    pub(super) at: String,
    pub(super) lock: Link,
    pub(super) how: &'static str,
    pub(super) css_class: &'static str,
    /// Owner of the lease, if the user may observe the lock.
    pub(super) owner: Option<Link>,
    pub(super) held: String,
    pub(super) token: u64,
    pub(super) reason: String,
}

pub(super) async fn show(
    State(console): State<SharedState>,
    Extension(user): Extension<RequestContext>,
) -> Result<Response, ErrorPage> {
    let broker = require_broker(&console)?;
    authorize(&user)?;
    let events = broker.history().audit_events();
    let events = events.iter().filter(|event| is_visible(event, &user));
    let losses = broker.history().losses();
    let losses = losses.iter().filter(|end| user.can(Verb::List, &end.lock));
    let losses = losses.map(|end| EndRow::new(end, user.can(Verb::Observe, &end.lock)));
    let layout = Layout::new(&console, &user, "Audit", "audit");
    Ok(render(&AuditPage {
        frame: layout.live_at(updates_address(View::Audit, None)),
        events: events.take(ROWS).map(AuditRow::new).collect(),
        losses: losses.take(ROWS).collect(),
    }))
}

/// Checks that the user may list, observe or operate at least one lock. Permission to acquire locks
/// is not sufficient.
pub(super) fn authorize(user: &RequestContext) -> Result<(), RequestError> {
    let verbs = [Verb::Observe, Verb::ForceRelease, Verb::Admin];
    match verbs.into_iter().any(|verb| user.can_somewhere(verb)) {
        true => Ok(()),
        false => user.authorize_any(Verb::List),
    }
}

/// Returns true if the user may see the event. An event about a lock requires the verbs `list` and
/// `observe` for the lock. Other events require `force_release` or `admin` for any lock.
fn is_visible(event: &AuditEvent, user: &RequestContext) -> bool {
    match &event.lock {
        Some(lock) => user.can(Verb::List, lock) && user.can(Verb::Observe, lock),
        None => user.can_somewhere(Verb::ForceRelease) || user.can_somewhere(Verb::Admin),
    }
}

impl AuditRow {
    fn new(event: &AuditEvent) -> Self {
        let (what, css_class) = match event.kind {
            AuditEventKind::ForceRelease => ("lease revoked", "warning"),
            AuditEventKind::SetLimit => ("limit set", "good"),
            AuditEventKind::RemoveLimit => ("limit removed", "good"),
            AuditEventKind::Close => ("closed", "warning"),
            AuditEventKind::Open => ("opened", "good"),
            AuditEventKind::Denied | AuditEventKind::Unauthenticated => ("denied", "bad"),
        };
        let caller = match (event.kind, event.caller.as_str()) {
            (AuditEventKind::Unauthenticated, _) => "unknown",
            (_, "") => "anonymous",
            (_, caller) => caller,
        };
        let lease_id = event.lease_id.as_ref();
        Self {
            at: time(event.at),
            what,
            css_class,
            lock: event.lock.as_ref().map(Link::to_lock),
            lease_id: lease_id.map(ToString::to_string).unwrap_or_default(),
            caller: plain(caller),
            peer: plain(&event.peer),
            detail: plain(&event.detail),
        }
    }
}

impl EndRow {
    /// Creates a row, which contains the owner and the reason only if `may_see` is true.
    pub(super) fn new(end: &LeaseEnd, may_see: bool) -> Self {
        let (how, css_class) = match end.reason {
            LeaseEndReason::Released => ("released", "good"),
            LeaseEndReason::Expired => ("expired", "bad"),
            LeaseEndReason::Revoked => ("revoked", "warning"),
            LeaseEndReason::StoreLost => ("lost by the store", "bad"),
            LeaseEndReason::MaxHold => ("max_hold reached", "warning"),
            LeaseEndReason::CredentialExpired => ("credential expired", "warning"),
        };
        let explanation = if may_see {
            plain(&end.explanation)
        } else {
            String::new()
        };
        let owner = end.owner.as_ref().filter(|_| may_see);
        Self {
            at: time(end.at),
            lock: Link::to_lock(&end.lock),
            how,
            css_class,
            owner: owner.map(|owner| Link::to_owner(&owner.id)),
            held: span(end.held_ms),
            token: end.fencing_token,
            reason: explanation,
        }
    }
}
