//! The Redis node with real servers: verification, and conditions that close a node.

#![expect(
    clippy::disallowed_methods,
    reason = "a forwarder is a task of the test"
)]

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use leasehold_server::store::{
    StoreError,
    redis::{init::check_store, location::StoreLocation, supervisor::NodeEvent},
};
use leasehold_tests::{
    process::ports::free_port,
    redis::{
        node_fixture::{
            NodeFixture, SCRIPTS, STORE_WAIT_MAX, config, rejection_message, run_answer_script,
            script_command, wait_for_node_end,
        },
        server::RedisServer,
        shared_server::config_address,
    },
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
    let refused = rejection_message(NodeFixture::try_start(config(&server)).await);
    assert!(
        refused.contains("maxmemory-policy allkeys-lru"),
        "{refused}"
    );
    assert_eq!(check_store(config(&server)).await, Err(vec![refused]));
    let mut allowed = config(&server);
    allowed.allow_unsafe = true;
    let broker = NodeFixture::start(allowed).await;
    assert_eq!(run_answer_script(&*broker.node().await).await, Ok(42));
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
        let refused = rejection_message(NodeFixture::try_start(config).await);
        assert!(refused.contains(says), "{refused}");
    }
}

#[tokio::test]
async fn a_demoted_master_ends_its_node() {
    let server = RedisServer::start().await;
    let other = RedisServer::start().await;
    let broker = NodeFixture::start(config(&server)).await;
    let node = broker.node().await;
    let port = other.addr().port().to_string();
    let mut raw = server.connect().await;
    raw.must(&["REPLICAOF", "127.0.0.1", &port]).await;
    let append = script_command(["lh:list"], ["x"]);
    let refused = node.eval(&SCRIPTS[1], append).await;
    // The node may have detected its server's new role before this call was sent.
    let unavailable = matches!(
        refused,
        Err(StoreError::NotExecuted(_) | StoreError::Unavailable(_))
    );
    assert!(unavailable, "{refused:?}");
    assert_eq!(raw.must(&["EXISTS", "lh:list"]).await.integer(), 0);
    wait_for_node_end(&node, Duration::from_millis(1_500)).await;
}

#[tokio::test]
async fn a_frozen_server_fails_calls_promptly_and_comes_back() {
    let server = RedisServer::start().await;
    let broker = NodeFixture::start(config(&server)).await;
    let before = broker.node().await;
    server.process().pause().await;
    let start = Instant::now();
    let failed = run_answer_script(&before).await;
    assert!(
        matches!(failed, Err(StoreError::Unavailable(_))),
        "{failed:?}"
    );
    assert!(start.elapsed() < STORE_WAIT_MAX, "{:?}", start.elapsed());
    wait_for_node_end(&before, Duration::from_secs(3)).await;
    let start = Instant::now();
    assert!(run_answer_script(&before).await.is_err());
    assert!(broker.supervisor.node(Duration::ZERO).await.is_err());
    assert!(start.elapsed() < STORE_WAIT_MAX);
    server.process().resume();
    let after = broker.node().await;
    assert_eq!(after.era_id(), before.era_id());
    assert_eq!(run_answer_script(&after).await, Ok(42));
}

#[tokio::test]
async fn forgotten_scripts_are_loaded_again() {
    let server = RedisServer::start().await;
    let broker = NodeFixture::start(config(&server)).await;
    let node = broker.node().await;
    let mut raw = server.connect().await;
    for _ in 0..3 {
        raw.must(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(run_answer_script(&node).await, Ok(42));
    }
    assert!(!node.is_closed());
}

#[tokio::test]
async fn a_foreign_key_is_corruption() {
    let server = RedisServer::start().await;
    let broker = NodeFixture::start(config(&server)).await;
    let node = broker.node().await;
    server.connect().await.must(&["SET", "lh:list", "x"]).await;
    let append = script_command(["lh:list"], ["x"]);
    let reply = node.eval(&SCRIPTS[1], append).await;
    assert!(matches!(reply, Err(StoreError::Corrupt(_))), "{reply:?}");
    assert!(!node.is_closed());
}

#[tokio::test]
async fn a_cut_connection_ends_the_node_and_a_new_one_serves() {
    let server = RedisServer::start().await;
    let broker = NodeFixture::start(config(&server)).await;
    for kind in ["normal", "pubsub"] {
        let before = broker.node().await;
        let mut raw = server.connect().await;
        raw.must(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"])
            .await;
        wait_for_node_end(&before, STORE_WAIT_MAX).await;
        let after = broker.node().await;
        assert_eq!(after.era_id(), before.era_id());
        assert_eq!(run_answer_script(&after).await, Ok(42));
    }
}

#[tokio::test]
async fn messages_come_after_ready() {
    let server = RedisServer::start().await;
    let mut broker = NodeFixture::start(config(&server)).await;
    assert_eq!(broker.next_event().await, NodeEvent::Ready);
    let mut raw = server.connect().await;
    let heard = raw.must(&["PUBLISH", "lh:channel", "hello"]).await;
    assert_eq!(heard.integer(), 1);
    let message = NodeEvent::Message(Bytes::from_static(b"hello"));
    assert_eq!(broker.next_event().await, message);
    broker.node().await.fail("the test says so");
    assert_eq!(broker.next_event().await, NodeEvent::Ready);
}

#[tokio::test]
async fn a_burst_of_messages_is_not_lost() {
    const BURST: usize = 20_000;
    let server = RedisServer::start().await;
    let mut broker = NodeFixture::start(config(&server)).await;
    assert_eq!(broker.next_event().await, NodeEvent::Ready);
    let text = "for i = 1, ARGV[1] do redis.call('PUBLISH', KEYS[1], i) end";
    let mut raw = server.connect().await;
    let burst = BURST.to_string();
    raw.must(&["EVAL", text, "1", "lh:channel", &burst]).await;
    for i in 1..=BURST {
        let message = NodeEvent::Message(Bytes::from(i.to_string()));
        assert_eq!(broker.next_event().await, message);
    }
}

#[tokio::test]
async fn an_absent_server_is_named_or_waited_for() {
    let mut server = RedisServer::start().await;
    server.kill().await;
    let absent = rejection_message(NodeFixture::try_start(config(&server)).await);
    let port = server.addr().port();
    assert!(
        absent.starts_with(&format!("Redis at 127.0.0.1:{port} cannot be reached: ")),
        "{absent}"
    );
    let mut patient = config(&server);
    patient.wait_for_store = true;
    let broker = NodeFixture::start(patient).await;
    assert!(broker.supervisor.node(Duration::ZERO).await.is_err());
    server.restart().await;
    assert_eq!(run_answer_script(&*broker.node().await).await, Ok(42));
}

/// Opens a port that forwards connections to the two servers in alternation.
async fn start_alternating_proxy(servers: [SocketAddr; 2]) -> u16 {
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
    let port = start_alternating_proxy([one.addr(), other.addr()]).await;
    balanced.location =
        StoreLocation::Server(config_address(SocketAddr::from(([127, 0, 0, 1], port))));
    let refused = rejection_message(NodeFixture::try_start(balanced).await);
    assert!(refused.contains("leads to different servers"), "{refused}");
}
