//! The time without grants after a loss of data follows from the limit of spans in the store.

use leasehold_server::{
    lock::{BrokerId, CUT_TTL_MIN_MS, LeaseRef, SPAN_MIN_MS, expiry_ms, span_ms},
    store::{
        Acquired, Renewal, Store as _,
        redis::{
            RedisStore,
            connection::RedisConfig,
            era::{EraBounds, QUARANTINE_MARGIN_MS},
            scripts::Scripts,
            span_limit::{SpanLimitTerms, StoredSpanLimit},
        },
    },
};
use leasehold_tests::{
    redis::{
        node_fixture::{
            NodeFixture, PREFIX, WAIT_MAX, config, quarantine_ms, set_span_limit, stored_era,
            wait_for_node_end,
        },
        server::{RedisServer, RestartData},
    },
    store_fixture::{lease_of, lock_key, new_call, with_ttl},
    until::until,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const BOUNDS: EraBounds = EraBounds {
    ttl_max_ms: 60_000,
    lock_delay_max_ms: 10_000,
    former_master_max_ms: 12_000,
};
/// Bounds of a broker that has the same store as a broker with [`BOUNDS`].
const LARGER_BOUNDS: EraBounds = EraBounds {
    ttl_max_ms: 300_000,
    lock_delay_max_ms: 20_000,
    former_master_max_ms: 15_000,
};
/// Redis keeps its data when it is killed.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn large_config(server: &RedisServer) -> RedisConfig {
    RedisConfig {
        bounds: BOUNDS,
        ..config(server)
    }
}

fn larger_config(server: &RedisServer) -> RedisConfig {
    RedisConfig {
        bounds: LARGER_BOUNDS,
        ..config(server)
    }
}

/// The store of a broker.
struct StoreOfBroker {
    store: RedisStore,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl StoreOfBroker {
    async fn start(config: RedisConfig) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let started = RedisStore::start(
            config,
            BrokerId::random(),
            Scripts::standard(),
            &tasks,
            stop.clone(),
        );
        Self {
            store: started.await.expect("the store is fit"),
            tasks,
            stop,
        }
    }

    /// Acquires a lock, and returns the lease with its validity in ms.
    async fn acquire(&self, ttl_ms: u64) -> (LeaseRef, u64) {
        let call = with_ttl(new_call(&lock_key("default", "a")), ttl_ms);
        let granted = self.store.acquire(&call).await;
        let Ok(Acquired::Granted(grant)) = granted else {
            panic!("{granted:?} instead of a grant");
        };
        let lease = lease_of(&call, grant.fencing_token);
        (lease, grant.ttl.as_millis())
    }

    /// Renews a lease, and returns its validity in ms.
    async fn renew(&self, lease: &LeaseRef) -> u64 {
        let renewed = self.store.renew(lease, Renewal::default()).await;
        let renewed = renewed.expect("an answer").expect("it is held");
        renewed.ttl.as_millis()
    }

    /// Stops the tasks of the store, and waits for their end.
    async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Waits until the limit changes, and returns it.
async fn wait_for_change(server: &RedisServer) -> StoredSpanLimit {
    until("a change of the limit", async || {
        let limit = stored_era(server).await.span_limit.expect("a limit");
        (limit.before_ms != limit.after_ms).then_some(limit)
    })
    .await
}

/// Starts a server whose era has the smallest limit.
async fn start_with_smallest_limit() -> RedisServer {
    let server = RedisServer::start_with(&DURABLE).await;
    drop(NodeFixture::start(large_config(&server)).await);
    set_span_limit(&server, StoredSpanLimit::constant(SPAN_MIN_MS)).await;
    server
}

async fn wait_for_stamp(server: &RedisServer) {
    let key = format!("{PREFIX}spans");
    let mut raw = server.connect().await;
    while raw.must(&["EXISTS", &key]).await.integer() == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_broker_that_has_read_the_limit_recovers_by_it() {
    let mut server = start_with_smallest_limit().await;
    let broker = NodeFixture::start(large_config(&server)).await;
    let before = broker.node().await;
    server.restart_with(RestartData::Kept, &DURABLE).await;
    wait_for_node_end(&before, WAIT_MAX).await;
    broker.node().await;
    let expected_ms = SPAN_MIN_MS + QUARANTINE_MARGIN_MS;
    assert_eq!(quarantine_ms(&stored_era(&server).await), expected_ms);
    let limit = stored_era(&server).await.span_limit.expect("a limit");
    assert_eq!(
        (limit.before_ms, limit.after_ms),
        (SPAN_MIN_MS, SPAN_MIN_MS)
    );
}

#[tokio::test]
async fn an_emptied_store_recovers_by_the_configured_maxima() {
    let server = start_with_smallest_limit().await;
    let broker = NodeFixture::start(large_config(&server)).await;
    let before = broker.node().await;
    server.connect().await.must(&["FLUSHALL"]).await;
    wait_for_node_end(&before, WAIT_MAX).await;
    broker.node().await;
    assert_eq!(
        quarantine_ms(&stored_era(&server).await),
        BOUNDS.quarantine_ms()
    );
    let limit = stored_era(&server).await.span_limit.expect("a limit");
    let longest_ms = expiry_ms(BOUNDS.ttl_max_ms) + BOUNDS.lock_delay_max_ms;
    assert_eq!((limit.before_ms, limit.after_ms), (longest_ms, SPAN_MIN_MS));
}

#[tokio::test]
async fn a_new_broker_recovers_by_the_limit_of_a_store_with_a_recent_stamp() {
    for (age_ms, expected_ms) in [
        (0, SPAN_MIN_MS + QUARANTINE_MARGIN_MS),
        (60_000, BOUNDS.quarantine_ms()),
    ] {
        let mut server = start_with_smallest_limit().await;
        let broker = NodeFixture::start(large_config(&server)).await;
        wait_for_stamp(&server).await;
        drop(broker);
        let mut raw = server.connect().await;
        let key = format!("{PREFIX}spans");
        let stamped = raw.must(&["GET", &key]).await.text().to_owned();
        let (stamp_ms, rest) = stamped.split_once('|').expect("several fields");
        let stamp_ms = stamp_ms.parse::<u64>().expect("a time") - age_ms;
        raw.must(&["SET", &key, &format!("{stamp_ms}|{rest}")])
            .await;
        server.restart_with(RestartData::Kept, &DURABLE).await;
        NodeFixture::start(large_config(&server)).await.node().await;
        assert_eq!(
            quarantine_ms(&stored_era(&server).await),
            expected_ms,
            "{age_ms}"
        );
    }
}

#[tokio::test]
async fn a_larger_ttl_is_used_once_the_limit_has_been_raised() {
    let server = start_with_smallest_limit().await;
    let mut config = large_config(&server);
    config.bounds.former_master_max_ms = 1_000;
    config.span_limit = Some(SpanLimitTerms { trusted_ms: 1_000 });
    let broker = StoreOfBroker::start(config).await;
    let (lease, ttl_ms) = broker.acquire(30_000).await;
    assert_eq!(ttl_ms, 10_000, "cut to the limit");
    until("a renewal with the whole ttl", async || {
        (broker.renew(&lease).await == 30_000).then_some(())
    })
    .await;
    let limit = stored_era(&server).await.span_limit.expect("a limit");
    assert_eq!(limit.before_ms, SPAN_MIN_MS);
    assert!(limit.after_ms >= expiry_ms(30_000), "{limit:?}");
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_with_smaller_bounds_raises_the_limit_for_a_lease_of_another_broker() {
    let server = RedisServer::start().await;
    let larger = StoreOfBroker::start(larger_config(&server)).await;
    let (lease, ttl_ms) = larger.acquire(LARGER_BOUNDS.ttl_max_ms).await;
    assert_eq!(ttl_ms, LARGER_BOUNDS.ttl_max_ms);
    larger.stop().await;
    // A smaller limit would be raised at once.
    let least_ms = span_ms(CUT_TTL_MIN_MS, LARGER_BOUNDS.lock_delay_max_ms);
    set_span_limit(&server, StoredSpanLimit::constant(least_ms)).await;
    let smaller = StoreOfBroker::start(large_config(&server)).await;
    let ttl_ms = smaller.renew(&lease).await;
    assert!(expiry_ms(ttl_ms) <= least_ms, "cut to the limit: {ttl_ms}");
    let raised = wait_for_change(&server).await;
    let span_ms = expiry_ms(LARGER_BOUNDS.ttl_max_ms);
    assert!(raised.after_ms >= span_ms, "{raised:?}");
    smaller.stop().await;
}

#[tokio::test]
async fn a_broker_with_smaller_bounds_lowers_the_limit_as_the_other_brokers_need() {
    let server = RedisServer::start().await;
    let larger = StoreOfBroker::start(larger_config(&server)).await;
    larger.stop().await;
    set_span_limit(&server, StoredSpanLimit::constant(40_000)).await;
    let mut raw = server.connect().await;
    // No span was in use for a whole window.
    raw.must(&["SET", &format!("{PREFIX}spans"), "0|0|0|0"])
        .await;
    let smaller = StoreOfBroker::start(large_config(&server)).await;
    let lowered = wait_for_change(&server).await;
    let longest_delay_ms = LARGER_BOUNDS.lock_delay_max_ms;
    assert_eq!(lowered.after_ms, span_ms(CUT_TTL_MIN_MS, longest_delay_ms));
    let change = SpanLimitTerms::default().change_ms(LARGER_BOUNDS.former_master_max_ms);
    let stamped = raw.must(&["GET", &format!("{PREFIX}spans")]).await;
    let (_, window) = stamped.text().split_once('|').expect("several fields");
    let began_ms = window.split('|').next().and_then(|ms| ms.parse().ok());
    assert_eq!(Some(lowered.at_ms - change), began_ms);
    smaller.stop().await;
}
