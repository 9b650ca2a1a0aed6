//! One page of a list: bounded in locks, in bytes, in time, and in what the store looks at.

use std::{collections::HashSet, time::Duration};

use leasehold_proto::v1::{self as pb, ListLocksResponse};
use prost::{Message as _, encoding::encoded_len_varint};
use tokio::time::Instant;
use tonic::Status;

use super::{
    admit::Asking,
    decode::listing::{ListCall, page_token, stale_token},
    encode, status,
};
use crate::{
    access::Verb,
    broker::Broker,
    lock::{Filter, LockError, LockKey, LockState},
    store::{Cursor, Listed},
};

/// No step is begun later. One takes no longer than a second.
const LONG_ENOUGH: Duration = Duration::from_millis(500);
/// Each looks at some 64 keys.
const STEPS_MOST: usize = 160;
/// What a page needs besides its locks: the longest token.
const TOKEN_MAX_BYTES: usize = 3_072;

/// A page as it fills.
struct Page {
    locks: Vec<pb::Lock>,
    /// A scan may give a key twice.
    names: HashSet<LockKey>,
    last: Option<LockKey>,
    /// Bytes left.
    room: usize,
}

/// Lists until the page is full or has cost enough: it may be short, or empty, and not the last one.
pub(super) async fn page(
    broker: &Broker,
    asking: &Asking,
    call: ListCall,
    max_reply: usize,
) -> Result<ListLocksResponse, Status> {
    let end = Instant::now() + LONG_ENOUGH;
    let ListCall { filter, from, most } = call;
    let mut page = Page {
        locks: Vec::new(),
        names: HashSet::new(),
        last: None,
        room: max_reply.saturating_sub(TOKEN_MAX_BYTES),
    };
    let (mut next, mut wanted, mut steps) = (from, most, 0);
    loop {
        steps += 1;
        let (listed, then) = match step((broker, asking), &filter, next.as_ref(), wanted).await {
            Ok(listed) => listed,
            // The next call is told, if it still is so.
            Err(_) if !page.locks.is_empty() => break,
            Err(status) => return Err(status),
        };
        let fitting = page.fitting(&listed);
        if fitting == 0 && !listed.is_empty() && !page.locks.is_empty() {
            break;
        }
        if fitting.max(1) < listed.len() {
            // Cursors stand behind all that a step gives.
            wanted = fitting.max(1);
            continue;
        }
        page.add(listed);
        next = then;
        wanted = most - page.locks.len();
        let is_enough = steps >= STEPS_MOST || Instant::now() >= end;
        if next.is_none() || wanted == 0 || is_enough && !page.must_go_on(next.as_ref()) {
            break;
        }
    }
    let next = next.map(|next| page.behind(next));
    let next_page_token = next.map_or_else(String::new, |next| page_token(&filter, &next));
    Ok(ListLocksResponse {
        locks: page.locks,
        next_page_token,
    })
}

type Step = (Vec<(LockKey, pb::Lock)>, Option<Cursor>);

async fn step(
    (broker, asking): (&Broker, &Asking),
    filter: &Filter,
    from: Option<&Cursor>,
    most: usize,
) -> Result<Step, Status> {
    let listed = broker.list(filter, from, most).await;
    match listed.map_err(|error| status::of_all(&error, None))? {
        Listed::Step { locks, next } => {
            let encoded = |(lock, state): (LockKey, LockState)| {
                let mut shown = encode::listed(&lock, &state);
                if !asking.may(Verb::Observe, &lock) {
                    shown.holders.clear();
                }
                (lock, shown)
            };
            let locks = locks.into_iter();
            let visible = locks.filter(|(lock, _)| asking.is_shown(filter, lock));
            Ok((visible.map(encoded).collect(), next))
        }
        Listed::Stale => Err(stale_token().into()),
        Listed::Missing { server } => {
            let error = LockError::StoreUnavailable;
            Err(status::of_all(&error, Some(&server)))
        }
    }
}

impl Page {
    /// A cursor that names a lock would tell the name of one that is hidden, and stands behind the last
    /// one that is shown instead. While there is none the list goes on: only the embedded store has such.
    fn must_go_on(&self, next: Option<&Cursor>) -> bool {
        self.last.is_none() && matches!(next, Some(Cursor::After(_)))
    }

    fn behind(&self, next: Cursor) -> Cursor {
        match (next, &self.last) {
            (Cursor::After(_), Some(last)) => Cursor::After(last.clone()),
            (next, _) => next,
        }
    }

    /// How many of these there is room for.
    fn fitting(&self, listed: &[(LockKey, pb::Lock)]) -> usize {
        let mut left = self.room;
        let fits = |(lock, shown): &&(LockKey, pb::Lock)| {
            let size = match self.names.contains(lock) {
                true => 0,
                false => size(shown),
            };
            let fits = size <= left;
            left = left.saturating_sub(size);
            fits
        };
        listed.iter().take_while(fits).count()
    }

    /// Adds these. One that is too large for a whole page is shown with fewer of its holders.
    fn add(&mut self, listed: Vec<(LockKey, pb::Lock)>) {
        for (lock, mut shown) in listed {
            if !self.names.insert(lock.clone()) {
                continue;
            }
            self.last = Some(lock);
            while size(&shown) > self.room && shown.holders.pop().is_some() {}
            self.room = self.room.saturating_sub(size(&shown));
            self.locks.push(shown);
        }
    }
}

/// What a lock takes in a page: a tag, a length, and itself.
fn size(lock: &pb::Lock) -> usize {
    let length = lock.encoded_len();
    1 + encoded_len_varint(u64::try_from(length).unwrap_or(u64::MAX)) + length
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_proto::v1::ListLocksRequest;

    use super::*;
    use crate::{grpc::Desk, store::stub::Stub};

    /// Returns for how many steps a page goes on that each find nothing.
    async fn steps(takes: Duration) -> usize {
        let store = Arc::new(Stub::listing(0, takes));
        let desk = Desk::alone(Broker::alone(store.clone()));
        let visitor = desk.admit(None, None).expect("nobody is asked");
        let page = desk.list_locks(&visitor, ListLocksRequest::default());
        let page = page.await.expect("a page");
        assert!(page.locks.is_empty());
        assert_ne!(page.next_page_token, "", "the next page goes on");
        store.asked()
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_ends_after_so_many_steps() {
        assert_eq!(steps(Duration::ZERO).await, STEPS_MOST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_begins_no_step_after_half_a_second() {
        assert_eq!(steps(LONG_ENOUGH / 5).await, 5);
    }
}
