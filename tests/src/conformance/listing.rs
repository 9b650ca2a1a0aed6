//! Lists of locks: what they contain, their filters and their cursors.

use std::{collections::BTreeSet, time::Duration};

use futures::{
    future::join_all,
    stream::{StreamExt as _, iter},
};
use leasehold_server::{
    lock::{AcquireCommand, Filter, LockKey, LockState, Namespace, expiry_ms},
    store::{Cursor, Listed, Scan, Store},
};
use tokio::time::{Instant, sleep};

use crate::{
    scale::scaled_count,
    store_fixture::{StoreFixture, TTL_MAX_MS, TTL_MS, at_most_one, lock_key, new_call, with_ttl},
};

/// Lock names with characters that are special in Redis patterns, keys or URLs.
const NAMES: [&str; 14] = [
    "*", "?", "[a]", "[", "]", "\\", "\\*", "{a}", "}{", "%7B", "a:b", "订单/7", "naïve", "a b",
];
const CONCURRENT_CALLS: usize = 16;
/// Longest time for which a server of a store may not answer, because the machine is busy.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Lists all matching locks, with at most `page_size` locks in each step. Repeats a step for which a
/// server did not answer, as callers do.
pub async fn list_all(
    store: &dyn Store,
    filter: &Filter,
    page_size: usize,
) -> Vec<(LockKey, LockState)> {
    let (mut all, mut from) = (Vec::new(), None);
    let mut answered_at = Instant::now();
    loop {
        let (locks, next) = match store.list(filter, from.as_ref(), page_size).await {
            Ok(Listed::Step { locks, next }) => (locks, next),
            Ok(Listed::Missing { .. }) if answered_at.elapsed() < SILENCE_LIMIT => {
                sleep(RETRY_PAUSE).await;
                continue;
            }
            step => panic!("{step:?} instead of locks"),
        };
        answered_at = Instant::now();
        assert!(
            locks.len() <= page_size,
            "{} instead of {page_size}",
            locks.len()
        );
        all.extend(locks);
        let Some(next) = next else { return all };
        let text = next.to_text();
        from = Cursor::parse(&text);
        assert_eq!(from, Some(next), "{text}");
    }
}

/// A filter for locks in the default namespace whose names begin with `name_prefix`.
#[must_use]
pub fn prefix_filter(name_prefix: &str) -> Filter {
    Filter {
        namespace: Namespace::parse("").ok(),
        name_prefix: name_prefix.to_owned(),
        ..Filter::default()
    }
}

/// Returns the locks of a list, and asserts that each is listed once.
#[must_use]
pub fn assert_listed_once(list: Vec<(LockKey, LockState)>) -> BTreeSet<LockKey> {
    let count = list.len();
    let locks: BTreeSet<_> = list.into_iter().map(|(lock, _)| lock).collect();
    assert_eq!(locks.len(), count, "a lock is listed twice");
    locks
}

fn lock_key_of(name: &str) -> LockKey {
    lock_key("default", name)
}

fn long_call(lock: &LockKey) -> AcquireCommand {
    with_ttl(new_call(lock), TTL_MAX_MS)
}

/// Acquires all of `locks` for broker 0.
async fn acquire_all(store_fixture: &StoreFixture, locks: &BTreeSet<LockKey>) {
    let calls: Vec<_> = locks.iter().map(long_call).collect();
    let held = iter(&calls).map(|call| store_fixture.expect_granted(0, call));
    held.buffer_unordered(CONCURRENT_CALLS).count().await;
}

async fn list_locks(store_fixture: &StoreFixture, filter: &Filter) -> BTreeSet<LockKey> {
    assert_listed_once(list_all(store_fixture.store(0), filter, 5).await)
}

pub async fn a_list_shows_what_is_held_waited_for_or_closed(store_fixture: &StoreFixture) {
    let [held, waited, closed] = ["held", "waited for", "closed"].map(lock_key_of);
    let mut to_expire = new_call(&closed);
    to_expire.options.lock_delay_ms = 10_000;
    store_fixture.expect_granted(0, &to_expire).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    store_fixture.expect_granted(1, &long_call(&held)).await;
    store_fixture.expect_granted(2, &long_call(&waited)).await;
    let waiting = AcquireCommand {
        lock: waited.clone(),
        ..store_fixture.waiting_call()
    };
    store_fixture.expect_queued(0, &waiting).await;
    let list = list_all(store_fixture.store(0), &Filter::default(), 100).await;
    for (lock, state) in &list {
        assert_eq!(
            state.holder_count == 0,
            *lock == closed,
            "{lock}: {state:?}"
        );
        assert_eq!(
            state.closure.is_some(),
            *lock == closed,
            "{lock}: {state:?}"
        );
        let waiters = u32::from(*lock == waited);
        assert_eq!(state.queue_length, waiters, "{lock}: {state:?}");
    }
    assert_eq!(assert_listed_once(list), [held, waited, closed].into());
}

pub async fn a_lock_that_is_idle_is_not_listed(store_fixture: &StoreFixture) {
    assert_eq!(
        list_locks(store_fixture, &Filter::default()).await,
        [].into()
    );
    let [released, expired, held] = ["released", "expired", "held"].map(lock_key_of);
    store_fixture.expect_granted(0, &new_call(&expired)).await;
    let lease = store_fixture.expect_granted(0, &new_call(&released)).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    store_fixture.expect_granted(0, &long_call(&held)).await;
    let known = store_fixture.store(0).get(&released).await.expect("get");
    assert!(known.is_some(), "its record is kept");
    assert_eq!(
        list_locks(store_fixture, &Filter::default()).await,
        [held].into()
    );
}

pub async fn a_lock_with_a_set_limit_alone_is_listed(store_fixture: &StoreFixture) {
    assert_eq!(store_fixture.set_limit(0, 7).await, None);
    assert_eq!(
        list_locks(store_fixture, &Filter::default()).await,
        [store_fixture.lock.clone()].into()
    );
    assert_eq!(store_fixture.remove_limit(0).await, Some(7));
    assert_eq!(
        list_locks(store_fixture, &Filter::default()).await,
        [].into()
    );
}

pub async fn a_list_contains_the_same_state_as_an_inspection(store_fixture: &StoreFixture) {
    store_fixture.acquire_long(1).await;
    store_fixture
        .expect_queued(0, &store_fixture.waiting_call())
        .await;
    let list = list_all(store_fixture.store(0), &Filter::default(), 7).await;
    let (lock, mut shown) = at_most_one(list).expect("one lock");
    let mut seen = store_fixture.expect_state().await;
    assert_eq!(lock, store_fixture.lock);
    for state in [&mut shown, &mut seen] {
        state.holders[0].remaining_ms = 0;
        state.waiters[0].remaining_ms = 0;
    }
    assert_eq!(shown, seen);
}

pub async fn a_list_in_steps_of_any_size_shows_each_lock_once(store_fixture: &StoreFixture) {
    let locks: BTreeSet<_> = (0..150).map(|n| lock_key_of(&format!("n-{n}"))).collect();
    acquire_all(store_fixture, &locks).await;
    for page_size in [1, 7, 1_000] {
        let list = list_all(store_fixture.store(1), &prefix_filter("n-"), page_size).await;
        assert_eq!(
            assert_listed_once(list),
            locks,
            "{page_size} with each step"
        );
    }
}

pub async fn names_of_any_kind_are_found_by_their_beginnings(store_fixture: &StoreFixture) {
    let locks: BTreeSet<_> = NAMES.into_iter().map(lock_key_of).collect();
    acquire_all(store_fixture, &locks).await;
    for name in NAMES.iter().chain(&["nothing", "{", "a"]) {
        for prefix in [name, &name[..name.ceil_char_boundary(1)]] {
            let starts_so = |lock: &&LockKey| lock.name().starts_with(prefix);
            let expected: BTreeSet<_> = locks.iter().filter(starts_so).cloned().collect();
            assert_eq!(
                list_locks(store_fixture, &prefix_filter(prefix)).await,
                expected,
                "{prefix:?}"
            );
            let everywhere = Filter {
                namespace: None,
                ..prefix_filter(prefix)
            };
            assert_eq!(
                list_locks(store_fixture, &everywhere).await,
                expected,
                "{prefix:?}"
            );
        }
    }
}

pub async fn namespaces_that_begin_alike_are_kept_apart(store_fixture: &StoreFixture) {
    let spaces = ["a", "ab", "a-b", "b"];
    let in_one = |space| ["x", "b:x", "y"].map(|name| lock_key(space, name));
    let all: BTreeSet<_> = spaces.into_iter().flat_map(in_one).collect();
    acquire_all(store_fixture, &all).await;
    for space in spaces {
        for prefix in ["", "x", "b", "b:x"] {
            let filter = Filter {
                namespace: Namespace::parse(space).ok(),
                ..prefix_filter(prefix)
            };
            let mut expected = BTreeSet::from(in_one(space));
            expected.retain(|lock| lock.name().starts_with(prefix));
            let found = list_locks(store_fixture, &filter).await;
            assert_eq!(found, expected, "{space}: {prefix:?}");
        }
    }
    assert_eq!(list_locks(store_fixture, &Filter::default()).await, all);
}

pub async fn a_list_is_narrowed_to_an_owner(store_fixture: &StoreFixture) {
    let mut mine = long_call(&lock_key_of("mine"));
    mine.owner.id = "me".to_owned();
    store_fixture.expect_granted(0, &mine).await;
    let mut similar = long_call(&lock_key_of("similar"));
    similar.owner.id = "me too".to_owned();
    store_fixture.expect_granted(1, &similar).await;
    store_fixture
        .expect_granted(2, &long_call(&lock_key_of("waited for")))
        .await;
    let mut waiting = store_fixture.waiting_call();
    waiting.lock = lock_key_of("waited for");
    waiting.owner.id = "me".to_owned();
    store_fixture.expect_queued(0, &waiting).await;
    let filter = |owner_id: &str| Filter {
        owner_id: owner_id.to_owned(),
        ..prefix_filter("")
    };
    let expected = [mine.lock, waiting.lock].into();
    assert_eq!(list_locks(store_fixture, &filter("me")).await, expected);
    assert_eq!(list_locks(store_fixture, &filter("m")).await, [].into());
}

pub async fn an_owner_is_found_among_those_who_wait(store_fixture: &StoreFixture) {
    store_fixture.acquire_long(0).await;
    for owner in ["first", "second", "third"] {
        let mut call = store_fixture.waiting_call();
        call.owner.id = owner.to_owned();
        store_fixture.expect_queued(1, &call).await;
    }
    for (owner_id, count) in [("first", 1), ("third", 1), ("fourth", 0)] {
        let filter = Filter {
            owner_id: owner_id.to_owned(),
            ..prefix_filter("")
        };
        assert_eq!(
            list_locks(store_fixture, &filter).await.len(),
            count,
            "{owner_id}"
        );
    }
}

pub async fn locks_that_stay_are_listed_while_others_come_and_go(store_fixture: &StoreFixture) {
    let count = scaled_count(1_000, 100);
    let stay: BTreeSet<_> = (0..count)
        .map(|n| lock_key_of(&format!("stay-{n}")))
        .collect();
    acquire_all(store_fixture, &stay).await;
    let (mut all, mut from) = (BTreeSet::new(), None);
    for round in 0.. {
        let step = store_fixture
            .store(0)
            .list(&prefix_filter(""), from.as_ref(), 13)
            .await;
        let Ok(Listed::Step { locks, next }) = step else {
            panic!("{step:?} instead of locks");
        };
        all.extend(locks.into_iter().map(|(lock, _)| lock));
        // The store's table grows and fills between any two steps.
        let passing = (0..20).map(|n| lock_key_of(&format!("go-{round}-{n}")));
        let calls: Vec<_> = passing.map(|lock| new_call(&lock)).collect();
        let leases = join_all(
            calls
                .iter()
                .map(|call| store_fixture.expect_granted(1, call)),
        )
        .await;
        join_all(leases.iter().map(|lease| store_fixture.release(1, lease))).await;
        match next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    let missed: Vec<_> = stay.difference(&all).collect();
    assert!(missed.is_empty(), "not listed: {missed:?}");
}

pub async fn a_cursor_of_another_store_is_stale(store_fixture: &StoreFixture) {
    let elsewhere = Scan {
        run_id: "another process".to_owned(),
        server_cursor: 7,
        ..Scan::default()
    };
    let list = async |from: &Cursor| {
        store_fixture
            .store(0)
            .list(&prefix_filter(""), Some(from), 7)
            .await
    };
    assert_eq!(list(&Cursor::Scan(elsewhere)).await, Ok(Listed::Stale));
    let own = Cursor::Scan(Scan::default());
    let after = Cursor::After(store_fixture.lock.clone());
    let [own, after] = [list(&own).await, list(&after).await];
    let is_stale = |listed: &&Result<_, _>| **listed == Ok(Listed::Stale);
    assert_eq!(
        [&own, &after]
            .iter()
            .filter(|listed| is_stale(listed))
            .count(),
        1
    );
}
