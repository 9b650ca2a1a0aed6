//! Search page: locks in the order of the store, page by page, or the first locks of a bounded scan
//! by age or queue length.

use std::{cmp::Reverse, time::Duration};

use askama::Template;
use axum::{
    Extension,
    extract::{Query, State},
    response::Response,
};
use serde::Deserialize;
use tokio::time::Instant;

use super::{
    ConsoleState, SharedState,
    format::{Link, Moment, href},
    layout::{ErrorPage, Layout, render, require_broker},
    sse::{View, updates_address},
};
use crate::{
    inspection::{ListRequest, ListedLock},
    lock::{LockState, LockStatus, Mode, PermitUsage},
    request::{RequestContext, RequestError},
};

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
    namespace: String,
    prefix: String,
    owner: String,
    sort: Sort,
    /// Page token at which the order of the store continues.
    from: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Sort {
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
    /// Time until the end of the closure, if the lock is closed.
    pub(super) closed: Option<Moment>,
    pub(super) queue_length: u32,
}

pub(super) async fn show(
    State(console): State<SharedState>,
    Extension(user): Extension<RequestContext>,
    Query(search): Query<Search>,
) -> Result<Response, ErrorPage> {
    require_broker(&console)?;
    let result = match search.sort {
        Sort::Store => list_in_store_order(&console, &user, &search).await,
        Sort::Age => list_sorted(&console, &user, &search, since_ms).await,
        Sort::Line => {
            list_sorted(&console, &user, &search, |listed| {
                Reverse(listed.state.queue_length)
            })
            .await
        }
    };
    let (locks, summary, next) = result?;
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

type SearchResult = (Vec<ListedLock>, String, Option<String>);

async fn list_in_store_order(
    console: &ConsoleState,
    user: &RequestContext,
    search: &Search,
) -> Result<SearchResult, RequestError> {
    let request = search.request(&search.from, ROWS);
    let listed = console.service.list(user, request).await?;
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
    user: &RequestContext,
    search: &Search,
    key: impl Fn(&ListedLock) -> K,
) -> Result<SearchResult, RequestError> {
    let deadline = Instant::now() + SCAN_DURATION_MAX;
    let max_locks = usize::try_from(ROWS).unwrap_or_default();
    let (mut locks, mut page_token) = (Vec::new(), String::new());
    let mut scanned = 0;
    let is_complete = loop {
        let request = search.request(&page_token, STEP);
        let listed = console.service.list(user, request).await?;
        scanned += listed.locks.len();
        locks.extend(listed.locks);
        sort(&mut locks, &key);
        locks.truncate(max_locks);
        page_token = listed.next_page_token;
        if page_token.is_empty() {
            break true;
        }
        if scanned >= SCAN_LOCKS_MAX || Instant::now() >= deadline {
            break false;
        }
    };
    let count = locks.len();
    let summary = match is_complete {
        true => format!("The first {count} of {scanned} locks."),
        false => format!(
            "The first {count} of {scanned} locks that could be read within a second. There are \
             more: enter a prefix, a namespace or an owner for a complete result."
        ),
    };
    Ok((locks, summary, None))
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

    fn request(&self, page_token: &str, page_size: i32) -> ListRequest {
        ListRequest {
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
    pub(super) fn new(listed: &ListedLock) -> Self {
        let state = &listed.state;
        let owners = state.holders.iter().take(OWNERS_MAX);
        let owners: Vec<_> = owners
            .map(|holder| Link::to_owner(&holder.owner.id))
            .collect();
        let holders = usize::try_from(state.holder_count).unwrap_or(usize::MAX);
        let since_ms = since_ms(listed);
        Self {
            lock: Link::to_lock(&listed.lock),
            state: state_name(state),
            mode: lock_mode(listed.mode, state.permit_usage),
            more_owners: holders.saturating_sub(owners.len()),
            owners,
            since: (since_ms < u64::MAX).then(|| Moment::past(since_ms)),
            closed: state
                .closure
                .as_ref()
                .map(|active| Moment::ahead(active.remaining_ms)),
            queue_length: state.queue_length,
        }
    }
}

pub(super) fn state_name(state: &LockState) -> &'static str {
    match state.status() {
        LockStatus::Held => "held",
        LockStatus::Closed => "closed",
        LockStatus::Granting => "granting",
        LockStatus::Free => "free",
    }
}

/// Returns the mode of a lock, which may be known from holders that the user may not see. That of a
/// semaphore has its limit and the permits in use.
pub(super) fn lock_mode(mode: Mode, usage: Option<PermitUsage>) -> String {
    let Some(usage) = usage else {
        return holder_mode(mode);
    };
    let PermitUsage { limit, used, .. } = usage;
    let free = limit.saturating_sub(used);
    let set = match usage.is_limit_set {
        true => ", set",
        false => "",
    };
    format!("semaphore: {used} permits used, {free} free (limit {limit}{set})")
}

/// Returns the mode of a holder or waiter.
pub(super) fn holder_mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Semaphore { permits, limit } => format!("semaphore, {permits} of {limit}"),
    }
}

/// Sorts by `key`, and by name where the keys are equal, because the store returns locks
/// in no defined order.
fn sort<K: Ord>(locks: &mut [ListedLock], key: impl Fn(&ListedLock) -> K) {
    locks.sort_by(|left, right| {
        let by_name = || left.lock.cmp(&right.lock);
        key(left).cmp(&key(right)).then_with(by_name)
    });
}

/// Returns the start of the longest hold in milliseconds since 1970, or `u64::MAX` if the list
/// contains no holder.
fn since_ms(listed: &ListedLock) -> u64 {
    let since = listed.state.holders.iter().map(|holder| holder.since_ms);
    since.min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lock::{FencingToken, Holder, Owner},
        store::stub::{lease_id, lock},
    };

    #[test]
    fn locks_of_the_same_age_are_sorted_by_name() {
        let listed = |name: &str, since_ms| ListedLock {
            lock: lock(name),
            mode: Mode::Exclusive,
            state: LockState {
                holders: vec![Holder {
                    lease_id: lease_id(1),
                    owner: Owner::default(),
                    mode: Mode::Exclusive,
                    fencing_token: FencingToken::new(1).expect("a token"),
                    since_ms,
                    remaining_ms: 0,
                }],
                ..LockState::default()
            },
        };
        let mut locks = [
            listed("c", 2_000),
            listed("b", 2_000),
            listed("d", 1_000),
            listed("a", 3_000),
        ];
        sort(&mut locks, since_ms);
        let names = locks.map(|listed| listed.lock.name().to_owned());
        assert_eq!(names, ["d", "b", "c", "a"]);
    }
}
