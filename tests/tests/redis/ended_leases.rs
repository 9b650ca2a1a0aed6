//! Deletion of ended leases from a record, even if the record was changed in between.

use std::time::Duration;

use leasehold_server::{
    lock::{BrokerId, ExpectedAttachment, LockKey, ReleaseScope},
    store::{
        Acquired, Store,
        redis::{RedisStore, scripts::Scripts},
    },
};
use leasehold_tests::{
    redis::{
        connection::RedisConnection,
        shared_server::{own_redis, redis_config},
    },
    store_fixture::{lease_of, lock_key, new_call, released_now},
};
use tokio::time::sleep;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// Time after which a release has been deleted. A record keeps a release for 2 s and deletes it a
/// second later.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(3_500);
const SET_BACK_MS: u64 = 3_600_000;
const OFTEN: usize = 60;
/// Maximum number of fields: two for each lease of the last round and of the groups of eight that
/// are not examined yet, and the other fields of the record.
const FIELDS_MAX: i64 = 2 * (60 + 16) + 16;

struct Fixture {
    store: RedisStore,
    raw: RedisConnection,
    lock: LockKey,
    key: String,
    _stop: DropGuard,
}

impl Fixture {
    async fn set() -> Self {
        let prefix = format!("{}:", uuid::Uuid::new_v4());
        let stop = CancellationToken::new();
        let (config, tasks) = (redis_config(&prefix, true), TaskTracker::new());
        let scripts = Scripts::standard();
        let store = RedisStore::start(config, BrokerId::random(), scripts, &tasks, stop.clone());
        let lock = lock_key("default", "often released");
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
            let held = lease_of(&call, grant.fencing_token);
            let released = self
                .store
                .release(&held, ReleaseScope::All, ExpectedAttachment::Any)
                .await;
            assert_eq!(released.expect("its holder"), released_now(0));
        }
    }

    async fn fields(&mut self) -> i64 {
        self.raw.must(&["HLEN", &self.key]).await.integer()
    }
}

#[tokio::test]
async fn gaps_in_the_list_of_ended_leases_do_not_stop_their_deletion() {
    let mut fixture = Fixture::set().await;
    fixture.release_often(20).await;
    for at in [5, 6, 17] {
        let field = format!("zq:{at}");
        let gone = fixture.raw.must(&["HDEL", &fixture.key, &field]).await;
        assert_eq!(gone.integer(), 1, "{at}");
    }
    fixture.release_often(OFTEN - 20).await;
    // Only releases that may be deleted are examined, past the gaps.
    sleep(FORGOTTEN_AFTER).await;
    fixture.release_often(OFTEN).await;
    let fields = fixture.fields().await;
    assert!(fields <= FIELDS_MAX, "{fields}");
}

/// Stores ended leases with the times of a clock that was ahead.
#[tokio::test]
async fn ended_leases_are_deleted_although_the_clock_was_set_back() {
    let mut fixture = Fixture::set().await;
    fixture.release_often(20).await;
    for (field, value) in fixture.raw.hash_fields(&fixture.key).await {
        let Some((head, at_ms)) = value.rsplit_once('|') else {
            continue;
        };
        if field.starts_with("z:") || field.starts_with("zq:") {
            let at_ms: u64 = at_ms.parse().expect("a time");
            let ahead = format!("{head}|{}", at_ms + SET_BACK_MS);
            fixture
                .raw
                .must(&["HSET", &fixture.key, &field, &ahead])
                .await;
        }
    }
    sleep(FORGOTTEN_AFTER).await;
    fixture.release_often(OFTEN).await;
    sleep(FORGOTTEN_AFTER).await;
    fixture.release_often(OFTEN).await;
    let fields = fixture.fields().await;
    assert!(fields <= FIELDS_MAX, "{fields}");
}
