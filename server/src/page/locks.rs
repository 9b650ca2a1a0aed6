//! A search among all locks, in the order of the store page by page, or the first of a bounded look by age or line.

use std::{cmp::Reverse, time::Duration};

use askama::Template;
use axum::{
    extract::{Query, State},
    response::Response,
};
use leasehold_proto::v1::{self as pb, ListLocksRequest, LockMode, lock::State as LockState};
use serde::Deserialize;
use tokio::time::Instant;

use super::{
    Page, Shared,
    frame::{Failure, Frame, Guest, broker, rendered},
    live::{View, address},
    shown::{Link, Moment, href, ms_of},
};
use crate::grpc::{Refusal, Visitor};

/// Locks of a page.
const ROWS: i32 = 50;
/// Owners of one lock that a list names.
const OWNERS: usize = 3;
/// A look for an order ends after so long, or so many locks.
const LOOK_MOST: Duration = Duration::from_secs(1);
const LOCKS_MOST: usize = 10_000;
/// Locks of one step of it: as many as the API gives.
const STEP: i32 = 1_000;

/// What is searched, as it stands in the address.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Search {
    pub(super) namespace: String,
    pub(super) prefix: String,
    pub(super) owner: String,
    pub(super) sort: Sort,
    /// Where the store's order goes on.
    pub(super) from: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Sort {
    /// As the store has them.
    #[default]
    #[serde(alias = "")]
    Store,
    /// Held the longest first.
    Age,
    /// The longest line first.
    Line,
}

#[derive(Template)]
#[template(path = "locks.html")]
struct LocksPage {
    frame: Frame,
    search: Search,
    rows: Vec<Row>,
    told: String,
    next: Option<String>,
    is_first: bool,
    first: String,
}

/// A lock of a list.
pub(super) struct Row {
    pub(super) lock: Link,
    pub(super) state: &'static str,
    pub(super) mode: String,
    pub(super) owners: Vec<Link>,
    pub(super) more_owners: usize,
    pub(super) since: Option<Moment>,
    pub(super) queue_length: i32,
}

/// What a look for an order has found.
struct Found {
    locks: Vec<pb::Lock>,
    looked: usize,
    is_all: bool,
}

pub(super) async fn show(
    State(page): State<Shared>,
    Guest(visitor): Guest,
    Query(search): Query<Search>,
) -> Result<Response, Failure> {
    broker(&page, &visitor)?;
    let made = match search.sort {
        Sort::Store => in_order(&page, &visitor, &search).await,
        Sort::Age => sorted(&page, &visitor, &search, since_ms).await,
        Sort::Line => sorted(&page, &visitor, &search, |lock| Reverse(lock.queue_length)).await,
    };
    let (locks, told, next) = made.map_err(|refusal| Failure::from(refusal).of(&visitor))?;
    let frame = Frame::new(&page, &visitor, "Locks", "locks");
    Ok(rendered(&LocksPage {
        frame: frame.live_at(address(View::Search, None)),
        rows: locks.iter().map(Row::of).collect(),
        told,
        next: next.map(|from| search.at(&from)),
        is_first: search.from.is_empty(),
        first: search.at(""),
        search,
    }))
}

type Made = (Vec<pb::Lock>, String, Option<String>);

async fn in_order(page: &Page, visitor: &Visitor, search: &Search) -> Result<Made, Refusal> {
    let listed = page
        .desk
        .list_locks(visitor, search.request(&search.from, ROWS));
    let listed = listed.await?;
    let count = listed.locks.len();
    let next = Some(listed.next_page_token).filter(|next| !next.is_empty());
    let told = match (count, &next) {
        (0, None) if search.from.is_empty() => {
            "No lock is held or waited for that this names.".to_owned()
        }
        (0, None) => "There are no more.".to_owned(),
        (0, Some(_)) => "None so far: the search goes on on the next page.".to_owned(),
        (_, None) => format!("{count} locks. These are all from here on."),
        (_, Some(_)) => format!("{count} locks, in the order of the store. There may be more."),
    };
    Ok((listed.locks, told, next))
}

/// The first by a key and then by name, smallest first, among as many as can be looked at in a moment.
async fn sorted<K: Ord>(
    page: &Page,
    visitor: &Visitor,
    search: &Search,
    key: impl Fn(&pb::Lock) -> K,
) -> Result<Made, Refusal> {
    let found = first(page, visitor, search, key).await?;
    let shown = found.locks.len();
    let told = match found.is_all {
        true => format!("The first {shown} of {} locks.", found.looked),
        false => format!(
            "The first {shown} of {} locks that could be looked at in a moment. There are more: \
             name a prefix, a namespace or an owner to be sure.",
            found.looked
        ),
    };
    Ok((found.locks, told, None))
}

async fn first<K: Ord>(
    page: &Page,
    visitor: &Visitor,
    search: &Search,
    key: impl Fn(&pb::Lock) -> K,
) -> Result<Found, Refusal> {
    let until = Instant::now() + LOOK_MOST;
    let rows = usize::try_from(ROWS).unwrap_or_default();
    let (mut found, mut from) = (Vec::new(), String::new());
    let mut looked = 0;
    loop {
        let listed = page
            .desk
            .list_locks(visitor, search.request(&from, STEP))
            .await?;
        looked += listed.locks.len();
        found.extend(listed.locks);
        sort(&mut found, &key);
        found.truncate(rows);
        from = listed.next_page_token;
        let is_all = from.is_empty();
        if is_all || looked >= LOCKS_MOST || Instant::now() >= until {
            return Ok(Found {
                locks: found,
                looked,
                is_all,
            });
        }
    }
}

impl Search {
    /// Its address from there on.
    fn at(&self, from: &str) -> String {
        let sort = match self.sort {
            Sort::Store => "",
            Sort::Age => "age",
            Sort::Line => "line",
        };
        let fields = [
            ("namespace", self.namespace.as_str()),
            ("prefix", &self.prefix),
            ("owner", &self.owner),
            ("sort", sort),
            ("from", from),
        ];
        href("/locks", &fields)
    }

    pub(super) fn request(&self, from: &str, most: i32) -> ListLocksRequest {
        ListLocksRequest {
            namespace: self.namespace.trim().to_owned(),
            name_prefix: self.prefix.clone(),
            owner_id: self.owner.clone(),
            page_size: most,
            page_token: from.to_owned(),
        }
    }

    fn is_by_age(&self) -> bool {
        self.sort == Sort::Age
    }

    fn is_by_line(&self) -> bool {
        self.sort == Sort::Line
    }
}

impl Row {
    pub(super) fn of(lock: &pb::Lock) -> Self {
        let target = lock.target.clone().unwrap_or_default();
        let owners = lock
            .holders
            .iter()
            .filter_map(|holder| holder.owner.as_ref());
        let mut owners: Vec<_> = owners.map(|owner| Link::to_owner(&owner.id)).collect();
        owners.truncate(OWNERS);
        let holders = usize::try_from(lock.holder_count).unwrap_or_default();
        let since_ms = since_ms(lock);
        Self {
            lock: Link::to_lock(&target.namespace, &target.name),
            state: state(lock),
            mode: mode(&target),
            more_owners: holders - owners.len().min(holders),
            owners,
            since: (since_ms < u64::MAX).then(|| Moment::past(since_ms)),
            queue_length: lock.queue_length,
        }
    }
}

pub(super) fn state(lock: &pb::Lock) -> &'static str {
    match lock.state() {
        LockState::Held => "held",
        LockState::Delayed => "closed",
        LockState::Granting | LockState::Unspecified => "granting",
    }
}

pub(super) fn mode(target: &pb::LockTarget) -> String {
    match target.mode() {
        LockMode::Exclusive | LockMode::Unspecified => "exclusive".to_owned(),
        LockMode::Shared => "shared".to_owned(),
        LockMode::Semaphore if target.permits > 0 => {
            format!("semaphore, {} of {}", target.permits, target.limit)
        }
        LockMode::Semaphore => format!("semaphore of {}", target.limit),
    }
}

/// Sorts by a key, and by name where it is equal: the store has no order, and pages of it come in any.
fn sort<K: Ord>(locks: &mut [pb::Lock], key: impl Fn(&pb::Lock) -> K) {
    locks.sort_by(|one, other| {
        let by_name = || name_of(one).cmp(&name_of(other));
        key(one).cmp(&key(other)).then_with(by_name)
    });
}

fn name_of(lock: &pb::Lock) -> Option<(&str, &str)> {
    let target = lock.target.as_ref()?;
    Some((&target.namespace, &target.name))
}

/// Since when the first holder has it; the end of time where that is not shown.
fn since_ms(lock: &pb::Lock) -> u64 {
    let since = lock
        .holders
        .iter()
        .filter_map(|holder| holder.since_time.as_ref());
    let since = since.map(|at| ms_of(at.seconds, at.nanos)).min();
    since.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_the_same_age_are_sorted_by_name() {
        let lock = |name: &str, seconds| pb::Lock {
            target: Some(pb::LockTarget {
                name: name.to_owned(),
                ..Default::default()
            }),
            holders: vec![pb::Holder {
                since_time: Some(prost_types::Timestamp { seconds, nanos: 0 }),
                ..Default::default()
            }],
            ..Default::default()
        };
        let mut locks = [lock("c", 2), lock("b", 2), lock("d", 1), lock("a", 3)];
        sort(&mut locks, since_ms);
        let names = locks.map(|lock| lock.target.expect("a target").name);
        assert_eq!(names, ["d", "b", "c", "a"]);
    }
}
