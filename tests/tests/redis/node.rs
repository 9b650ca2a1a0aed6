//! The Redis node against real servers: verification, and what ends a node.

#![expect(
    clippy::disallowed_methods,
    reason = "a forwarder is a task of the test"
)]

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use leasehold_server::store::{
    StoreError,
    redis::{init::check_store, place::Place, supervisor::NodeEvent},
};
use leasehold_tests::{
    port::free_port,
    redis_node::{Broker, PROMPT, SCRIPTS, answer, command, config, ended, sentence},
    redis_server::RedisServer,
    shared_redis::address,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    time::Instant,
};

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
    let bus = free_port().to_string();
    let options = ["--cluster-enabled", "yes", "--cluster-port", &bus];
    let cluster = RedisServer::start_with(&options).await;
    for (server, says) in [(&replica, "not a master"), (&cluster, "cluster mode")] {
        let mut config = config(server);
        config.allow_unsafe = true;
        let refused = sentence(Broker::try_start(config).await);
        assert!(refused.contains(says), "{refused}");
    }
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
    let append = || command(["lh:list"], ["x"]);
    let refused = node.eval(&SCRIPTS[1], append).await;
    // The node may have seen its new role before this call was sent.
    let unavailable = matches!(
        refused,
        Err(StoreError::NotNow(_) | StoreError::Unavailable(_))
    );
    assert!(unavailable, "{refused:?}");
    assert_eq!(raw.must(&["EXISTS", "lh:list"]).await.integer(), 0);
    ended(&node, Duration::from_millis(1_500)).await;
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
    let append = || command(["lh:list"], ["x"]);
    let reply = node.eval(&SCRIPTS[1], append).await;
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

/// A port that leads to one server, then to the other, by turns.
async fn by_turns(servers: [SocketAddr; 2]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    tokio::spawn(async move {
        for server in servers.into_iter().cycle() {
            let (mut from, _) = listener.accept().await.expect("a connection");
            let mut to = TcpStream::connect(server).await.expect("it listens");
            tokio::spawn(async move { copy_bidirectional(&mut from, &mut to).await });
        }
    });
    port
}

#[tokio::test]
async fn an_address_of_several_servers_is_refused() {
    let (one, other) = (RedisServer::start().await, RedisServer::start().await);
    let mut balanced = config(&one);
    let port = by_turns([one.addr(), other.addr()]).await;
    balanced.place = Place::Server(address(SocketAddr::from(([127, 0, 0, 1], port))));
    let refused = sentence(Broker::try_start(balanced).await);
    assert!(refused.contains("leads to different servers"), "{refused}");
}
