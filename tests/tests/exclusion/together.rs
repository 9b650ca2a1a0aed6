//! Store commands that are batched while they wait for other commands. Each command of a batch
//! succeeds or fails as it would alone.

use std::sync::Arc;

use futures::future::join_all;
use leasehold_server::{
    lock::{AcquireCommand, BrokerId, ExpectedAttachment, ReleaseScope},
    store::{
        Acquired, Renewal, Store, StoreError,
        redis::{RedisStore, connection::RedisConfig, scripts::Scripts},
    },
};
use leasehold_tests::{
    redis::{
        command_counts::CommandCounts, connection::RedisConnection, server::RedisServer,
        shared_server::config_of,
    },
    store_fixture::{TTL_MAX_MS, lease_of, lock_key, new_call, released_now, with_ttl},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const LOCKS: usize = 200;
/// Maximum number of scripts in flight, and maximum number of locks in a batch.
const CONCURRENT_COMMANDS: usize = 2;
const BATCHED_CALLS: usize = 16;
/// Maximum number of locks that are renewed by one run.
const RENEWED_LOCKS: usize = 64;
/// Pause of Redis, far shorter than the time limit of a call, and long enough to send all calls.
const PAUSE_MS: &str = "300";

struct Fixture {
    store: Arc<dyn Store>,
    prefix: String,
    redis: RedisConnection,
    stop: CancellationToken,
    _server: RedisServer,
}

impl Fixture {
    async fn set() -> Self {
        let server = RedisServer::start().await;
        let prefix = "together:".to_owned();
        let stop = CancellationToken::new();
        // The script that adapts the limit would be counted.
        let config = RedisConfig {
            span_limit: None,
            ..config_of(server.addr(), &prefix, true)
        };
        let broker = BrokerId::random();
        let tasks = TaskTracker::new();
        let store = RedisStore::start(config, broker, Scripts::standard(), &tasks, stop.clone());
        let redis = RedisConnection::open(server.addr());
        Self {
            store: Arc::new(store.await.expect("a Redis that can keep locks")),
            prefix,
            redis: redis.await.expect("connect to Redis"),
            stop,
            _server: server,
        }
    }

    /// Suspends the responses of Redis until all calls wait for them.
    async fn pause(&mut self) {
        let pause = ["CLIENT", "PAUSE", PAUSE_MS, "ALL"];
        self.redis.must(&pause).await;
    }

    /// Returns the number of scripts that Redis has run.
    async fn scripts_run(&mut self) -> u64 {
        let counts = CommandCounts::read(&mut self.redis).await;
        counts.get("evalsha")
    }

    fn key(&self, call: &AcquireCommand) -> String {
        format!("{}{}", self.prefix, call.lock.encoded())
    }

    async fn acquire_all(&self, calls: &[AcquireCommand]) -> Vec<Result<Acquired, StoreError>> {
        join_all(calls.iter().map(|call| self.store.acquire(call))).await
    }
}

fn calls(name: &str) -> Vec<AcquireCommand> {
    let call = |at| new_call(&lock_key("default", &format!("{name} {at}")));
    (0..LOCKS)
        .map(|at| with_ttl(call(at), TTL_MAX_MS))
        .collect()
}

#[tokio::test]
async fn what_fails_for_one_lock_of_several_fails_for_no_other() {
    let mut fixture = Fixture::set().await;
    let calls = calls("own");
    let [foreign, newer] = [LOCKS / 2, LOCKS / 2 + 1];
    let (of_others, of_later) = (fixture.key(&calls[foreign]), fixture.key(&calls[newer]));
    fixture.redis.must(&["SET", &of_others, "of others"]).await;
    fixture.redis.must(&["HSET", &of_later, "v", "99"]).await;

    let before = fixture.scripts_run().await;
    fixture.pause().await;
    let acquired = fixture.acquire_all(&calls).await;
    let runs = fixture.scripts_run().await - before;
    let runs_least = CONCURRENT_COMMANDS + (LOCKS - CONCURRENT_COMMANDS).div_ceil(BATCHED_CALLS);
    assert_eq!(usize::try_from(runs), Ok(runs_least));

    let mut tokens = Vec::new();
    let mut releases = Vec::new();
    for (at, (call, acquired)) in calls.iter().zip(acquired).enumerate() {
        match acquired {
            Ok(Acquired::Granted(grant)) if at != foreign && at != newer => {
                tokens.push(grant.fencing_token);
                releases.push(lease_of(call, grant.fencing_token));
            }
            Err(StoreError::Corrupt(reason)) if at == foreign => {
                assert!(reason.contains("WRONGTYPE"), "{reason}")
            }
            Err(StoreError::Corrupt(reason)) if at == newer => {
                assert!(reason.contains("version 99"), "{reason}")
            }
            other => panic!("lock {at}: {other:?}"),
        }
    }
    let stored = fixture.redis.must(&["GET", &of_others]).await;
    assert_eq!(stored.text(), "of others");
    assert_eq!(fixture.redis.hash_fields(&of_later).await.len(), 1);

    fixture.pause().await;
    let release = |held| {
        fixture
            .store
            .release(held, ReleaseScope::All, ExpectedAttachment::Any)
    };
    for released in join_all(releases.iter().map(release)).await {
        assert_eq!(released, Ok(released_now(0)));
    }
    // Each release has ended the hold with the token of its own lock.
    for held in releases.iter().take(BATCHED_CALLS) {
        let state = fixture.store.get(&held.lock).await.expect("it answers");
        let state = state.expect("known for a while");
        assert_eq!(
            (state.holder_count, state.last_fencing_token),
            (0, held.fencing_token.get())
        );
    }
    fixture.stop.cancel();
}

#[tokio::test]
async fn locks_that_are_renewed_together_take_few_runs() {
    let mut fixture = Fixture::set().await;
    let calls = calls("renewed");
    let mut leases = Vec::new();
    for (call, acquired) in calls.iter().zip(fixture.acquire_all(&calls).await) {
        match acquired {
            Ok(Acquired::Granted(grant)) => leases.push(lease_of(call, grant.fencing_token)),
            other => panic!("{other:?}"),
        }
    }
    let foreign = LOCKS / 2;
    let key = fixture.key(&calls[foreign]);
    fixture.redis.must(&["DEL", &key]).await;
    fixture.redis.must(&["SET", &key, "of others"]).await;

    let before = fixture.scripts_run().await;
    let renewed = fixture.store.renew_many(&leases, Renewal::default()).await;
    let runs = fixture.scripts_run().await - before;
    assert_eq!(usize::try_from(runs), Ok(LOCKS.div_ceil(RENEWED_LOCKS)));
    for (at, (lease, renewed)) in leases.iter().zip(renewed).enumerate() {
        match renewed {
            Ok(Ok(grant)) if at != foreign => {
                assert_eq!(grant.fencing_token, lease.fencing_token);
            }
            Err(StoreError::Corrupt(reason)) if at == foreign => {
                assert!(reason.contains("WRONGTYPE"), "{reason}");
            }
            other => panic!("lock {at}: {other:?}"),
        }
    }

    // Scripts that the server has lost are loaded again.
    fixture.redis.must(&["SCRIPT", "FLUSH"]).await;
    leases.remove(foreign);
    for renewed in fixture.store.renew_many(&leases, Renewal::default()).await {
        assert!(matches!(renewed, Ok(Ok(_))), "{renewed:?}");
    }
    fixture.stop.cancel();
}

#[tokio::test]
async fn a_call_that_is_dropped_before_its_turn_is_not_sent() {
    let mut fixture = Fixture::set().await;
    let mut calls = calls("dropped");
    // With more calls a batch would start for the waiting calls.
    calls.truncate(CONCURRENT_COMMANDS + BATCHED_CALLS - 1);
    fixture.pause().await;
    let (kept, dropped) = calls.split_at(calls.len() / 2);
    // The first calls keep the connection busy. The other calls wait behind them and are dropped.
    let mut all_kept = Box::pin(fixture.acquire_all(kept));
    let mut all_dropped = Box::pin(fixture.acquire_all(dropped));
    assert!(futures::poll!(&mut all_kept).is_pending());
    assert!(futures::poll!(&mut all_dropped).is_pending());
    drop(all_dropped);
    for acquired in all_kept.await {
        assert!(matches!(acquired, Ok(Acquired::Granted(_))), "{acquired:?}");
    }
    for call in dropped {
        assert_eq!(fixture.store.get(&call.lock).await, Ok(None));
    }
    fixture.stop.cancel();
}
