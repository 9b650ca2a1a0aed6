//! One lock: who holds it, who waits in which order, how its last leases ended, and the form that takes it away.

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
    Page, Shared,
    audit::EndRow,
    frame::{Failure, Frame, Guest, broker, rendered},
    live::{View, address},
    locks::{mode, state},
    seal::Bound,
    shown::{Link, Moment, href, ms_of},
};
use crate::{
    access::Verb,
    grpc::Visitor,
    lock::{LockKey, LockName, Namespace},
};

/// Ends of leases that are shown.
const ENDS: usize = 20;
/// What the script has to be able to tell an element by.
const ANCHOR: &str = "#take";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    namespace: String,
    name: String,
    /// The lease that is to be taken away.
    lease: String,
    /// What was done a moment ago.
    done: String,
}

#[derive(Template)]
#[template(path = "lock.html")]
struct LockPage {
    frame: Frame,
    lock: Link,
    name: String,
    namespace: String,
    state: &'static str,
    mode: String,
    last_token: i64,
    holders: Vec<HolderRow>,
    /// How many hold it, if not all are shown.
    all_holders: Option<i32>,
    waiters: Vec<WaiterRow>,
    /// The same of those who wait.
    all_waiters: Option<i32>,
    ends: Vec<EndRow>,
    notice: &'static str,
    may_take: bool,
    form: Option<TakeForm>,
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

/// The form for one lease.
struct TakeForm {
    /// As they are, to be sent back.
    namespace: String,
    name: String,
    lease_id: String,
    mark: String,
    /// Whose it is; `None`: the lease does not hold the lock any more.
    owner: Option<String>,
}

pub(super) async fn show(
    State(page): State<Shared>,
    Guest(visitor): Guest,
    Query(asked): Query<Asked>,
) -> Result<Response, Failure> {
    let broker = broker(&page, &visitor)?;
    let request = GetLockRequest {
        namespace: asked.namespace.clone(),
        name: asked.name.clone(),
    };
    let state = match page.desk.get_lock(&visitor, request).await {
        Ok(lock) => Some(lock),
        // Nobody holds it or waits for it, which is worth a page.
        Err(refusal) if refusal.status == 404 => None,
        Err(refusal) => return Err(Failure::from(refusal).of(&visitor)),
    };
    let key = key(&asked).ok_or_else(|| {
        let why = "Which lock? The address names none that there may be.";
        Failure::new(StatusCode::BAD_REQUEST, why).of(&visitor)
    })?;
    let ends = broker.history().ends_of(&key, ENDS);
    let ends = ends.iter().map(|end| EndRow::of(end, true)).collect();
    let shown = LockPage::of((&page, &visitor), &asked, (&key, state), ends);
    let mut response = rendered(&shown);
    if shown.form.is_some() {
        // Where a browser says nothing else of a form's origin, it says this, and to nobody but us.
        let policy = HeaderValue::from_static("same-origin");
        response.headers_mut().insert(REFERRER_POLICY, policy);
    }
    Ok(response)
}

fn key(asked: &Asked) -> Option<LockKey> {
    let namespace = Namespace::parse(&asked.namespace).ok()?;
    Some(LockKey::new(namespace, LockName::parse(&asked.name).ok()?))
}

/// Where a lock is shown, after that was done to it.
pub(super) fn done_at(namespace: &str, name: &str, done: &str) -> String {
    let fields = [("namespace", namespace), ("name", name), ("done", done)];
    href("/lock", &fields)
}

impl LockPage {
    fn of(
        (page, visitor): (&Page, &Visitor),
        asked: &Asked,
        (key, lock): (&LockKey, Option<pb::Lock>),
        ends: Vec<EndRow>,
    ) -> Self {
        let (namespace, name) = (key.namespace(), key.name());
        let frame = Frame::new(page, visitor, plain(name), "locks");
        let live = address(View::Lock, Some((namespace, name)));
        let may_take = visitor.may(Verb::ForceRelease, key);
        let is_idle = lock.is_none();
        let lock = lock.unwrap_or_default();
        let target = lock.target.clone().unwrap_or_default();
        let mut form = None;
        if may_take && !asked.lease.is_empty() {
            form = Some(TakeForm::of(page, visitor, key, (&lock, &asked.lease)));
        }
        Self {
            frame: frame.live_at(live),
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
                .map(|holder| HolderRow::of(key, holder))
                .collect(),
            all_holders: all(lock.holder_count, lock.holders.len()),
            waiters: (1..).zip(&lock.waiters).map(WaiterRow::of).collect(),
            all_waiters: all(lock.queue_length, lock.waiters.len()),
            ends,
            notice: notice(&asked.done),
            may_take,
            form,
        }
    }
}

/// How many there are, if more than are shown.
fn all(count: i32, shown: usize) -> Option<i32> {
    let are_more = usize::try_from(count).is_ok_and(|count| count > shown);
    are_more.then_some(count)
}

fn notice(done: &str) -> &'static str {
    match done {
        "revoked" => {
            "The lease is revoked. Its holder is told, and the lock is free when it is given back, or \
             when the lease has run out."
        }
        "asked" => "The holder is asked to finish, and its lease ends with the grace.",
        _ => "",
    }
}

impl HolderRow {
    fn of(lock: &LockKey, holder: &pb::Holder) -> Self {
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
            take: href("/lock", &fields) + ANCHOR,
        }
    }
}

impl WaiterRow {
    fn of((place, waiting): (usize, &pb::Holder)) -> Self {
        let owner = waiting.owner.clone().unwrap_or_default();
        Self {
            place,
            owner: Link::to_owner(&owner.id),
            reason: plain(&owner.reason),
            mode: mode(&waiting.target.clone().unwrap_or_default()),
            since: since(waiting),
            left: left(waiting),
        }
    }
}

impl TakeForm {
    fn of(page: &Page, visitor: &Visitor, key: &LockKey, (lock, lease): (&pb::Lock, &str)) -> Self {
        let mut holders = lock.holders.iter();
        let holder = holders.find(|holder| holder.lease_id == lease);
        let bound = Bound {
            visitor: visitor.name(),
            namespace: key.namespace(),
            name: key.name(),
            lease_id: lease,
        };
        Self {
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            lease_id: lease.to_owned(),
            mark: page.seal.mark(bound),
            owner: holder.map(|holder| {
                let owner = holder.owner.as_ref();
                plain(owner.map_or("", |owner| owner.id.as_str()))
            }),
        }
    }
}

fn since(holder: &pb::Holder) -> Moment {
    let since = holder.since_time.as_ref();
    Moment::past(since.map_or(0, |at| ms_of(at.seconds, at.nanos)))
}

fn left(holder: &pb::Holder) -> Moment {
    let left = holder.remaining.as_ref();
    Moment::ahead(left.map_or(0, |left| ms_of(left.seconds, left.nanos)))
}

/// Since when somebody waits, of a place in a line.
pub(super) fn place_of(lock: &pb::Lock, owner: &str) -> Option<(usize, Moment)> {
    let mut places = (1..).zip(&lock.waiters);
    let place = places.find(|(_, waiting)| {
        let of = waiting.owner.as_ref();
        of.is_some_and(|of| of.id == owner)
    });
    place.map(|(place, waiting)| (place, since(waiting)))
}

/// What somebody of that name holds.
pub(super) fn held_by(lock: &pb::Lock, owner: &str) -> Option<(Moment, Moment, String)> {
    let mut holders = lock.holders.iter();
    let holder = holders.find(|holder| {
        let of = holder.owner.as_ref();
        of.is_some_and(|of| of.id == owner)
    })?;
    let reason = holder.owner.as_ref().map(|of| plain(&of.reason));
    Some((since(holder), left(holder), reason.unwrap_or_default()))
}
