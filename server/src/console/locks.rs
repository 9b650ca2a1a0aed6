//! Search page: locks in the order of the store, page by page, or the first locks of a bounded scan
//! by age or queue length.

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
    ConsoleState, SharedState,
    format::{Link, Moment, href, ms_of},
    layout::{AuthenticatedUser, ErrorPage, Layout, render, require_broker},
    sse::{View, updates_address},
};
use crate::grpc::{ConsoleError, ConsoleUser};

/// Number of locks per page.
const ROWS: i32 = 50;
/// Maximum number of owners listed for a lock.
const OWNERS_MAX: usize = 3;
/// Maximum duration of a scan for a sorted result. [`SCAN_LOCKS_MAX`] limits its number of locks.
const SCAN_DURATION_MAX: Duration = Duration::from_secs(1);
const SCAN_LOCKS_MAX: usize = 10_000;
/// Number of locks per step of the scan, which is the maximum of the API.
const STEP: i32 = 1_000;

/// The search parameters in the address.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Search {
    pub(super) namespace: String,
    pub(super) prefix: String,
    pub(super) owner: String,
    pub(super) sort: Sort,
    /// Page token at which the order of the store continues.
    pub(super) from: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Sort {
    /// In the order of the store.
    #[default]
    #[serde(alias = "")]
    Store,
    /// Longest hold first.
    Age,
    /// Longest queue first.
    Line,
}

#[derive(Template)]
#[template(path = "locks.html")]
struct LocksPage {
    frame: Layout,
    search: Search,
    rows: Vec<Row>,
    summary: String,
    next: Option<String>,
    is_first: bool,
    first: String,
}

/// A row about a lock.
pub(super) struct Row {
    pub(super) lock: Link,
    pub(super) state: &'static str,
    pub(super) mode: String,
    pub(super) owners: Vec<Link>,
    pub(super) more_owners: usize,
    pub(super) since: Option<Moment>,
    pub(super) queue_length: i32,
}

/// The result of a scan for a sorted result.
struct ScanResult {
    locks: Vec<pb::Lock>,
    scanned: usize,
    is_complete: bool,
}

pub(super) async fn show(
    State(console): State<SharedState>,
    AuthenticatedUser(user): AuthenticatedUser,
    Query(search): Query<Search>,
) -> Result<Response, ErrorPage> {
    require_broker(&console, &user)?;
    let result = match search.sort {
        Sort::Store => list_in_store_order(&console, &user, &search).await,
        Sort::Age => list_sorted(&console, &user, &search, since_ms).await,
        Sort::Line => {
            list_sorted(&console, &user, &search, |lock| Reverse(lock.queue_length)).await
        }
    };
    let (locks, summary, next) = result.map_err(|error| ErrorPage::from(error).with_user(&user))?;
    let layout = Layout::new(&console, &user, "Locks", "locks");
    Ok(render(&LocksPage {
        frame: layout.live_at(updates_address(View::Search, None)),
        rows: locks.iter().map(Row::new).collect(),
        summary,
        next: next.map(|page_token| search.address_from(&page_token)),
        is_first: search.from.is_empty(),
        first: search.address_from(""),
        search,
    }))
}

type SearchResult = (Vec<pb::Lock>, String, Option<String>);

async fn list_in_store_order(
    console: &ConsoleState,
    user: &ConsoleUser,
    search: &Search,
) -> Result<SearchResult, ConsoleError> {
    let listed = console
        .backend
        .list_locks(user, search.request(&search.from, ROWS));
    let listed = listed.await?;
    let count = listed.locks.len();
    let next = Some(listed.next_page_token).filter(|next| !next.is_empty());
    let summary = match (count, &next) {
        (0, None) if search.from.is_empty() => {
            "No lock that is held or waited for matches.".to_owned()
        }
        (0, None) => "There are no more locks.".to_owned(),
        (0, Some(_)) => "No matches so far: the search continues on the next page.".to_owned(),
        (_, None) => format!("{count} locks. There are no more after these."),
        (_, Some(_)) => format!("{count} locks, in the order of the store. There may be more."),
    };
    Ok((listed.locks, summary, next))
}

/// Returns the first locks by `key` and then by name, in ascending order, among the locks that a
/// bounded scan reads.
async fn list_sorted<K: Ord>(
    console: &ConsoleState,
    user: &ConsoleUser,
    search: &Search,
    key: impl Fn(&pb::Lock) -> K,
) -> Result<SearchResult, ConsoleError> {
    let scan = scan_first(console, user, search, key).await?;
    let count = scan.locks.len();
    let summary = match scan.is_complete {
        true => format!("The first {count} of {} locks.", scan.scanned),
        false => format!(
            "The first {count} of {} locks that could be read within a second. There are more: \
             enter a prefix, a namespace or an owner for a complete result.",
            scan.scanned
        ),
    };
    Ok((scan.locks, summary, None))
}

async fn scan_first<K: Ord>(
    console: &ConsoleState,
    user: &ConsoleUser,
    search: &Search,
    key: impl Fn(&pb::Lock) -> K,
) -> Result<ScanResult, ConsoleError> {
    let deadline = Instant::now() + SCAN_DURATION_MAX;
    let max_locks = usize::try_from(ROWS).unwrap_or_default();
    let (mut locks, mut page_token) = (Vec::new(), String::new());
    let mut scanned = 0;
    loop {
        let listed = console
            .backend
            .list_locks(user, search.request(&page_token, STEP))
            .await?;
        scanned += listed.locks.len();
        locks.extend(listed.locks);
        sort(&mut locks, &key);
        locks.truncate(max_locks);
        page_token = listed.next_page_token;
        let is_complete = page_token.is_empty();
        if is_complete || scanned >= SCAN_LOCKS_MAX || Instant::now() >= deadline {
            return Ok(ScanResult {
                locks,
                scanned,
                is_complete,
            });
        }
    }
}

impl Search {
    /// Returns the address at which the search continues from a page token.
    fn address_from(&self, page_token: &str) -> String {
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
            ("from", page_token),
        ];
        href("/locks", &fields)
    }

    pub(super) fn request(&self, page_token: &str, page_size: i32) -> ListLocksRequest {
        ListLocksRequest {
            namespace: self.namespace.trim().to_owned(),
            name_prefix: self.prefix.clone(),
            owner_id: self.owner.clone(),
            page_size,
            page_token: page_token.to_owned(),
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
    pub(super) fn new(lock: &pb::Lock) -> Self {
        let target = lock.target.clone().unwrap_or_default();
        let owners = lock
            .holders
            .iter()
            .filter_map(|holder| holder.owner.as_ref());
        let mut owners: Vec<_> = owners.map(|owner| Link::to_owner(&owner.id)).collect();
        owners.truncate(OWNERS_MAX);
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

/// Sorts by `key`, and by name where the keys are equal, because the store returns locks
/// in no defined order.
fn sort<K: Ord>(locks: &mut [pb::Lock], key: impl Fn(&pb::Lock) -> K) {
    locks.sort_by(|left, right| {
        let by_name = || name_of(left).cmp(&name_of(right));
        key(left).cmp(&key(right)).then_with(by_name)
    });
}

fn name_of(lock: &pb::Lock) -> Option<(&str, &str)> {
    let target = lock.target.as_ref()?;
    Some((&target.namespace, &target.name))
}

/// Returns the start of the longest hold in milliseconds since 1970, or `u64::MAX` if the list
/// contains no holder.
fn since_ms(lock: &pb::Lock) -> u64 {
    let since = lock
        .holders
        .iter()
        .filter_map(|holder| holder.since_time.as_ref());
    let since = since.map(|time| ms_of(time.seconds, time.nanos)).min();
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
