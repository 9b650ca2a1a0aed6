//! Pages of a list, with bounds on locks, bytes, time and keys read from the store.

use std::{collections::HashSet, time::Duration};

use leasehold_proto::v1::{self as pb, ListLocksResponse};
use prost::{Message as _, encoding::encoded_len_varint};
use tokio::time::Instant;

use super::{
    decode::listing::{ListCall, page_token, stale_token},
    encode,
};
use crate::{
    access::Verb,
    broker::Broker,
    lock::{Filter, LockKey, LockState},
    request::{RequestContext, RequestError},
    store::{Cursor, Listed},
};

/// Time after which no further step starts. A step takes at most a second.
const STEP_START_DEADLINE: Duration = Duration::from_millis(500);
/// Maximum number of steps for one page. A step reads about 64 keys.
const STEPS_MAX: usize = 160;
/// Size of the longest page token, which is reserved on each page.
const TOKEN_MAX_BYTES: usize = 3_072;

/// A page under construction.
struct Page {
    locks: Vec<pb::Lock>,
    /// Names of the locks on the page. A scan may return a key twice.
    names: HashSet<LockKey>,
    last: Option<LockKey>,
    /// Remaining size in bytes.
    bytes_left: usize,
}

/// Lists locks until the page is full or reaches a bound. A page may be short, or empty, without
/// being the last one.
pub(super) async fn page(
    broker: &Broker,
    context: &RequestContext,
    call: ListCall,
    max_reply: usize,
) -> Result<ListLocksResponse, RequestError> {
    let deadline = Instant::now() + STEP_START_DEADLINE;
    let ListCall {
        filter,
        cursor,
        page_size,
    } = call;
    let mut page = Page {
        locks: Vec::new(),
        names: HashSet::new(),
        last: None,
        bytes_left: max_reply.saturating_sub(TOKEN_MAX_BYTES),
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
        let fitting_count = page.count_fitting(&listed);
        if fitting_count == 0 && !listed.is_empty() && !page.locks.is_empty() {
            break;
        }
        if fitting_count.max(1) < listed.len() {
            // The cursor of a step is behind all locks of the step.
            remaining = fitting_count.max(1);
            continue;
        }
        page.add(listed);
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
    Ok(ListLocksResponse {
        locks: page.locks,
        next_page_token,
    })
}

type ListStep = (Vec<(LockKey, pb::Lock)>, Option<Cursor>);

async fn step(
    broker: &Broker,
    context: &RequestContext,
    filter: &Filter,
    cursor: Option<&Cursor>,
    max_count: usize,
) -> Result<ListStep, RequestError> {
    match broker.list(filter, cursor, max_count).await? {
        Listed::Step { locks, next } => {
            let encoded = |(lock, state): (LockKey, LockState)| {
                let mut entry = encode::list_entry(&lock, &state);
                if !context.can(Verb::Observe, &lock) {
                    entry.holders.clear();
                }
                (lock, entry)
            };
            let locks = locks.into_iter();
            let visible = locks.filter(|(lock, _)| context.is_visible(filter, lock));
            Ok((visible.map(encoded).collect(), next))
        }
        Listed::Stale => Err(stale_token()),
        Listed::Missing { server } => Err(RequestError::no_answer(&server)),
    }
}

impl Page {
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

    /// Returns the number of leading entries that fit on the page.
    fn count_fitting(&self, listed: &[(LockKey, pb::Lock)]) -> usize {
        let mut remaining_bytes = self.bytes_left;
        let fits = |(lock, entry): &&(LockKey, pb::Lock)| {
            let size = match self.names.contains(lock) {
                true => 0,
                false => size(entry),
            };
            let fits = size <= remaining_bytes;
            remaining_bytes = remaining_bytes.saturating_sub(size);
            fits
        };
        listed.iter().take_while(fits).count()
    }

    /// Adds locks to the page. A lock that is too large for a whole page is added
    /// with fewer holders.
    fn add(&mut self, listed: Vec<(LockKey, pb::Lock)>) {
        for (lock, mut entry) in listed {
            if !self.names.insert(lock.clone()) {
                continue;
            }
            self.last = Some(lock);
            while size(&entry) > self.bytes_left && entry.holders.pop().is_some() {}
            self.bytes_left = self.bytes_left.saturating_sub(size(&entry));
            self.locks.push(entry);
        }
    }
}

/// Returns the size of a lock on a page: a tag, a length, and the encoded lock.
fn size(lock: &pb::Lock) -> usize {
    let length = lock.encoded_len();
    1 + encoded_len_varint(u64::try_from(length).unwrap_or(u64::MAX)) + length
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_proto::v1::ListLocksRequest;

    use super::*;
    use crate::{grpc::ConsoleBackend, store::stub::StubStore};

    /// Returns the number of steps for one page if each step takes this time and finds no lock.
    async fn steps(delay: Duration) -> usize {
        let store = Arc::new(StubStore::listing(0, delay));
        let backend = ConsoleBackend::without_authentication(Broker::unlimited(store.clone()));
        let user = backend
            .authenticate(None, None)
            .expect("authentication is not required");
        let page = backend.list_locks(&user, ListLocksRequest::default());
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
