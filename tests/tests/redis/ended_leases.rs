//! What a record remembers of ended leases is forgotten in time, whatever became of it meanwhile.

use std::time::Duration;

use leasehold_server::{
    lock::{BrokerId, LockKey, Release, Via},
    store::{
        Acquired, Released, Store,
        redis::{RedisStore, scripts::Scripts},
    },
};
use leasehold_tests::{
    redis_connection::RedisConnection,
    shared_redis::{own_redis, redis_config},
    world::{lease, lock_named, new_call},
};
use tokio::time::sleep;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// A release is remembered for 2 s in any case, and deleted a second later.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(3_500);
/// An hour.
const SET_BACK_MS: u64 = 3_600_000;
const OFTEN: usize = 60;
/// Two for each lease of the last round and of the eights that are not looked at yet, and the rest of the record.
const FIELDS_MAX: i64 = 2 * (60 + 16) + 16;

struct Site {
    store: RedisStore,
    raw: RedisConnection,
    lock: LockKey,
    key: String,
    _stop: DropGuard,
}

impl Site {
    async fn set() -> Self {
        let prefix = format!("{}:", uuid::Uuid::new_v4());
        let stop = CancellationToken::new();
        let (config, tasks) = (redis_config(&prefix, true), TaskTracker::new());
        let scripts = Scripts::standard();
        let store = RedisStore::start(config, BrokerId::random(), scripts, &tasks, stop.clone());
        let lock = lock_named("default", "often released");
        let raw = RedisConnection::open(own_redis()).await;
        Self {
            store: store.await.expect("a Redis that can keep locks"),
            raw: raw.expect("connect to Redis"),
            key: format!("{prefix}{}", lock.encoded()),
            lock,
            _stop: stop.drop_guard(),
        }
    }

    async fn release_often(&self, times: usize) {
        for _ in 0..times {
            let call = new_call(&self.lock);
            let granted = self.store.acquire(&call).await;
            let Ok(Acquired::Granted(grant)) = granted else {
                panic!("{granted:?} instead of a grant");
            };
            let held = lease(&call, grant.fencing_token);
            let released = self.store.release(&held, Release::All, Via::Anywhere).await;
            assert_eq!(
                released.expect("its holder"),
                Released::Now { hold_count: 0 }
            );
        }
    }

    async fn fields(&mut self) -> i64 {
        self.raw.must(&["HLEN", &self.key]).await.integer()
    }
}

#[tokio::test]
async fn gaps_in_the_list_of_ended_leases_do_not_stop_their_deletion() {
    let mut site = Site::set().await;
    site.release_often(20).await;
    for at in [5, 6, 17] {
        let field = format!("zq:{at}");
        let gone = site.raw.must(&["HDEL", &site.key, &field]).await;
        assert_eq!(gone.integer(), 1, "{at}");
    }
    site.release_often(OFTEN - 20).await;
    // Only what need not be remembered any more is looked through, past the holes.
    sleep(FORGOTTEN_AFTER).await;
    site.release_often(OFTEN).await;
    let fields = site.fields().await;
    assert!(fields <= FIELDS_MAX, "{fields}");
}

/// What was remembered by a clock that was ahead.
#[tokio::test]
async fn ended_leases_are_deleted_although_the_clock_was_set_back() {
    let mut site = Site::set().await;
    site.release_often(20).await;
    for (field, value) in site.raw.hash(&site.key).await {
        let Some((head, at_ms)) = value.rsplit_once('|') else {
            continue;
        };
        if field.starts_with("z:") || field.starts_with("zq:") {
            let at_ms: u64 = at_ms.parse().expect("a time");
            let ahead = format!("{head}|{}", at_ms + SET_BACK_MS);
            site.raw.must(&["HSET", &site.key, &field, &ahead]).await;
        }
    }
    sleep(FORGOTTEN_AFTER).await;
    site.release_often(OFTEN).await;
    sleep(FORGOTTEN_AFTER).await;
    site.release_often(OFTEN).await;
    let fields = site.fields().await;
    assert!(fields <= FIELDS_MAX, "{fields}");
}
