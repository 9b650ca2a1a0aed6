//! Pages of a list, with bounds on locks, bytes, time and keys read from the store. Clients treat the
//! token at which the next page continues as opaque.

use std::{collections::HashSet, time::Duration};

use data_encoding::BASE64URL_NOPAD;
use tokio::time::Instant;

use super::PageBounds;
use crate::{
    access::Verb,
    broker::Broker,
    lock::{ArgumentsHash, Filter, LockKey, LockName, LockState, Mode, Namespace},
    request::{FieldValidator, OWNER_ID_MAX_BYTES, RequestContext, RequestError, Violation},
    store::{Cursor, Listed},
};

const PAGE_DEFAULT: i32 = 100;
const PAGE_MAX: i32 = 1_000;
const PAGE_TOKEN: &str = "page_token";
/// Time after which no further step starts. A step takes at most a second.
const STEP_START_DEADLINE: Duration = Duration::from_millis(500);
/// Maximum number of steps for one page. A step reads about 64 keys.
const STEPS_MAX: usize = 160;
/// Size of the longest page token, which is reserved on each page.
const TOKEN_MAX_BYTES: usize = 3_072;

/// A request for one page of a list, as its caller has sent it.
#[derive(Debug, Clone, Default)]
pub struct ListRequest {
    /// Namespace of the listed locks; empty for all namespaces.
    pub namespace: String,
    pub name_prefix: String,
    /// Owner that must be among the holders and waiters; empty for any owner.
    pub owner_id: String,
    /// Maximum number of locks; 0 selects the default.
    pub page_size: i32,
    /// Token of the previous page; empty for the first page.
    pub page_token: String,
}

/// A valid request for one page of a list.
pub(crate) struct ListQuery {
    filter: Filter,
    pub(crate) cursor: Option<Cursor>,
    /// Maximum number of locks on the page.
    page_size: usize,
}

/// A lock as a list shows it to one caller: without waiters, and without holders and the owner of
/// the closure unless the caller may observe the lock.
#[derive(Debug, Clone)]
pub struct ListedLock {
    pub lock: LockKey,
    pub mode: Mode,
    pub state: LockState,
}

/// A page of a list.
#[derive(Debug, Clone)]
pub struct LockPage {
    pub locks: Vec<ListedLock>,
    /// Token at which the next page continues; empty on the last page.
    pub next_page_token: String,
}

/// A page under construction.
struct PageBuilder {
    locks: Vec<ListedLock>,
    /// Names of the locks on the page. A scan may return a key twice.
    names: HashSet<LockKey>,
    last: Option<LockKey>,
    /// Remaining size in bytes.
    bytes_left: usize,
    size: fn(&ListedLock) -> usize,
}

/// A lock that may be added to a page.
struct Candidate {
    listed: ListedLock,
    /// Size on the page in bytes.
    bytes: usize,
}

impl ListRequest {
    pub(crate) fn validate(self) -> Result<ListQuery, RequestError> {
        let mut fields = FieldValidator::default();
        let filter = filter(
            &mut fields,
            &self.namespace,
            self.name_prefix,
            self.owner_id,
        );
        let size = match self.page_size {
            0 => PAGE_DEFAULT,
            size => size.min(PAGE_MAX),
        };
        let page_size = usize::try_from(size).ok();
        if page_size.is_none() {
            fields.violation("page_size", "must not be negative");
        }
        let mut start_cursor = None;
        if let (Some(filter), false) = (&filter, self.page_token.is_empty()) {
            start_cursor = cursor(filter, &self.page_token);
            if start_cursor.is_none() {
                let description = "must be the next_page_token of the previous call, with all \
                                   other fields unchanged: start again with the first page";
                fields.violation(PAGE_TOKEN, description);
            }
        }
        let (filter, page_size) = fields.finish(filter.zip(page_size))?;
        Ok(ListQuery {
            filter,
            cursor: start_cursor,
            page_size,
        })
    }
}

/// Lists locks until the page is full or reaches a bound.
pub(super) async fn page(
    broker: &Broker,
    context: &RequestContext,
    query: ListQuery,
    bounds: PageBounds,
) -> Result<LockPage, RequestError> {
    let deadline = Instant::now() + STEP_START_DEADLINE;
    let ListQuery {
        filter,
        cursor,
        page_size,
    } = query;
    let mut page = PageBuilder {
        locks: Vec::new(),
        names: HashSet::new(),
        last: None,
        bytes_left: bounds.max_bytes.saturating_sub(TOKEN_MAX_BYTES),
        size: bounds.size,
    };
    let (mut next, mut remaining, mut steps) = (cursor, page_size, 0);
    loop {
        steps += 1;
        let (listed, next_cursor) =
            match step(broker, context, &filter, next.as_ref(), remaining).await {
                Ok(listed) => listed,
                // The next call reports the error if it persists.
                Err(_) if !page.locks.is_empty() => break,
                Err(error) => return Err(error),
            };
        let candidates = listed.into_iter().map(|listed| page.measure(listed));
        let candidates: Vec<_> = candidates.collect();
        let fitting_count = page.count_fitting(&candidates);
        if fitting_count == 0 && !candidates.is_empty() && !page.locks.is_empty() {
            break;
        }
        if fitting_count.max(1) < candidates.len() {
            // The cursor of a step is behind all locks of the step.
            remaining = fitting_count.max(1);
            continue;
        }
        page.add(candidates);
        next = next_cursor;
        remaining = page_size - page.locks.len();
        let is_limit_reached = steps >= STEPS_MAX || Instant::now() >= deadline;
        if next.is_none()
            || remaining == 0
            || is_limit_reached && !page.must_continue(next.as_ref())
        {
            break;
        }
    }
    let next = next.map(|next| page.cursor_after_last_visible(next));
    let next_page_token = next.map_or_else(String::new, |next| page_token(&filter, &next));
    Ok(LockPage {
        locks: page.locks,
        next_page_token,
    })
}

async fn step(
    broker: &Broker,
    context: &RequestContext,
    filter: &Filter,
    cursor: Option<&Cursor>,
    max_count: usize,
) -> Result<(Vec<ListedLock>, Option<Cursor>), RequestError> {
    match broker.list(filter, cursor, max_count).await? {
        Listed::Step { locks, next } => {
            let locks = locks.into_iter();
            let visible = locks.filter(|(lock, _)| context.is_visible(filter, lock));
            let listed = visible.map(|(lock, state)| ListedLock::new(lock, state, context));
            Ok((listed.collect(), next))
        }
        Listed::Stale => Err(stale_token()),
        Listed::Missing { server, reason } => Err(RequestError::no_answer(&server, &reason)),
    }
}

impl ListedLock {
    fn new(lock: LockKey, mut state: LockState, context: &RequestContext) -> Self {
        let mode = state.mode();
        state.waiters.clear();
        if !context.can(Verb::Observe, &lock) {
            state.holders.clear();
            state
                .closure
                .iter_mut()
                .for_each(|closure| closure.redact());
        }
        Self { lock, mode, state }
    }
}

impl PageBuilder {
    /// Returns true if the list must continue because no lock is visible yet. A key-based cursor
    /// must not reveal the name of a hidden lock, so it refers to the last visible lock of the
    /// page. Only the memory store has key-based cursors.
    fn must_continue(&self, next: Option<&Cursor>) -> bool {
        self.last.is_none() && matches!(next, Some(Cursor::After(_)))
    }

    fn cursor_after_last_visible(&self, next: Cursor) -> Cursor {
        match (next, &self.last) {
            (Cursor::After(_), Some(last)) => Cursor::After(last.clone()),
            (next, _) => next,
        }
    }

    fn measure(&self, listed: ListedLock) -> Candidate {
        let bytes = (self.size)(&listed);
        Candidate { listed, bytes }
    }

    /// Returns the number of leading locks that fit on the page.
    fn count_fitting(&self, candidates: &[Candidate]) -> usize {
        let mut remaining_bytes = self.bytes_left;
        let fits = |candidate: &&Candidate| {
            let bytes = match self.names.contains(&candidate.listed.lock) {
                true => 0,
                false => candidate.bytes,
            };
            let fits = bytes <= remaining_bytes;
            remaining_bytes = remaining_bytes.saturating_sub(bytes);
            fits
        };
        candidates.iter().take_while(fits).count()
    }

    /// Adds locks to the page. A lock that is too large for a whole page is added
    /// with fewer holders.
    fn add(&mut self, candidates: Vec<Candidate>) {
        for mut candidate in candidates {
            let lock = candidate.listed.lock.clone();
            if !self.names.insert(lock.clone()) {
                continue;
            }
            self.last = Some(lock);
            while candidate.bytes > self.bytes_left
                && candidate.listed.state.holders.pop().is_some()
            {
                candidate = self.measure(candidate.listed);
            }
            self.bytes_left = self.bytes_left.saturating_sub(candidate.bytes);
            self.locks.push(candidate.listed);
        }
    }
}

/// Validates the filter of a list or watch.
pub(super) fn filter(
    fields: &mut FieldValidator,
    namespace: &str,
    name_prefix: String,
    owner_id: String,
) -> Option<Filter> {
    let violation_count = fields.violation_count();
    let namespace = match namespace {
        "" => None,
        text => Namespace::parse(text)
            .map_err(|problem| fields.violation("namespace", problem))
            .ok(),
    };
    if let (false, Err(problem)) = (name_prefix.is_empty(), LockName::parse(&name_prefix)) {
        fields.violation("name_prefix", problem);
    }
    if owner_id.len() > OWNER_ID_MAX_BYTES {
        fields.violation("owner_id", "must be at most 256 bytes");
    }
    let is_legal = fields.violation_count() == violation_count;
    is_legal.then_some(Filter {
        namespace,
        name_prefix,
        owner_id,
    })
}

/// Returns the error for a page token that is well-formed, but no longer refers to a position.
fn stale_token() -> RequestError {
    RequestError::Invalid(vec![Violation {
        field: PAGE_TOKEN.to_owned(),
        description: "belongs to a server that was removed or replaced: start again with the first \
                      page",
    }])
}

/// Returns the token by which a list with `filter` continues at `cursor`.
pub(crate) fn page_token(filter: &Filter, cursor: &Cursor) -> String {
    let text = cursor.to_text();
    let encoded = BASE64URL_NOPAD.encode(text.as_bytes());
    format!("{}{encoded}", digest(filter, &text))
}

fn cursor(filter: &Filter, token: &str) -> Option<Cursor> {
    let (digits, encoded) = token.split_at_checked(ArgumentsHash::LEN)?;
    let text = BASE64URL_NOPAD.decode(encoded.as_bytes()).ok()?;
    let text = String::from_utf8(text).ok()?;
    let is_digest_valid = digits == digest(filter, &text).as_str();
    Cursor::parse(&text).filter(|_| is_digest_valid)
}

fn digest(filter: &Filter, cursor: &str) -> ArgumentsHash {
    let namespace = filter.namespace.as_ref().map_or("", Namespace::as_str);
    let fields = [namespace, &filter.name_prefix, &filter.owner_id, cursor];
    ArgumentsHash::of(&fields.map(str::as_bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{inspection::InspectionService, store::stub::StubStore};

    /// Returns the number of steps for one page if each step takes this time and finds no lock.
    async fn steps(delay: Duration) -> usize {
        let store = Arc::new(StubStore::listing(0, delay));
        let service = InspectionService::without_authentication(Broker::unlimited(store.clone()));
        let caller = service
            .authenticate(None, None)
            .expect("authentication is not required");
        let page = service.list(&caller, ListRequest::default());
        let page = page.await.expect("a page");
        assert!(page.locks.is_empty());
        assert_ne!(page.next_page_token, "", "the next page goes on");
        store.commands_sent()
    }

    #[tokio::test(start_paused = true)]
    async fn steps_of_a_page_are_bounded() {
        assert_eq!(steps(Duration::ZERO).await, STEPS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_begins_no_step_after_half_a_second() {
        assert_eq!(steps(STEP_START_DEADLINE / 5).await, 5);
    }
}
