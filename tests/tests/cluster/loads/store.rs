//! The store on a Redis Cluster: eras of slots, migrating slots, and lost masters.

use std::{slice::from_ref, time::Duration};

use leasehold_server::{
    lock::{LockKey, RecoveryCause},
    store::{
        Acquired, Event, LeaseRejection, Store as _, StoreError,
        redis::{
            init::{check_store, init_store},
            location::StoreLocation,
        },
    },
};
use leasehold_tests::{
    clock::{boottime, boottime_from_store},
    cluster::{
        deployment::{ClusterDeployment, ClusterOptions, SLOTS, hash_tag_for, slot_of},
        store::{
            CALL_TIME_MAX, ClusterStore, PREFIX, QUARANTINE, TTL_MS, config, lock_in, slot_of_lock,
        },
    },
    process::ports::free_port,
    redis::{
        server::{RedisServer, RestartData},
        shared_server::config_address,
    },
    scale::print_figures,
    store_fixture::{lease_of, new_attempt, new_call, with_ttl},
    until::until,
};
use tokio::time::sleep;

const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);
const WAIT_MS: u64 = 60_000;

/// Returns a lock of each of the first three masters.
fn locks(what: &str) -> [LockKey; 3] {
    let third = |index: u16| move |slot: u16| slot / (SLOTS / 3 + 1) == index;
    [0, 1, 2].map(|index| lock_in(third(index), what))
}

async fn prepared(cluster: &ClusterDeployment) -> ClusterStore {
    init_store(config(cluster)).await.expect("it is empty");
    ClusterStore::start(config(cluster)).await
}

/// Acquires and releases locks until `over` completes, and counts the calls. Asserts that each
/// acquire is granted promptly.
async fn assert_undisturbed<T>(
    store: &ClusterStore,
    locks: &[LockKey],
    over: impl Future<Output = T>,
) -> (T, usize, Duration) {
    tokio::pin!(over);
    let (mut calls, mut slowest) = (0, Duration::ZERO);
    loop {
        for lock in locks {
            let started_at = boottime();
            let lease = store.expect_granted(lock).await;
            store.expect_renewed(&lease).await;
            store.expect_released(&lease).await;
            slowest = slowest.max(boottime() - started_at);
            calls += 3;
        }
        tokio::select! {
            done = &mut over => return (done, calls, slowest),
            () = sleep(Duration::from_millis(10)) => {}
        }
    }
}

/// Waits until the store grants the lock again, and returns the time of the grant.
async fn granted_again(store: &ClusterStore, lock: &LockKey) -> Duration {
    until("grants go on", async || {
        let (call, reply) = store.try_acquire(lock).await;
        let Ok(Acquired::Granted(grant)) = reply else {
            return None;
        };
        store
            .expect_released(&lease_of(&call, grant.fencing_token))
            .await;
        Some(boottime_from_store(grant.fencing_token.get()))
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

    // One responding seed is sufficient, in any position.
    let mut seeds = config(&cluster);
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    seeds.location = StoreLocation::Cluster(vec![
        config_address(nobody),
        config_address(cluster.addr(4)),
    ]);
    let stores = [
        ClusterStore::start(config(&cluster)).await,
        ClusterStore::start(seeds).await,
    ];
    for lock in locks("lock") {
        let lease = stores[0].expect_granted(&lock).await;
        let (_, other) = stores[1].try_acquire(&lock).await;
        assert!(matches!(other, Ok(Acquired::Held(_))), "{other:?}");
        stores[1].expect_renewed(&lease).await;
        stores[1].expect_released(&lease).await;
        stores[1].expect_granted(&lock).await;
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
    alone.location = StoreLocation::Cluster(vec![config_address(single.addr())]);
    let mut as_one = config(&cluster);
    as_one.location = StoreLocation::Server(config_address(cluster.addr(0)));
    let mut nobody = config(&cluster);
    let addr = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    nobody.location = StoreLocation::Cluster(vec![config_address(addr)]);
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
    let lease = store.expect_granted(&lost).await;
    cluster.connect(0).await.must(&["WAIT", "1", "10000"]).await;
    let killed = boottime();
    cluster.kill(0).await;
    let successor = async {
        let mut refused = Vec::new();
        let renewed = loop {
            let started_at = boottime();
            let renewed = store.renew(&lease).await;
            assert!(boottime() - started_at <= CALL_TIME_MAX + HEARTBEAT_INTERVAL);
            match renewed {
                Ok(renewed) => break (renewed, boottime() - killed),
                Err(error) => refused.push(error),
            }
        };
        assert!(store.is_recovering(&lost).await, "Q has begun");
        let cause = store.recovery_cause(&lost);
        assert_eq!(cause, Some(RecoveryCause::Promoted));
        let next = cluster.wait_for_promotion(slot_of_lock(&lost), 0).await;
        assert_eq!(next, 3);
        let promoted = boottime() - killed;
        let again = granted_again(&store, &lost).await - killed;
        (renewed, refused, promoted, again)
    };
    let (done, calls, slowest) = assert_undisturbed(&store, &others, successor).await;
    let ((renewed, renewed_after), refused, promoted, again) = done;
    // The lease expired before its slot had a master again, and no other caller has acquired the
    // lock since.
    assert!(
        matches!(renewed, Ok(_) | Err(LeaseRejection::Expired)),
        "{renewed:?}"
    );
    // The successor renews once the former master is known to serve nothing.
    let refusals = |error: &StoreError| {
        matches!(
            error,
            StoreError::NotExecuted(_) | StoreError::Unavailable(_) | StoreError::Recovering { .. }
        )
    };
    assert!(!refused.is_empty() && refused.iter().all(refusals));
    // The era may be older than the test's detection of the promotion, but not older than the
    // death.
    assert!(again >= QUARANTINE, "{again:?}");
    assert!(
        again <= promoted + QUARANTINE + 5 * CALL_TIME_MAX,
        "{again:?}"
    );
    assert!(slowest <= CALL_TIME_MAX, "{slowest:?}");
    cluster.restart(0, RestartData::Deleted).await;
    cluster.wait_until_ready().await;
    print_figures(&format!(
        "cluster_store kill -9: {} calls refused, renewed again after {renewed_after:?} ({renewed:?}), grants after \
         {again:?} (Q={QUARANTINE:?}); elsewhere {calls} calls, the slowest three of one lock took {slowest:?}",
        refused.len()
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_queues_survive_the_migration_of_their_slot() {
    let cluster = ClusterDeployment::start(ClusterOptions::default()).await;
    let mut store = prepared(&cluster).await;
    let [held, others @ ..] = locks("lock");
    let slot = slot_of_lock(&held);
    let beside = lock_in(|other| other == slot, "beside");
    let kept = lock_in(|other| other == slot, "kept");
    let leases = [
        store.expect_granted(&held).await,
        store.expect_granted(&kept).await,
        store.expect_granted(&beside).await,
    ];
    let waiting = leasehold_server::lock::AcquireCommand {
        wait_ms: WAIT_MS,
        ..with_ttl(new_call(&held), TTL_MS)
    };
    let queued = store.store.acquire(&waiting).await;
    assert!(matches!(queued, Ok(Acquired::Queued { .. })), "{queued:?}");
    let key_of = |lock: &LockKey| format!("{PREFIX}{}", lock.encoded());

    // The record of the lock is moved first, then its era, then the rest, and finally the slot.
    let mut migration = cluster.start_migration(slot, 1).await;
    for part in [
        &key_of(&held),
        &format!("{PREFIX}era{}", hash_tag_for(slot)),
    ] {
        migration.move_keys(from_ref(part)).await;
        for lease in &leases {
            store.expect_renewed(lease).await;
        }
    }
    let fresh = lock_in(|other| other == slot, "fresh");
    assert!(store.is_recovering(&fresh).await, "no era, no grants");
    assert!(store.store.get(&held).await.expect("an answer").is_some());
    store.expect_released(&leases[2]).await;
    assert!(store.is_recovering(&beside).await);
    let touched = store.store.touch(&held).await.expect("a touch");
    assert!(!touched.rejoin, "it is in the queue");
    let queued = store.store.acquire(&new_attempt(&waiting)).await;
    assert!(matches!(queued, Ok(Acquired::Queued { .. })), "{queued:?}");
    let finish = async {
        migration.move_remaining_keys().await;
        let migrated_at = boottime();
        migration.finish().await;
        migrated_at
    };
    let (migrated_at, calls, slowest) = assert_undisturbed(&store, &others, finish).await;
    store.expect_renewed(&leases[0]).await;
    store.expect_released(&leases[0]).await;
    assert!(store.is_recovering(&fresh).await, "Q after a migration");
    let cause = store.recovery_cause(&fresh);
    assert_eq!(cause, Some(RecoveryCause::SlotMoved));
    store.expect_renewed(&leases[1]).await;

    let handed = until("the waiter is handed the lock", async || {
        store.expect_renewed(&leases[1]).await;
        store.store.touch(&held).await.expect("a touch");
        while let Some(event) = store.try_event() {
            if let Event::HandOff(lock, hand_off, _) = event {
                assert_eq!((&lock, hand_off.request), (&held, waiting.request));
                return Some(boottime() - migrated_at);
            }
        }
        None
    })
    .await;
    assert!(handed >= QUARANTINE, "{handed:?}");
    granted_again(&store, &fresh).await;
    assert!(slowest <= CALL_TIME_MAX, "{slowest:?}");
    print_figures(&format!(
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
    store.expect_granted(&used).await;
    let flushed = boottime();
    cluster.connect(0).await.must(&["FLUSHALL"]).await;
    assert!(store.is_recovering(&used).await, "its era is gone");
    let cause = until("a new era", async || store.recovery_cause(&used)).await;
    assert_eq!(cause, RecoveryCause::Emptied);
    let again = async {
        let first = granted_again(&store, &used).await;
        (
            first - flushed,
            granted_again(&store, &unused).await - first,
        )
    };
    let ((first, later), calls, slowest) = assert_undisturbed(&store, &others, again).await;
    assert!(first >= QUARANTINE, "{first:?}");
    assert!(later <= 2 * CALL_TIME_MAX, "it had waited, too: {later:?}");
    assert!(slowest <= CALL_TIME_MAX, "{slowest:?}");
    print_figures(&format!(
        "cluster_store FLUSHALL: grants after {first:?} (Q={QUARANTINE:?}), in a slot that no caller had used {later:?} \
         later; elsewhere {calls} calls, slowest {slowest:?}"
    ));
}

/// Returns the keys on the first master of the eras with a floor of tokens.
async fn eras_with_floor(cluster: &ClusterDeployment) -> Vec<String> {
    const SEARCH: &str = "#!lua flags=allow-cross-slot-keys,no-writes
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  if string.find(redis.call('GET', key), '|token:', 1, true) then found[#found + 1] = key end
end
return found";
    let mut raw = cluster.connect(0).await;
    let pattern = format!("{PREFIX}era*");
    let found = raw.must(&["EVAL", SEARCH, "0", &pattern]).await;
    let keys = found.array().iter();
    keys.map(|key| key.text().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_a_slot_that_lost_its_data_continue_although_the_clock_is_behind() {
    const AHEAD_MS: u64 = 3_600_000;
    let cluster = ClusterDeployment::start(ClusterOptions::default()).await;
    let store = prepared(&cluster).await;
    let [ahead, ..] = locks("ahead");
    let other = lock_in(|slot| slot < SLOTS / 4, "other");
    let lease = store.expect_granted(&ahead).await;
    store.expect_released(&lease).await;
    store.expect_granted(&other).await;
    // An hour ahead, as after grants by a clock that was set back since.
    let last = lease.fencing_token.get() + 1_000 * AHEAD_MS;
    let key = format!("{PREFIX}{}", ahead.encoded());
    let mut raw = cluster.connect(0).await;
    raw.must(&["HSET", &key, "f", &last.to_string()]).await;
    let before = store.expect_granted(&ahead).await.fencing_token;
    assert_eq!(before.get(), last + 1);
    raw.must(&["FLUSHALL"]).await;
    let after = until("a grant", async || {
        match store.try_acquire(&ahead).await.1 {
            Ok(Acquired::Granted(grant)) => Some(grant.fencing_token),
            _ => None,
        }
    })
    .await;
    assert!(before < after, "{before:?} before {after:?}");
    let [floor] = &eras_with_floor(&cluster).await[..] else {
        panic!("one slot has tokens that are ahead");
    };
    assert_eq!(slot_of(floor), slot_of_lock(&ahead));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_processed_once_and_survive_the_loss_of_another_node() {
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
        hand_to_other_broker(&mut stores, &lock).await;
    }
    let [lost, others @ ..] = locks("again");
    cluster.kill(0).await;
    for lock in others {
        hand_to_other_broker(&mut stores, &lock).await;
    }
    cluster.restart(0, RestartData::Kept).await;
    for store in &mut stores {
        while store.next_event().await != Event::Resync {}
    }
    granted_again(&stores[0], &lost).await;
    hand_to_other_broker(&mut stores, &lost).await;
}

/// Hands a lock from the first broker to a waiter of the second broker, and asserts that the
/// hand-off is reported once.
async fn hand_to_other_broker(stores: &mut [ClusterStore; 2], lock: &LockKey) {
    let lease = stores[0].expect_granted(lock).await;
    let waiting = leasehold_server::lock::AcquireCommand {
        wait_ms: WAIT_MS,
        ..with_ttl(new_call(lock), TTL_MS)
    };
    let queued = stores[1].store.acquire(&waiting).await;
    assert!(matches!(queued, Ok(Acquired::Queued { .. })), "{queued:?}");
    stores[0].expect_released(&lease).await;
    let mut grants = 0;
    let deadline = boottime() + HEARTBEAT_INTERVAL;
    while grants == 0 || boottime() < deadline {
        match stores[1].try_event() {
            Some(Event::HandOff(of, hand_off, _)) => {
                assert_eq!((&of, hand_off.request), (lock, waiting.request));
                grants += 1;
            }
            Some(_) => {}
            None => sleep(Duration::from_millis(5)).await,
        }
        assert!(boottime() < deadline + 10 * CALL_TIME_MAX, "notified");
    }
    assert_eq!(grants, 1, "notified once");
}
