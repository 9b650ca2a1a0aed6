//! Lists of locks.

use std::collections::BTreeSet;

use futures::{
    future::join_all,
    stream::{StreamExt as _, iter},
};
use leasehold_server::{
    lock::{Acquire, Filter, LockKey, LockState, Namespace, expiry_ms},
    store::{Cursor, Listed, Scan, Store},
};

use crate::{
    scale::count,
    world::{TTL_MAX_MS, TTL_MS, World, lock_named, new_call, only, with_ttl},
};

/// Names in which every character means something somewhere.
const NAMES: [&str; 14] = [
    "*", "?", "[a]", "[", "]", "\\", "\\*", "{a}", "}{", "%7B", "a:b", "订单/7", "naïve", "a b",
];
const AT_ONCE: usize = 16;

/// Lists to the end, at most so many with each step.
pub async fn listed(store: &dyn Store, filter: &Filter, most: usize) -> Vec<(LockKey, LockState)> {
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        let step = store.list(filter, from.as_ref(), most).await;
        let Ok(Listed::Step { locks, next }) = step else {
            panic!("{step:?} instead of locks");
        };
        assert!(locks.len() <= most, "{} instead of {most}", locks.len());
        all.extend(locks);
        let Some(next) = next else { return all };
        let text = next.to_text();
        from = Cursor::parse(&text);
        assert_eq!(from, Some(next), "{text}");
    }
}

/// Locks whose names begin so, in the default namespace.
#[must_use]
pub fn beginning(name_prefix: &str) -> Filter {
    Filter {
        namespace: Namespace::parse("").ok(),
        name_prefix: name_prefix.to_owned(),
        ..Filter::default()
    }
}

/// The locks of a list, each of which stands there once.
#[must_use]
pub fn each_once(list: Vec<(LockKey, LockState)>) -> BTreeSet<LockKey> {
    let count = list.len();
    let locks: BTreeSet<_> = list.into_iter().map(|(lock, _)| lock).collect();
    assert_eq!(locks.len(), count, "a lock is listed twice");
    locks
}

fn named(name: &str) -> LockKey {
    lock_named("default", name)
}

fn call(lock: &LockKey) -> Acquire {
    with_ttl(new_call(lock), TTL_MAX_MS)
}

/// Holds all of these.
async fn hold(world: &World, locks: &BTreeSet<LockKey>) {
    let calls: Vec<_> = locks.iter().map(call).collect();
    let held = iter(&calls).map(|call| world.granted(0, call));
    held.buffer_unordered(AT_ONCE).count().await;
}

async fn found(world: &World, filter: &Filter) -> BTreeSet<LockKey> {
    each_once(listed(world.store(0), filter, 5).await)
}

pub async fn a_list_shows_what_is_held_waited_for_or_closed(world: &World) {
    let [held, waited, closed] = ["held", "waited for", "closed"].map(named);
    let mut to_expire = new_call(&closed);
    to_expire.terms.lock_delay_ms = 10_000;
    world.granted(0, &to_expire).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    world.granted(1, &call(&held)).await;
    world.granted(2, &call(&waited)).await;
    let waiting = Acquire {
        lock: waited.clone(),
        ..world.waiting()
    };
    world.queued(0, &waiting).await;
    let list = listed(world.store(0), &Filter::default(), 100).await;
    for (lock, state) in &list {
        assert_eq!(
            state.holder_count == 0,
            *lock == closed,
            "{lock}: {state:?}"
        );
        assert_eq!(state.closed_ms > 0, *lock == closed, "{lock}: {state:?}");
        let waiters = u32::from(*lock == waited);
        assert_eq!(state.queue_length, waiters, "{lock}: {state:?}");
    }
    assert_eq!(each_once(list), [held, waited, closed].into());
}

pub async fn a_lock_that_is_idle_is_not_listed(world: &World) {
    assert_eq!(found(world, &Filter::default()).await, [].into());
    let [released, expired, held] = ["released", "expired", "held"].map(named);
    world.granted(0, &new_call(&expired)).await;
    let lease = world.granted(0, &new_call(&released)).await;
    world.release(0, &lease).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    world.granted(0, &call(&held)).await;
    let known = world.store(0).get(&released).await.expect("get");
    assert!(known.is_some(), "its record is kept");
    assert_eq!(found(world, &Filter::default()).await, [held].into());
}

pub async fn a_lock_with_a_set_limit_alone_is_not_listed(world: &World) {
    assert_eq!(world.set_limit(0, 7).await, 0);
    assert_eq!(found(world, &Filter::default()).await, [].into());
}

pub async fn a_list_shows_what_a_look_shows(world: &World) {
    world.held_by(1).await;
    world.queued(0, &world.waiting()).await;
    let list = listed(world.store(0), &Filter::default(), 7).await;
    let (lock, mut shown) = only(list).expect("one lock");
    let mut seen = world.state().await;
    assert_eq!(lock, world.lock);
    for state in [&mut shown, &mut seen] {
        state.holders[0].remaining_ms = 0;
        state.waiters[0].remaining_ms = 0;
    }
    assert_eq!(shown, seen);
}

pub async fn a_list_in_steps_of_any_size_shows_each_lock_once(world: &World) {
    let locks: BTreeSet<_> = (0..150).map(|n| named(&format!("n-{n}"))).collect();
    hold(world, &locks).await;
    for most in [1, 7, 1_000] {
        let list = listed(world.store(1), &beginning("n-"), most).await;
        assert_eq!(each_once(list), locks, "{most} with each step");
    }
}

pub async fn names_of_any_kind_are_found_by_their_beginnings(world: &World) {
    let locks: BTreeSet<_> = NAMES.into_iter().map(named).collect();
    hold(world, &locks).await;
    for name in NAMES.iter().chain(&["nothing", "{", "a"]) {
        for prefix in [name, &name[..name.ceil_char_boundary(1)]] {
            let starts_so = |lock: &&LockKey| lock.name().starts_with(prefix);
            let expected: BTreeSet<_> = locks.iter().filter(starts_so).cloned().collect();
            assert_eq!(
                found(world, &beginning(prefix)).await,
                expected,
                "{prefix:?}"
            );
            let everywhere = Filter {
                namespace: None,
                ..beginning(prefix)
            };
            assert_eq!(found(world, &everywhere).await, expected, "{prefix:?}");
        }
    }
}

pub async fn namespaces_that_begin_alike_are_kept_apart(world: &World) {
    let spaces = ["a", "ab", "a-b", "b"];
    let in_one = |space| ["x", "b:x", "y"].map(|name| lock_named(space, name));
    let all: BTreeSet<_> = spaces.into_iter().flat_map(in_one).collect();
    hold(world, &all).await;
    for space in spaces {
        for prefix in ["", "x", "b", "b:x"] {
            let filter = Filter {
                namespace: Namespace::parse(space).ok(),
                ..beginning(prefix)
            };
            let mut expected = BTreeSet::from(in_one(space));
            expected.retain(|lock| lock.name().starts_with(prefix));
            let found = found(world, &filter).await;
            assert_eq!(found, expected, "{space}: {prefix:?}");
        }
    }
    assert_eq!(found(world, &Filter::default()).await, all);
}

pub async fn a_list_is_narrowed_to_an_owner(world: &World) {
    let mut mine = call(&named("mine"));
    mine.owner.id = "me".to_owned();
    world.granted(0, &mine).await;
    let mut similar = call(&named("similar"));
    similar.owner.id = "me too".to_owned();
    world.granted(1, &similar).await;
    world.granted(2, &call(&named("waited for"))).await;
    let mut waiting = world.waiting();
    waiting.lock = named("waited for");
    waiting.owner.id = "me".to_owned();
    world.queued(0, &waiting).await;
    let filter = |owner_id: &str| Filter {
        owner_id: owner_id.to_owned(),
        ..beginning("")
    };
    let expected = [mine.lock, waiting.lock].into();
    assert_eq!(found(world, &filter("me")).await, expected);
    assert_eq!(found(world, &filter("m")).await, [].into());
}

pub async fn an_owner_is_found_among_those_who_wait(world: &World) {
    world.held_by(0).await;
    for owner in ["first", "second", "third"] {
        let mut call = world.waiting();
        call.owner.id = owner.to_owned();
        world.queued(1, &call).await;
    }
    for (owner_id, count) in [("first", 1), ("third", 1), ("fourth", 0)] {
        let filter = Filter {
            owner_id: owner_id.to_owned(),
            ..beginning("")
        };
        assert_eq!(found(world, &filter).await.len(), count, "{owner_id}");
    }
}

pub async fn locks_that_stay_are_listed_while_others_come_and_go(world: &World) {
    let count = count(1_000, 100);
    let stay: BTreeSet<_> = (0..count).map(|n| named(&format!("stay-{n}"))).collect();
    hold(world, &stay).await;
    let (mut all, mut from) = (BTreeSet::new(), None);
    for round in 0.. {
        let step = world.store(0).list(&beginning(""), from.as_ref(), 13).await;
        let Ok(Listed::Step { locks, next }) = step else {
            panic!("{step:?} instead of locks");
        };
        all.extend(locks.into_iter().map(|(lock, _)| lock));
        // The store's table grows and fills between any two steps.
        let passing = (0..20).map(|n| named(&format!("go-{round}-{n}")));
        let calls: Vec<_> = passing.map(|lock| new_call(&lock)).collect();
        let leases = join_all(calls.iter().map(|call| world.granted(1, call))).await;
        join_all(leases.iter().map(|lease| world.release(1, lease))).await;
        match next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    let missed: Vec<_> = stay.difference(&all).collect();
    assert!(missed.is_empty(), "not listed: {missed:?}");
}

pub async fn a_cursor_of_another_store_is_stale(world: &World) {
    let elsewhere = Scan {
        run_id: "another process".to_owned(),
        at: 7,
        ..Scan::default()
    };
    let list = async |from: &Cursor| world.store(0).list(&beginning(""), Some(from), 7).await;
    assert_eq!(list(&Cursor::Scan(elsewhere)).await, Ok(Listed::Stale));
    let own = Cursor::Scan(Scan::default());
    let after = Cursor::After(world.lock.clone());
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
