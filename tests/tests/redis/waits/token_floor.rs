//! Fencing tokens rise after a loss of data, although the clock of the server is an hour behind that
//! of its predecessor.

use leasehold_server::{
    lock::{BrokerId, ExpectedAttachment, FencingToken, LockKey, ReleaseScope},
    store::{
        Acquired, Store as _,
        redis::{
            RedisStore,
            connection::RedisConfig,
            era::{Era, EraBounds},
            location::StoreLocation,
            scripts::Scripts,
        },
    },
};
use leasehold_tests::{
    net::partition_proxy::PartitionProxy,
    process::private_wall_clock::PrivateWallClock,
    redis::{
        node_fixture::{PREFIX, config, stored_era},
        server::{RedisOptions, RedisServer, RestartData},
        shared_server::config_address,
    },
    store_fixture::{lease_of, lock_key, new_attempt, new_call, with_ttl},
    until::until,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Time by which the clock of the first server is ahead.
const AHEAD_MS: i64 = 3_600_000;
/// Longest ttl, from which a short quarantine follows.
const TTL_MS: u64 = 1_000;
/// Redis keeps its data when it is killed.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// A broker, which stops when dropped.
struct Broker {
    store: RedisStore,
    stop: CancellationToken,
}

impl Broker {
    async fn start(config: RedisConfig) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (id, scripts) = (BrokerId::random(), Scripts::standard());
        let started = RedisStore::start(config, id, scripts, &tasks, stop.clone()).await;
        let store = started.expect("the store is fit");
        Self { store, stop }
    }

    /// Acquires and releases the lock once the store grants it. Returns the token.
    async fn token(&self) -> FencingToken {
        let call = with_ttl(new_call(&lock()), TTL_MS);
        let token = until("a grant", async || {
            match self.store.acquire(&new_attempt(&call)).await {
                Ok(Acquired::Granted(grant)) => Some(grant.fencing_token),
                _ => None,
            }
        })
        .await;
        let lease = lease_of(&call, token);
        let released = self
            .store
            .release(&lease, ReleaseScope::All, ExpectedAttachment::Any)
            .await;
        assert!(matches!(released, Ok(Ok(_))), "{released:?}");
        token
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn lock() -> LockKey {
    lock_key("default", "orders/17")
}

fn small_config(server: &RedisServer) -> RedisConfig {
    RedisConfig {
        bounds: EraBounds {
            ttl_max_ms: TTL_MS,
            lock_delay_max_ms: 0,
            former_master_max_ms: 0,
        },
        ..config(server)
    }
}

async fn start_server(ahead_ms: i64) -> RedisServer {
    let clock = PrivateWallClock::build().await;
    clock.step(ahead_ms);
    RedisServer::start_with_options(RedisOptions {
        clock: Some(clock),
        options: DURABLE.map(str::to_owned).into(),
        ..RedisOptions::default()
    })
    .await
}

/// Deletes the record of the lock, as its loss or its expiry does.
async fn delete_record(server: &RedisServer) {
    let key = format!("{PREFIX}{}", lock().encoded());
    let mut raw = server.connect().await;
    assert_eq!(raw.must(&["DEL", &key]).await.integer(), 1);
}

/// Replaces the server by one whose clock is that of this machine.
async fn replace(server: &mut RedisServer, ahead_ms: i64, data: RestartData) {
    server.kill().await;
    server.clock().step(-ahead_ms);
    server.restart_with(data, &[]).await;
}

async fn wait_for_era_after(server: &RedisServer, former: &Era) -> Era {
    until("the next era", async || {
        let text = server.connect().await.must(&["GET", "lh:era"]).await;
        let era = Era::parse(text.text()).ok()?;
        (era.id != former.id).then_some(era)
    })
    .await
}

#[tokio::test]
async fn tokens_continue_at_a_server_without_data_whose_clock_is_behind() {
    for ahead_ms in [0, AHEAD_MS] {
        let mut server = start_server(ahead_ms).await;
        let broker = Broker::start(small_config(&server)).await;
        let before = broker.token().await;
        let former = stored_era(&server).await;
        replace(&mut server, ahead_ms, RestartData::Deleted).await;
        let era = wait_for_era_after(&server, &former).await;
        let floor = (ahead_ms > 0).then_some(before);
        assert_eq!(
            era.token_floor, floor,
            "only a clock that is behind needs one"
        );
        let after = broker.token().await;
        assert!(before < after, "{before:?} before {after:?}");
    }
}

#[tokio::test]
async fn tokens_continue_when_a_clock_is_set_back() {
    let server = start_server(0).await;
    let broker = Broker::start(small_config(&server)).await;
    let before = broker.token().await;
    let former = stored_era(&server).await;
    delete_record(&server).await;
    server.clock().step(-AHEAD_MS);
    let era = wait_for_era_after(&server, &former).await;
    assert_eq!(era.token_floor, Some(before));
    let after = broker.token().await;
    assert!(before < after, "{before:?} before {after:?}");
}

/// Only the broker that does not write the era has received the largest token.
#[tokio::test]
async fn a_broker_raises_the_floor_of_the_era_of_another_broker() {
    let mut server = start_server(AHEAD_MS).await;
    let writer = Broker::start(small_config(&server)).await;
    let proxy = PartitionProxy::start(server.addr()).await;
    let other = Broker::start(RedisConfig {
        location: StoreLocation::Server(config_address(proxy.addr())),
        ..small_config(&server)
    })
    .await;
    let before = other.token().await;
    delete_record(&server).await;
    let former = stored_era(&server).await;
    proxy.block(&[proxy.addr().ip()]);
    replace(&mut server, AHEAD_MS, RestartData::Kept).await;
    let written = wait_for_era_after(&server, &former).await;
    assert_eq!(written.token_floor, None);
    proxy.unblock_all();
    let raised = until("the floor is raised", async || {
        let era = stored_era(&server).await;
        era.token_floor.is_some().then_some(era)
    })
    .await;
    let expected = Era {
        token_floor: Some(before),
        ..written
    };
    assert_eq!(raised, expected);
    let after = writer.token().await;
    assert!(before < after, "{before:?} before {after:?}");
}

/// A broker that has served in an era writes no floor when it connects again.
#[tokio::test]
async fn a_connection_that_broke_raises_no_floor() {
    let server = start_server(0).await;
    let broker = Broker::start(small_config(&server)).await;
    broker.token().await;
    let former = stored_era(&server).await;
    let mut raw = server.connect().await;
    raw.must(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    broker.token().await;
    assert_eq!(stored_era(&server).await, former);
}

/// The bound of the guarantee: no living broker has received the token, and the data do not contain
/// it.
#[tokio::test]
async fn tokens_that_no_living_broker_has_received_may_be_granted_again() {
    let mut server = start_server(AHEAD_MS).await;
    let broker = Broker::start(small_config(&server)).await;
    let before = broker.token().await;
    drop(broker);
    replace(&mut server, AHEAD_MS, RestartData::Deleted).await;
    let broker = Broker::start(small_config(&server)).await;
    assert_eq!(stored_era(&server).await.token_floor, None);
    let after = broker.token().await;
    assert!(after < before, "{before:?} before {after:?}");
}
