//! The Redis node against real servers: verification, the era, and what ends a node.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use leasehold_server::{
    lock::DeploymentKey,
    store::{
        StoreError,
        redis::{
            connection::{NodeError, RedisConfig},
            era::{Era, EraBounds},
            init::{check_store, init_store},
            node::Node,
            script::Script,
            supervisor::{NodeEvent, Supervisor},
        },
    },
};
use leasehold_tests::redis_server::RedisServer;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const PREFIX: &str = "lh:";
const SOON: Duration = Duration::from_secs(10);
/// What a caller waits for the store at most.
const PROMPT: Duration = Duration::from_secs(1);

static SCRIPTS: LazyLock<Arc<[Script]>> = LazyLock::new(|| {
    Arc::from([
        Script::new("answer", "#!lua\nreturn 42"),
        Script::new(
            "append",
            "#!lua\nreturn redis.call('RPUSH', KEYS[1], ARGV[1])",
        ),
    ])
});

struct Broker {
    supervisor: Supervisor,
    events: mpsc::Receiver<NodeEvent>,
    stop: CancellationToken,
}

impl Broker {
    async fn start(config: RedisConfig) -> Self {
        Self::try_start(config).await.expect("the store is fit")
    }

    async fn try_start(config: RedisConfig) -> Result<Self, NodeError> {
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let scripts = Arc::clone(&SCRIPTS);
        let channel = format!("{PREFIX}channel");
        let (supervisor, events) =
            Supervisor::start(config, scripts, channel, &tasks, stop.clone()).await?;
        Ok(Self {
            supervisor,
            events,
            stop,
        })
    }

    async fn node(&self) -> Arc<Node> {
        self.supervisor.node(SOON).await.expect("a node serves")
    }

    async fn event(&mut self) -> NodeEvent {
        timeout(SOON, self.events.recv())
            .await
            .expect("an event comes")
            .expect("the supervisor lives")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn config(server: &RedisServer) -> RedisConfig {
    RedisConfig {
        host: "127.0.0.1".to_owned(),
        port: server.addr().port(),
        database: 0,
        username: None,
        password: None,
        key_prefix: PREFIX.to_owned(),
        deployment_key: None,
        bounds: EraBounds {
            ttl_max_ms: 10_000,
            lock_delay_max_ms: 1_000,
            replica_lag_max_ms: 0,
        },
        trust_empty_store: true,
        allow_unsafe: false,
        wait_for_store: false,
    }
}

async fn answer(node: &Node) -> Result<u64, StoreError> {
    let reply = node.eval(&SCRIPTS[0], Vec::new(), Vec::new()).await?;
    Ok(reply.convert().expect("a number"))
}

/// How long from now the era lets nobody grant.
fn quarantine_ms(node: &Node) -> u64 {
    let now_ms = node.not_after_ms() - leasehold_server::lock::NOT_AFTER_MS;
    node.era().no_grants_before_ms.saturating_sub(now_ms)
}

/// `Q` of the bounds above.
const Q_MS: u64 = 12_250 + 1_000 + 1_000;

fn assert_quarantine(node: &Node) {
    let left_ms = quarantine_ms(node);
    assert!((Q_MS - 3_000..=Q_MS).contains(&left_ms), "{left_ms} ms");
}

async fn stored_era(server: &RedisServer) -> Era {
    let text = server.connect().await.must(&["GET", "lh:era"]).await;
    Era::parse(text.text()).expect("an era")
}

async fn ended(node: &Node, within: Duration) -> Duration {
    let start = Instant::now();
    timeout(within, node.ended()).await.expect("the node ends");
    start.elapsed()
}

fn sentence(result: Result<Broker, NodeError>) -> String {
    match result {
        Ok(_) => panic!("the store was not refused"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn a_second_broker_adopts_the_era_and_the_key() {
    let server = RedisServer::start().await;
    let first = Broker::start(config(&server)).await.node().await.clone();
    let mut second = config(&server);
    second.trust_empty_store = false;
    second.bounds.ttl_max_ms = 20_000;
    let second = Broker::start(second).await;
    let node = second.node().await;
    assert_eq!(node.era_id(), first.era_id());
    assert!(node.deployment_key() == first.deployment_key());
    assert_eq!(quarantine_ms(&node), 0);
    assert_eq!(answer(&node).await, Ok(42));
    let era = stored_era(&server).await;
    assert_eq!(
        (era.id.as_str(), era.bounds.ttl_max_ms),
        (node.era_id(), 20_000)
    );
    let mut raw = server.connect().await;
    for key in ["lh:era", "lh:key"] {
        assert_eq!(raw.must(&["TTL", key]).await.integer(), -1, "{key}");
    }
}

#[tokio::test]
async fn an_unknown_empty_store_waits_out_the_quarantine() {
    let server = RedisServer::start().await;
    let mut config = config(&server);
    config.trust_empty_store = false;
    let broker = Broker::start(config).await;
    assert_quarantine(&*broker.node().await);
}

#[tokio::test]
async fn a_restart_begins_an_era_with_a_quarantine() {
    for options in [&["--appendonly", "no"][..], &["--appendonly", "yes"][..]] {
        let mut server = RedisServer::start_with(options).await;
        let broker = Broker::start(config(&server)).await;
        let before = broker.node().await;
        server.restart().await;
        ended(&before, SOON).await;
        let after = broker.node().await;
        assert_ne!(after.era_id(), before.era_id());
        assert!(after.deployment_key() == before.deployment_key());
        assert_quarantine(&after);
        assert_eq!(answer(&after).await, Ok(42));
    }
}

#[tokio::test]
async fn a_flush_is_noticed_and_the_key_comes_back() {
    let server = RedisServer::start().await;
    let broker = Broker::start(config(&server)).await;
    let before = broker.node().await;
    let mut raw = server.connect().await;
    let key = raw.must(&["GET", "lh:key"]).await;
    raw.must(&["FLUSHALL"]).await;
    let took = ended(&before, SOON).await;
    assert!(took <= Duration::from_millis(1_500), "{took:?}");
    let after = broker.node().await;
    assert_ne!(after.era_id(), before.era_id());
    assert_quarantine(&after);
    assert_eq!(raw.must(&["GET", "lh:key"]).await, key);
    assert!(after.deployment_key() == before.deployment_key());
}

#[tokio::test]
async fn a_lost_key_is_written_back_in_the_same_era() {
    let server = RedisServer::start().await;
    let broker = Broker::start(config(&server)).await;
    let before = broker.node().await;
    let mut raw = server.connect().await;
    let key = raw.must(&["GET", "lh:key"]).await;
    raw.must(&["DEL", "lh:key"]).await;
    before.condemn("the test says so");
    ended(&before, SOON).await;
    let after = broker.node().await;
    assert_eq!(after.era_id(), before.era_id());
    assert_eq!(raw.must(&["GET", "lh:key"]).await, key);
}

#[tokio::test]
async fn a_key_file_must_be_the_deployment_s() {
    let server = RedisServer::start().await;
    let mut with_file = config(&server);
    with_file.deployment_key = Some(DeploymentKey::random());
    let broker = Broker::start(with_file.clone()).await;
    assert!(Some(broker.node().await.deployment_key()) == with_file.deployment_key);
    let mut raw = server.connect().await;
    assert_eq!(raw.must(&["EXISTS", "lh:key"]).await.integer(), 0);
    let without = sentence(Broker::try_start(config(&server)).await);
    assert!(without.contains("key is in a file"), "{without}");
    let mut other = config(&server);
    other.deployment_key = Some(DeploymentKey::random());
    let problems = check_store(other.clone()).await.expect_err("another key");
    let other = sentence(Broker::try_start(other).await);
    assert!(other.contains("another key"), "{other}");
    assert_eq!(problems, [other]);
}

#[tokio::test]
async fn an_evicting_server_is_refused_unless_allowed() {
    let server =
        RedisServer::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"])
            .await;
    let refused = sentence(Broker::try_start(config(&server)).await);
    assert!(
        refused.contains("maxmemory-policy allkeys-lru"),
        "{refused}"
    );
    assert_eq!(check_store(config(&server)).await, Err(vec![refused]));
    let mut allowed = config(&server);
    allowed.allow_unsafe = true;
    let broker = Broker::start(allowed).await;
    assert_eq!(answer(&*broker.node().await).await, Ok(42));
}

#[tokio::test]
async fn a_replica_and_a_cluster_node_are_never_served() {
    let master = RedisServer::start().await;
    let port = master.addr().port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    let cluster = RedisServer::start_with(&["--cluster-enabled", "yes"]).await;
    for (server, says) in [(&replica, "not a master"), (&cluster, "cluster mode")] {
        let mut config = config(server);
        config.allow_unsafe = true;
        let refused = sentence(Broker::try_start(config).await);
        assert!(refused.contains(says), "{refused}");
    }
}

#[tokio::test]
async fn a_promoted_replica_begins_an_era_with_a_quarantine() {
    let master = RedisServer::start().await;
    let first = Broker::start(config(&master)).await;
    let before = first.node().await;
    let port = master.addr().port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    let mut raw = replica.connect().await;
    while raw
        .info("replication", "master_link_status")
        .await
        .as_deref()
        != Some("up")
    {
        tokio::task::yield_now().await;
    }
    assert!(!before.is_ended(), "a first replica changes nothing");
    raw.must(&["REPLICAOF", "NO", "ONE"]).await;
    let second = Broker::start(config(&replica)).await;
    let after = second.node().await;
    assert_ne!(after.era_id(), before.era_id());
    assert_quarantine(&after);
    assert!(after.deployment_key() == before.deployment_key());
}

#[tokio::test]
async fn a_demoted_master_ends_its_node() {
    let server = RedisServer::start().await;
    let other = RedisServer::start().await;
    let broker = Broker::start(config(&server)).await;
    let node = broker.node().await;
    let port = other.addr().port().to_string();
    let mut raw = server.connect().await;
    raw.must(&["REPLICAOF", "127.0.0.1", &port]).await;
    let key = vec!["lh:list".into()];
    let refused = node.eval(&SCRIPTS[1], key, vec!["x".into()]).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    ended(&node, Duration::from_millis(1_500)).await;
}

#[tokio::test]
async fn brokers_that_come_at_once_agree_on_one_era_and_key() {
    for _ in 0..5 {
        let server = RedisServer::start().await;
        let brokers = futures::future::join_all(
            (0..4).map(|_| async { Broker::start(config(&server)).await }),
        )
        .await;
        let era = stored_era(&server).await;
        for broker in &brokers {
            let node = broker.node().await;
            assert_eq!(node.era_id(), era.id);
            assert_eq!(node.deployment_key().fingerprint(), era.key_fingerprint);
        }
    }
}

#[tokio::test]
async fn a_frozen_server_fails_calls_promptly_and_comes_back() {
    let server = RedisServer::start().await;
    let broker = Broker::start(config(&server)).await;
    let before = broker.node().await;
    server.process().pause().await;
    let start = Instant::now();
    let failed = answer(&before).await;
    assert!(
        matches!(failed, Err(StoreError::Unavailable(_))),
        "{failed:?}"
    );
    assert!(start.elapsed() < PROMPT, "{:?}", start.elapsed());
    ended(&before, Duration::from_secs(3)).await;
    let start = Instant::now();
    assert!(answer(&before).await.is_err());
    assert!(broker.supervisor.node(Duration::ZERO).await.is_err());
    assert!(start.elapsed() < PROMPT);
    server.process().resume();
    let after = broker.node().await;
    assert_eq!(after.era_id(), before.era_id());
    assert_eq!(answer(&after).await, Ok(42));
}

#[tokio::test]
async fn forgotten_scripts_are_loaded_again() {
    let server = RedisServer::start().await;
    let broker = Broker::start(config(&server)).await;
    let node = broker.node().await;
    let mut raw = server.connect().await;
    for _ in 0..3 {
        raw.must(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(answer(&node).await, Ok(42));
    }
    assert!(!node.is_ended());
}

#[tokio::test]
async fn a_foreign_key_is_corruption() {
    let server = RedisServer::start().await;
    let broker = Broker::start(config(&server)).await;
    let node = broker.node().await;
    server.connect().await.must(&["SET", "lh:list", "x"]).await;
    let key = vec!["lh:list".into()];
    let reply = node.eval(&SCRIPTS[1], key, vec!["x".into()]).await;
    assert!(matches!(reply, Err(StoreError::Corrupt(_))), "{reply:?}");
    assert!(!node.is_ended());
}

#[tokio::test]
async fn a_cut_connection_ends_the_node_and_a_new_one_serves() {
    let server = RedisServer::start().await;
    let broker = Broker::start(config(&server)).await;
    for kind in ["normal", "pubsub"] {
        let before = broker.node().await;
        let mut raw = server.connect().await;
        raw.must(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"])
            .await;
        ended(&before, PROMPT).await;
        let after = broker.node().await;
        assert_eq!(after.era_id(), before.era_id());
        assert_eq!(answer(&after).await, Ok(42));
    }
}

#[tokio::test]
async fn messages_come_after_ready() {
    let server = RedisServer::start().await;
    let mut broker = Broker::start(config(&server)).await;
    assert_eq!(broker.event().await, NodeEvent::Ready);
    let mut raw = server.connect().await;
    let heard = raw.must(&["PUBLISH", "lh:channel", "hello"]).await;
    assert_eq!(heard.integer(), 1);
    let message = NodeEvent::Message(Bytes::from_static(b"hello"));
    assert_eq!(broker.event().await, message);
    broker.node().await.condemn("the test says so");
    assert_eq!(broker.event().await, NodeEvent::Ready);
}

#[tokio::test]
async fn a_burst_of_messages_is_not_lost() {
    const BURST: usize = 20_000;
    let server = RedisServer::start().await;
    let mut broker = Broker::start(config(&server)).await;
    assert_eq!(broker.event().await, NodeEvent::Ready);
    let text = "for i = 1, ARGV[1] do redis.call('PUBLISH', KEYS[1], i) end";
    let mut raw = server.connect().await;
    let burst = BURST.to_string();
    raw.must(&["EVAL", text, "1", "lh:channel", &burst]).await;
    for i in 1..=BURST {
        let message = NodeEvent::Message(Bytes::from(i.to_string()));
        assert_eq!(broker.event().await, message);
    }
}

#[tokio::test]
async fn an_absent_server_is_named_or_waited_for() {
    let mut server = RedisServer::start().await;
    server.kill().await;
    let absent = sentence(Broker::try_start(config(&server)).await);
    let port = server.addr().port();
    assert!(
        absent.starts_with(&format!("Redis at 127.0.0.1:{port} cannot be reached: ")),
        "{absent}"
    );
    let mut patient = config(&server);
    patient.wait_for_store = true;
    let broker = Broker::start(patient).await;
    assert!(broker.supervisor.node(Duration::ZERO).await.is_err());
    server.restart().await;
    assert_eq!(answer(&*broker.node().await).await, Ok(42));
}

#[tokio::test]
async fn credentials_are_used_and_never_shown() {
    let server = RedisServer::start_with(&["--requirepass", "open sesame"]).await;
    let refused = sentence(Broker::try_start(config(&server)).await);
    assert!(refused.contains("refuses this broker's user"), "{refused}");
    let mut wrong = config(&server);
    wrong.password = Some("wrong secret".to_owned());
    assert!(!format!("{wrong:?}").contains("secret"));
    let refused = sentence(Broker::try_start(wrong).await);
    assert!(!refused.contains("secret"), "{refused}");
    let mut right = config(&server);
    right.password = Some("open sesame".to_owned());
    let broker = Broker::start(right).await;
    assert_eq!(answer(&*broker.node().await).await, Ok(42));
}

#[tokio::test]
async fn init_store_makes_the_first_era_once() {
    let server = RedisServer::start().await;
    let mut config = config(&server);
    config.trust_empty_store = false;
    assert_eq!(check_store(config.clone()).await, Ok(()));
    let mut raw = server.connect().await;
    assert_eq!(raw.must(&["DBSIZE"]).await.integer(), 0);
    raw.must(&["SET", "other", "x"]).await;
    let done = init_store(config.clone()).await.expect("it is empty");
    assert!(done.contains("deployment key was created"), "{done}");
    let broker = Broker::start(config.clone()).await;
    assert_eq!(quarantine_ms(&*broker.node().await), 0);
    let again = init_store(config).await.expect_err("it is not empty");
    assert!(again.to_string().contains("already holds keys"), "{again}");
}
