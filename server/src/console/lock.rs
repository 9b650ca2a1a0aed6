//! Page of one lock: its holders, its queue, its recent lease ends, and the form to revoke a lease.

use askama::Template;
use axum::{
    extract::{Query, State},
    http::{HeaderValue, StatusCode, header::REFERRER_POLICY},
    response::Response,
};
use leasehold_proto::{
    text::plain,
    v1::{self as pb, GetLockRequest},
};
use serde::Deserialize;

use super::{
    ConsoleState, SharedState,
    audit::EndRow,
    csrf::TokenScope,
    format::{Link, Moment, href, ms_of},
    layout::{AuthenticatedUser, ErrorPage, Layout, render, require_broker},
    locks::{mode, state},
    sse::{View, updates_address},
};
use crate::{
    access::Verb,
    grpc::ConsoleUser,
    lock::{LockKey, LockName, Namespace},
};

/// Maximum number of lease ends on the page.
const ENDS_MAX: usize = 20;
/// Fragment of an address that refers to the form to revoke a lease.
const FORM_FRAGMENT: &str = "#take";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LockQuery {
    namespace: String,
    name: String,
    /// The id of the lease to revoke.
    lease: String,
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
    last_token: i64,
    holders: Vec<HolderRow>,
    /// Number of holders, if not all of them are listed.
    all_holders: Option<i32>,
    waiters: Vec<WaiterRow>,
    /// Number of waiters, if not all of them are listed.
    all_waiters: Option<i32>,
    ends: Vec<EndRow>,
    notice: &'static str,
    may_take: bool,
    form: Option<RevokeForm>,
}

struct HolderRow {
    owner: Link,
    reason: String,
    labels: Vec<String>,
    mode: String,
    since: Moment,
    left: Moment,
    token: i64,
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
    AuthenticatedUser(user): AuthenticatedUser,
    Query(query): Query<LockQuery>,
) -> Result<Response, ErrorPage> {
    let broker = require_broker(&console, &user)?;
    let request = GetLockRequest {
        namespace: query.namespace.clone(),
        name: query.name.clone(),
    };
    let lock = match console.backend.get_lock(&user, request).await {
        Ok(lock) => Some(lock),
        // A lock without holders and waiters has a page as well.
        Err(error) if error.status == 404 => None,
        Err(error) => return Err(ErrorPage::from(error).with_user(&user)),
    };
    let key = lock_key(&query).ok_or_else(|| {
        let message = "The URL does not contain a valid lock name.";
        ErrorPage::new(StatusCode::BAD_REQUEST, message).with_user(&user)
    })?;
    let ends = broker.history().ends_of(&key, ENDS_MAX);
    let ends = ends.iter().map(|end| EndRow::new(end, true)).collect();
    let page = LockPage::new(&console, &user, &query, &key, lock, ends);
    let mut response = render(&page);
    if page.form.is_some() {
        // With the policy `no-referrer`, a browser without `Sec-Fetch-Site` sends the form with the
        // origin `null`. With `same-origin` it sends the origin, and only to this server.
        let policy = HeaderValue::from_static("same-origin");
        response.headers_mut().insert(REFERRER_POLICY, policy);
    }
    Ok(response)
}

fn lock_key(query: &LockQuery) -> Option<LockKey> {
    let namespace = Namespace::parse(&query.namespace).ok()?;
    Some(LockKey::new(namespace, LockName::parse(&query.name).ok()?))
}

/// Returns the address of a lock's page, with a notice about the operator action `done`.
pub(super) fn notice_address(namespace: &str, name: &str, done: &str) -> String {
    let fields = [("namespace", namespace), ("name", name), ("done", done)];
    href("/lock", &fields)
}

impl LockPage {
    fn new(
        console: &ConsoleState,
        user: &ConsoleUser,
        query: &LockQuery,
        key: &LockKey,
        lock: Option<pb::Lock>,
        ends: Vec<EndRow>,
    ) -> Self {
        let (namespace, name) = (key.namespace(), key.name());
        let layout = Layout::new(console, user, plain(name), "locks");
        let updates = updates_address(View::Lock, Some(key));
        let may_revoke = user.can(Verb::ForceRelease, key);
        let is_idle = lock.is_none();
        let lock = lock.unwrap_or_default();
        let target = lock.target.clone().unwrap_or_default();
        let mut form = None;
        if may_revoke && !query.lease.is_empty() {
            form = Some(RevokeForm::new(console, user, key, &lock, &query.lease));
        }
        Self {
            frame: layout.live_at(updates),
            lock: Link::to_key(key),
            name: plain(name),
            namespace: namespace.to_owned(),
            state: if is_idle { "free" } else { state(&lock) },
            mode: if is_idle {
                String::new()
            } else {
                mode(&target)
            },
            last_token: lock.last_fencing_token,
            holders: lock
                .holders
                .iter()
                .map(|holder| HolderRow::new(key, holder))
                .collect(),
            all_holders: total_if_more(lock.holder_count, lock.holders.len()),
            waiters: (1..)
                .zip(&lock.waiters)
                .map(|(position, waiter)| WaiterRow::new(position, waiter))
                .collect(),
            all_waiters: total_if_more(lock.queue_length, lock.waiters.len()),
            ends,
            notice: notice(&query.done),
            may_take: may_revoke,
            form,
        }
    }
}

/// Returns the count if it is larger than the number of listed items.
fn total_if_more(count: i32, listed: usize) -> Option<i32> {
    let has_more = usize::try_from(count).is_ok_and(|count| count > listed);
    has_more.then_some(count)
}

fn notice(done: &str) -> &'static str {
    match done {
        "revoked" => {
            "The lease is revoked. Its holder is notified, and the lock is free when it is \
             released, or when the lease has expired."
        }
        "asked" => "The holder is asked to finish, and its lease ends after the grace period.",
        _ => "",
    }
}

impl HolderRow {
    fn new(lock: &LockKey, holder: &pb::Holder) -> Self {
        let owner = holder.owner.clone().unwrap_or_default();
        let mut labels: Vec<_> = owner.labels.iter().collect();
        labels.sort();
        let labels = labels
            .iter()
            .map(|(key, value)| plain(&format!("{key}={value}")));
        let fields = [
            ("namespace", lock.namespace()),
            ("name", lock.name()),
            ("lease", holder.lease_id.as_str()),
        ];
        Self {
            owner: Link::to_owner(&owner.id),
            reason: plain(&owner.reason),
            labels: labels.collect(),
            mode: mode(&holder.target.clone().unwrap_or_default()),
            since: since(holder),
            left: left(holder),
            token: holder.fencing_token,
            lease_id: holder.lease_id.clone(),
            take: href("/lock", &fields) + FORM_FRAGMENT,
        }
    }
}

impl WaiterRow {
    fn new(position: usize, waiter: &pb::Holder) -> Self {
        let owner = waiter.owner.clone().unwrap_or_default();
        Self {
            place: position,
            owner: Link::to_owner(&owner.id),
            reason: plain(&owner.reason),
            mode: mode(&waiter.target.clone().unwrap_or_default()),
            since: since(waiter),
            left: left(waiter),
        }
    }
}

impl RevokeForm {
    fn new(
        console: &ConsoleState,
        user: &ConsoleUser,
        key: &LockKey,
        lock: &pb::Lock,
        lease_id: &str,
    ) -> Self {
        let mut holders = lock.holders.iter();
        let holder = holders.find(|holder| holder.lease_id == lease_id);
        let scope = TokenScope {
            user: user.name(),
            namespace: key.namespace(),
            name: key.name(),
            lease_id,
        };
        Self {
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            lease_id: lease_id.to_owned(),
            mark: console.csrf_tokens.issue(scope),
            owner: holder.map(|holder| {
                let owner = holder.owner.as_ref();
                plain(owner.map_or("", |owner| owner.id.as_str()))
            }),
        }
    }
}

fn since(holder: &pb::Holder) -> Moment {
    let since = holder.since_time.as_ref();
    Moment::past(since.map_or(0, |time| ms_of(time.seconds, time.nanos)))
}

fn left(holder: &pb::Holder) -> Moment {
    let remaining = holder.remaining.as_ref();
    Moment::ahead(remaining.map_or(0, |duration| ms_of(duration.seconds, duration.nanos)))
}

/// Returns the queue position of a waiter with this owner, and the start of its wait.
pub(super) fn position_of(lock: &pb::Lock, owner_id: &str) -> Option<(usize, Moment)> {
    let mut queue = (1..).zip(&lock.waiters);
    let entry = queue.find(|(_, waiter)| {
        let owner = waiter.owner.as_ref();
        owner.is_some_and(|owner| owner.id == owner_id)
    });
    entry.map(|(position, waiter)| (position, since(waiter)))
}

/// Returns the start of the hold of this owner, its remaining time and its reason.
pub(super) fn hold_of(lock: &pb::Lock, owner_id: &str) -> Option<(Moment, Moment, String)> {
    let mut holders = lock.holders.iter();
    let holder = holders.find(|holder| {
        let owner = holder.owner.as_ref();
        owner.is_some_and(|owner| owner.id == owner_id)
    })?;
    let reason = holder.owner.as_ref().map(|owner| plain(&owner.reason));
    Some((since(holder), left(holder), reason.unwrap_or_default()))
}
