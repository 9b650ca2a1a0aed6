//! The store on a Redis Cluster: eras for each slot, slots on their way, and masters that are lost.

use std::{slice::from_ref, time::Duration};

use leasehold_server::{
    lock::LockKey,
    store::{
        Acquired, Event, Renewed, Store as _, StoreError,
        redis::{
            init::{check_store, init_store},
            place::Place,
        },
    },
};
use leasehold_tests::{
    clock::{boottime, boottime_of},
    cluster::{ClusterDeployment, ClusterOptions, SLOTS, tag_in},
    cluster_store::{
        ClusterStore, PREFIX, PROMPT, QUARANTINE, TTL_MS, config, lock_in, slot_of_lock,
    },
    port::free_port,
    redis_server::{Data, RedisServer},
    scale::figures,
    shared_redis::address,
    until::until,
    world::{again, lease, new_call, with_ttl},
};
use tokio::time::sleep;

const BEAT: Duration = Duration::from_millis(200);
const WAIT_MS: u64 = 60_000;

/// A lock of each of the first three masters.
fn locks(what: &str) -> [LockKey; 3] {
    let third = |index: u16| move |slot: u16| slot / (SLOTS / 3 + 1) == index;
    [0, 1, 2].map(|index| lock_in(third(index), what))
}

async fn prepared(cluster: &ClusterDeployment) -> ClusterStore {
    init_store(config(cluster)).await.expect("it is empty");
    ClusterStore::start(config(cluster)).await
}

/// Runs until `over` is, and counts calls; each must be granted promptly.
async fn undisturbed<T>(
    store: &ClusterStore,
    locks: &[LockKey],
    over: impl Future<Output = T>,
) -> (T, usize, Duration) {
    tokio::pin!(over);
    let (mut calls, mut slowest) = (0, Duration::ZERO);
    loop {
        for lock in locks {
            let began = boottime();
            let lease = store.granted(lock).await;
            store.renewed(&lease).await;
            store.released(&lease).await;
            slowest = slowest.max(boottime() - began);
            calls += 3;
        }
        tokio::select! {
            done = &mut over => return (done, calls, slowest),
            () = sleep(Duration::from_millis(10)) => {}
        }
    }
}

/// Returns when the store granted the lock again.
async fn granted_again(store: &ClusterStore, lock: &LockKey) -> Duration {
    until("grants go on", async || {
        let (call, reply) = store.ask(lock).await;
        let Ok(Acquired::Granted(grant)) = reply else {
            return None;
        };
        store.released(&lease(&call, grant.fencing_token)).await;
        Some(boottime_of(grant.fencing_token.get()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_cluster_keeps_locks_on_all_masters() {
    let cluster = ClusterDeployment::start(ClusterOptions::default()).await;
    let mut without_key = config(&cluster);
    without_key.deployment_key = None;
    for refused in [
        ClusterStore::try_start(without_key.clone()).await.err(),
        init_store(without_key).await.err(),
    ] {
        let refused = refused.expect("no key").to_string();
        assert!(refused.contains("store.deployment_key_file"), "{refused}");
    }
    let done = init_store(config(&cluster)).await.expect("it is empty");
    assert!(done.contains("16384 slots were written on 3"), "{done}");
    let again = init_store(config(&cluster)).await.expect_err("not empty");
    assert!(again.to_string().contains("already holds keys"), "{again}");
    let warnings = check_store(config(&cluster)).await.expect("it is fit");
    assert_eq!(warnings, [""; 0]);

    // One seed is enough, and it need not be the first.
    let mut seeds = config(&cluster);
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    seeds.place = Place::Cluster(vec![address(nobody), address(cluster.addr(4))]);
    let stores = [
        ClusterStore::start(config(&cluster)).await,
        ClusterStore::start(seeds).await,
    ];
    for lock in locks("lock") {
        let lease = stores[0].granted(&lock).await;
        let (_, other) = stores[1].ask(&lock).await;
        assert!(matches!(other, Ok(Acquired::Held(_))), "{other:?}");
        stores[1].renewed(&lease).await;
        stores[1].released(&lease).await;
        stores[1].granted(&lock).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_no_cluster_is_refused() {
    let single = RedisServer::start().await;
    let cluster = ClusterDeployment::start(ClusterOptions {
        replicas: 0,
        ..ClusterOptions::default()
    })
    .await;
    let mut alone = config(&cluster);
    alone.place = Place::Cluster(vec![address(single.addr())]);
    let mut as_one = config(&cluster);
    as_one.place = Place::Server(address(cluster.addr(0)));
    let mut nobody = config(&cluster);
    let addr = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    nobody.place = Place::Cluster(vec![address(addr)]);
    for (config, says) in [
        (alone, "does not run in cluster mode"),
        (as_one, "Use redis-cluster://"),
        (nobody, "cannot be reached"),
    ] {
        let refused = ClusterStore::try_start(config).await.err();
        let refused = refused.expect("it is refused").to_string();
        assert!(refused.contains(says), "{refused}");
    }
    let mut raw = cluster.connect(1).await;
    let full = ["CONFIG", "SET", "cluster-require-full-coverage", "yes"];
    raw.must(&full).await;
    let refused = ClusterStore::try_start(config(&cluster)).await.err();
    let refused = refused.expect("it is refused").to_string();
    assert!(refused.contains("cluster-require-full-coverage yes"));
    let mut anyway = config(&cluster);
    anyway.allow_unsafe = true;
    ClusterStore::start(anyway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_master_costs_only_its_slots_and_its_successor_waits() {
    let mut cluster = ClusterDeployment::start(ClusterOptions::default()).await;
    let store = prepared(&cluster).await;
    let [lost, others @ ..] = locks("lock");
    let lease = store.granted(&lost).await;
    cluster.connect(0).await.must(&["WAIT", "1", "10000"]).await;
    let killed = boottime();
    cluster.kill(0).await;
    let successor = async {
        let mut refused = Vec::new();
        let renewed = loop {
            let began = boottime();
            let renewed = store.renew(&lease).await;
            assert!(boottime() - began <= PROMPT + BEAT);
            match renewed {
                Ok(renewed) => break (renewed, boottime() - killed),
                Err(error) => refused.push(error),
            }
        };
        assert!(store.is_recovering(&lost).await, "Q has begun");
        let next = cluster.promoted(slot_of_lock(&lost), 0).await;
        assert_eq!(next, 3);
        let promoted = boottime() - killed;
        let again = granted_again(&store, &lost).await - killed;
        (renewed, refused, promoted, again)
    };
    let (done, calls, slowest) = undisturbed(&store, &others, successor).await;
    let ((renewed, renewed_after), refused, promoted, again) = done;
    // It expired before its slot had a master again, and nobody else has had it since.
    assert!(
        matches!(renewed, Renewed::Extended(_) | Renewed::Expired),
        "{renewed:?}"
    );
    // The successor renews once the former master is known to be out.
    let refusals = |error: &StoreError| {
        matches!(
            error,
            StoreError::NotNow(_) | StoreError::Unavailable(_) | StoreError::Recovering { .. }
        )
    };
    assert!(!refused.is_empty() && refused.iter().all(refusals));
    // The era may be older than this test's knowledge of the promotion, but not older than the death.
    assert!(again >= QUARANTINE, "{again:?}");
    assert!(again <= promoted + QUARANTINE + 5 * PROMPT, "{again:?}");
    assert!(slowest <= PROMPT, "{slowest:?}");
    cluster.restart(0, Data::Lost).await;
    cluster.ready().await;
    figures(&format!(
        "cluster_store kill -9: {} calls refused, renewed again after {renewed_after:?} ({renewed:?}), grants after \
         {again:?} (Q={QUARANTINE:?}); elsewhere {calls} calls, the slowest three of one lock took {slowest:?}",
        refused.len()
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_lines_go_on_while_their_slot_moves() {
    let cluster = ClusterDeployment::start(ClusterOptions::default()).await;
    let mut store = prepared(&cluster).await;
    let [held, others @ ..] = locks("lock");
    let slot = slot_of_lock(&held);
    let beside = lock_in(|other| other == slot, "beside");
    let kept = lock_in(|other| other == slot, "kept");
    let leases = [
        store.granted(&held).await,
        store.granted(&kept).await,
        store.granted(&beside).await,
    ];
    let waiting = leasehold_server::lock::Acquire {
        wait_ms: WAIT_MS,
        ..with_ttl(new_call(&held), TTL_MS)
    };
    let queued = store.store.acquire(&waiting).await;
    assert!(matches!(queued, Ok(Acquired::Queued { .. })), "{queued:?}");
    let key_of = |lock: &LockKey| format!("{PREFIX}{}", lock.encoded());

    // The lock first, then its era, then the rest; the slot last.
    let mut migration = cluster.begin_migration(slot, 1).await;
    for part in [&key_of(&held), &format!("{PREFIX}era{}", tag_in(slot))] {
        migration.move_keys(from_ref(part)).await;
        for lease in &leases {
            store.renewed(lease).await;
        }
    }
    let fresh = lock_in(|other| other == slot, "fresh");
    assert!(store.is_recovering(&fresh).await, "no era, no grants");
    assert!(store.store.get(&held).await.expect("an answer").is_some());
    store.released(&leases[2]).await;
    assert!(store.is_recovering(&beside).await);
    let touched = store.store.touch(&held).await.expect("a touch");
    assert!(!touched.rejoin, "it is in line");
    let queued = store.store.acquire(&again(&waiting)).await;
    assert!(matches!(queued, Ok(Acquired::Queued { .. })), "{queued:?}");
    let finish = async {
        migration.move_all().await;
        let given = boottime();
        migration.finish().await;
        given
    };
    let (given, calls, slowest) = undisturbed(&store, &others, finish).await;
    store.renewed(&leases[0]).await;
    store.released(&leases[0]).await;
    assert!(store.is_recovering(&fresh).await, "Q after a migration");
    store.renewed(&leases[1]).await;

    let handed = until("the waiter is handed the lock", async || {
        store.renewed(&leases[1]).await;
        store.store.touch(&held).await.expect("a touch");
        while let Some(event) = store.told() {
            if let Event::HandOff(lock, hand_off, _) = event {
                assert_eq!((&lock, hand_off.request), (&held, waiting.request));
                return Some(boottime() - given);
            }
        }
        None
    })
    .await;
    assert!(handed >= QUARANTINE, "{handed:?}");
    granted_again(&store, &fresh).await;
    assert!(slowest <= PROMPT, "{slowest:?}");
    figures(&format!(
        "cluster_store migration: two leases renewed throughout, the waiter was handed its lock {handed:?} after \
         (Q={QUARANTINE:?}); elsewhere {calls} calls, slowest {slowest:?}"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_master_waits_in_all_its_slots_at_once() {
    let cluster = ClusterDeployment::start(ClusterOptions::default()).await;
    let store = prepared(&cluster).await;
    let [used, others @ ..] = locks("lock");
    let unused = lock_in(|slot| slot < SLOTS / 4, "unused");
    store.granted(&used).await;
    let flushed = boottime();
    cluster.connect(0).await.must(&["FLUSHALL"]).await;
    assert!(store.is_recovering(&used).await, "its era is gone");
    let again = async {
        let first = granted_again(&store, &used).await;
        (
            first - flushed,
            granted_again(&store, &unused).await - first,
        )
    };
    let ((first, later), calls, slowest) = undisturbed(&store, &others, again).await;
    assert!(first >= QUARANTINE, "{first:?}");
    assert!(later <= 2 * PROMPT, "it had waited, too: {later:?}");
    assert!(slowest <= PROMPT, "{slowest:?}");
    figures(&format!(
        "cluster_store FLUSHALL: grants after {first:?} (Q={QUARANTINE:?}), in a slot that nobody had used {later:?} \
         later; elsewhere {calls} calls, slowest {slowest:?}"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_told_once_and_go_on_when_another_node_is_gone() {
    let mut cluster = ClusterDeployment::start(ClusterOptions {
        replicas: 0,
        ..ClusterOptions::default()
    })
    .await;
    let mut stores = [
        prepared(&cluster).await,
        ClusterStore::start(config(&cluster)).await,
    ];
    for lock in locks("lock") {
        hand_over(&mut stores, &lock).await;
    }
    let [lost, others @ ..] = locks("again");
    cluster.kill(0).await;
    for lock in others {
        hand_over(&mut stores, &lock).await;
    }
    cluster.restart(0, Data::Kept).await;
    for store in &mut stores {
        while store.event().await != Event::Resync {}
    }
    granted_again(&stores[0], &lost).await;
    hand_over(&mut stores, &lost).await;
}

/// A lock goes from the first broker to a waiter of the second, who is told once.
async fn hand_over(stores: &mut [ClusterStore; 2], lock: &LockKey) {
    let lease = stores[0].granted(lock).await;
    let waiting = leasehold_server::lock::Acquire {
        wait_ms: WAIT_MS,
        ..with_ttl(new_call(lock), TTL_MS)
    };
    let queued = stores[1].store.acquire(&waiting).await;
    assert!(matches!(queued, Ok(Acquired::Queued { .. })), "{queued:?}");
    stores[0].released(&lease).await;
    let mut told = 0;
    let deadline = boottime() + BEAT;
    while told == 0 || boottime() < deadline {
        match stores[1].told() {
            Some(Event::HandOff(of, hand_off, _)) => {
                assert_eq!((&of, hand_off.request), (lock, waiting.request));
                told += 1;
            }
            Some(_) => {}
            None => sleep(Duration::from_millis(5)).await,
        }
        assert!(boottime() < deadline + 10 * PROMPT, "it is told");
    }
    assert_eq!(told, 1, "told once");
}
