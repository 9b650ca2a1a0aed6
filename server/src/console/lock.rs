//! Page of one lock: its holders, its queue, its recent lease ends, and the forms to revoke a lease
//! and to close or open the lock.

use askama::Template;
use axum::{
    Extension,
    extract::{Query, State},
    http::{HeaderValue, header::REFERRER_POLICY},
    response::Response,
};
use serde::Deserialize;

use super::{
    ConsoleState, SharedState,
    audit::EndRow,
    closure::ClosureAction,
    csrf::TokenScope,
    format::{Link, Moment, href},
    layout::{ErrorPage, Layout, render, require_broker},
    locks::{holder_mode, lock_mode, state_name},
    sse::{View, updates_address},
};
use crate::{
    access::Verb,
    lock::{ActiveClosure, ClosureCause, Holder, LockKey, LockState, WaiterInfo},
    request::{FieldValidator, RequestContext},
    telemetry::plain,
};

/// Maximum number of lease ends on the page.
const ENDS_MAX: usize = 20;
/// Fragment of an address that refers to the form to revoke a lease.
const FORM_FRAGMENT: &str = "#take";
/// Fragment of an address that refers to the form to close or open the lock.
const CLOSURE_FORM_FRAGMENT: &str = "#closure";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LockQuery {
    namespace: String,
    name: String,
    /// The id of the lease to revoke.
    lease: String,
    /// The form to show: `close` or `open`.
    form: String,
    /// The operator action that has just been performed.
    done: String,
}

#[derive(Template)]
#[template(path = "lock.html")]
struct LockPage {
    frame: Layout,
    lock: Link,
    name: String,
    namespace: String,
    state: &'static str,
    mode: String,
    last_token: u64,
    holders: Vec<HolderRow>,
    /// Number of holders, if not all of them are listed.
    all_holders: Option<u32>,
    waiters: Vec<WaiterRow>,
    /// Number of waiters, if not all of them are listed.
    all_waiters: Option<u32>,
    ends: Vec<EndRow>,
    notice: &'static str,
    may_take: bool,
    form: Option<RevokeForm>,
    closure: Option<ClosureRow>,
    /// Address of the form to close or to open the lock, for users who may do so.
    closure_form_href: Option<String>,
    closure_form: Option<ClosureForm>,
}

/// The closure of the lock.
struct ClosureRow {
    cause: ClosureCause,
    /// The operator, or the owner of the lease.
    owner: String,
    reason: String,
    left: Moment,
}

/// The form to close the lock, or to open it.
struct ClosureForm {
    /// Unformatted values, because the browser sends them back.
    namespace: String,
    name: String,
    mark: String,
    opens: bool,
}

struct HolderRow {
    owner: Link,
    reason: String,
    labels: Vec<String>,
    mode: String,
    since: Moment,
    left: Moment,
    token: u64,
    lease_id: String,
    take: String,
}

struct WaiterRow {
    place: usize,
    owner: Link,
    reason: String,
    mode: String,
    since: Moment,
    left: Moment,
}

/// The form to revoke one lease.
struct RevokeForm {
    /// Unformatted values, because the browser sends them back.
    namespace: String,
    name: String,
    lease_id: String,
    mark: String,
    /// Owner of the lease; `None` if the lease no longer holds the lock.
    owner: Option<String>,
}

pub(super) async fn show(
    State(console): State<SharedState>,
    Extension(user): Extension<RequestContext>,
    Query(query): Query<LockQuery>,
) -> Result<Response, ErrorPage> {
    let broker = require_broker(&console)?;
    let mut fields = FieldValidator::default();
    let key = fields.lock("", &query.namespace, &query.name);
    let key = fields.finish(key)?;
    let state = console.service.get(&user, &key).await?;
    let ends = broker.history().ends_of(&key, ENDS_MAX);
    let ends = ends.iter().map(|end| EndRow::new(end, true)).collect();
    let page = LockPage::new(&console, &user, &query, &key, state, ends);
    let mut response = render(&page);
    if page.form.is_some() || page.closure_form.is_some() {
        // With the policy `no-referrer`, a browser without `Sec-Fetch-Site` sends the form with the
        // origin `null`. With `same-origin` it sends the origin, and only to this server.
        let policy = HeaderValue::from_static("same-origin");
        response.headers_mut().insert(REFERRER_POLICY, policy);
    }
    Ok(response)
}

/// Returns the address of a lock's page, with a notice about the operator action `done`.
pub(super) fn notice_address(namespace: &str, name: &str, done: &str) -> String {
    let fields = [("namespace", namespace), ("name", name), ("done", done)];
    href("/lock", &fields)
}

impl LockPage {
    fn new(
        console: &ConsoleState,
        user: &RequestContext,
        query: &LockQuery,
        key: &LockKey,
        state: Option<LockState>,
        ends: Vec<EndRow>,
    ) -> Self {
        let name = plain(key.name());
        let layout = Layout::new(console, user, name.clone(), "locks");
        let updates = updates_address(View::Lock, Some(key));
        let may_revoke = user.can(Verb::ForceRelease, key);
        let (state_text, mode) = match &state {
            Some(state) => (
                state_name(state),
                lock_mode(state.mode(), state.permit_usage),
            ),
            // A lock without holders and waiters has a page as well.
            None => ("free", String::new()),
        };
        let state = state.unwrap_or_default();
        let mut form = None;
        if may_revoke && !query.lease.is_empty() {
            form = Some(RevokeForm::new(console, user, key, &state, &query.lease));
        }
        let may_close = user.can(Verb::Admin, key);
        let action = match state.closure.is_some() {
            true => ClosureAction::Open,
            false => ClosureAction::Close,
        };
        let fields = [
            ("namespace", key.namespace()),
            ("name", key.name()),
            ("form", action.name()),
        ];
        let closure_form = may_close && query.form == action.name();
        let holders = state.holders.iter();
        let waiters = (1..).zip(&state.waiters);
        Self {
            frame: layout.live_at(updates),
            lock: Link::to_lock(key),
            name,
            namespace: key.namespace().to_owned(),
            state: state_text,
            mode,
            last_token: state.last_fencing_token,
            holders: holders.map(|holder| HolderRow::new(key, holder)).collect(),
            all_holders: total_if_more(state.holder_count, state.holders.len()),
            waiters: waiters
                .map(|(position, waiter)| WaiterRow::new(position, waiter))
                .collect(),
            all_waiters: total_if_more(state.queue_length, state.waiters.len()),
            ends,
            notice: notice(&query.done),
            may_take: may_revoke,
            form,
            closure: state.closure.as_deref().map(ClosureRow::new),
            closure_form_href: may_close.then(|| href("/lock", &fields) + CLOSURE_FORM_FRAGMENT),
            closure_form: closure_form.then(|| ClosureForm::new(console, user, key, action)),
        }
    }
}

/// Returns the count if it is larger than the number of listed items.
fn total_if_more(count: u32, listed: usize) -> Option<u32> {
    let has_more = usize::try_from(count).is_ok_and(|count| count > listed);
    has_more.then_some(count)
}

fn notice(done: &str) -> &'static str {
    match done {
        "revoked" => {
            "The lease is revoked. Its holder is notified, and the lock is free when it is \
             released, or when the lease has expired."
        }
        "closed" => "The lock is closed: nothing new is granted until the end of the closure.",
        "opened" => "The lock is open.",
        "not-closed" => "The lock was not closed: nothing was done.",
        "asked" => "The holder is asked to finish, and its lease ends after the grace period.",
        _ => "",
    }
}

impl HolderRow {
    fn new(lock: &LockKey, holder: &Holder) -> Self {
        let owner = &holder.owner;
        let lease_id = holder.lease_id.to_string();
        let labels = owner
            .labels
            .iter()
            .map(|(key, value)| plain(&format!("{key}={value}")));
        let fields = [
            ("namespace", lock.namespace()),
            ("name", lock.name()),
            ("lease", lease_id.as_str()),
        ];
        Self {
            owner: Link::to_owner(&owner.id),
            reason: plain(&owner.reason),
            labels: labels.collect(),
            mode: holder_mode(holder.mode),
            since: Moment::past(holder.since_ms),
            left: Moment::ahead(holder.remaining_ms),
            token: holder.fencing_token.get(),
            take: href("/lock", &fields) + FORM_FRAGMENT,
            lease_id,
        }
    }
}

impl WaiterRow {
    fn new(position: usize, waiter: &WaiterInfo) -> Self {
        Self {
            place: position,
            owner: Link::to_owner(&waiter.owner.id),
            reason: plain(&waiter.owner.reason),
            mode: holder_mode(waiter.mode),
            since: Moment::past(waiter.since_ms),
            left: Moment::ahead(waiter.remaining_ms),
        }
    }
}

impl ClosureRow {
    fn new(active: &ActiveClosure) -> Self {
        let owner = &active.closure.owner;
        Self {
            cause: active.closure.cause,
            owner: plain(&owner.id),
            reason: plain(&owner.reason),
            left: Moment::ahead(active.remaining_ms),
        }
    }
}

impl ClosureForm {
    fn new(
        console: &ConsoleState,
        user: &RequestContext,
        key: &LockKey,
        action: ClosureAction,
    ) -> Self {
        let scope = TokenScope {
            user: &user.caller.name,
            namespace: key.namespace(),
            name: key.name(),
            subject: action.name(),
        };
        Self {
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            mark: console.csrf_tokens.issue(scope),
            opens: action == ClosureAction::Open,
        }
    }
}

impl RevokeForm {
    fn new(
        console: &ConsoleState,
        user: &RequestContext,
        key: &LockKey,
        state: &LockState,
        lease_id: &str,
    ) -> Self {
        let mut holders = state.holders.iter();
        let holder = holders.find(|holder| holder.lease_id.as_str() == lease_id);
        let scope = TokenScope {
            user: &user.caller.name,
            namespace: key.namespace(),
            name: key.name(),
            subject: lease_id,
        };
        Self {
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            lease_id: lease_id.to_owned(),
            mark: console.csrf_tokens.issue(scope),
            owner: holder.map(|holder| plain(&holder.owner.id)),
        }
    }
}
