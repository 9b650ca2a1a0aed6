//! Health checks: liveness of a broker, and readiness for new clients.

use std::time::Duration;

use http::uri::PathAndQuery;
use leasehold_proto::v1::{ErrorReason, Heartbeat};
use leasehold_tests::{
    broker::{
        deployment::Deployment,
        in_process::InProcessBroker,
        process::{BrokerOptions, BrokerProcess},
    },
    client::unary::{AcquireCall, Client, channel},
    net::{
        health::{LIVENESS, READINESS, check, wait_for_status, watch},
        plain_http::{get, send_request},
    },
    process::{preload_shim, temp_dir::TempDir},
    redis::server::RedisServer,
    status::error_reason,
    until::until,
};
use tokio::{net::TcpListener, time::Instant};
use tonic::{Code, Request, client::Grpc};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_prost::ProstCodec;

const TTL: Duration = Duration::from_secs(10);
/// Time limit far below `drain_timeout`.
const AT_ONCE: Duration = Duration::from_secs(2);

fn ok() -> (u16, String) {
    (200, "ok".to_owned())
}

fn not_ready(reason: &str) -> (u16, String) {
    (503, reason.to_owned())
}

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

#[tokio::test]
async fn health_answers_on_both_listeners() {
    let broker = InProcessBroker::start().await;
    for address in [broker.api, broker.admin] {
        for name in READINESS {
            wait_for_status(address, name, ServingStatus::Serving).await;
        }
        assert_eq!(
            check(address, LIVENESS).await.expect("a known name"),
            ServingStatus::Serving
        );
        let unknown = check(address, "store").await.expect_err("an unknown name");
        assert_eq!(unknown.code(), Code::NotFound);
    }
    broker.stop().await;
}

#[tokio::test]
async fn plain_probes_share_the_admin_port_with_grpc() {
    let broker = InProcessBroker::start().await;
    wait_for_status(broker.admin, "", ServingStatus::Serving).await;
    for path in ["/livez", "/readyz"] {
        assert_eq!(get(broker.admin, path).await, ok());
        let head = send_request(broker.admin, "HEAD", path)
            .await
            .expect("an answer");
        assert_eq!(head, (200, String::new()));
        let post = send_request(broker.admin, "POST", path)
            .await
            .expect("an answer");
        assert_eq!(post.0, 405);
    }
    for path in ["/livez/", "/readyz/more", "/metrics/more"] {
        assert_eq!(get(broker.admin, path).await, (404, String::new()));
    }
    let mut grpc = Grpc::new(channel(broker.admin));
    grpc.ready().await.expect("a connection");
    let path = PathAndQuery::from_static("/leasehold.v1.LockService/Acquire");
    let codec = ProstCodec::<Heartbeat, Heartbeat>::default();
    let sent = Request::new(Heartbeat { sequence: 1 });
    let status = grpc.unary(sent, path, codec).await.expect_err("not here");
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    broker.stop().await;
}

#[tokio::test]
async fn a_drain_is_sent_to_health_watches_and_waits_for_none() {
    let broker = InProcessBroker::start().await;
    wait_for_status(broker.api, "", ServingStatus::Serving).await;
    let mut watch = watch(broker.api, "").await;
    broker.start_shutdown();
    let mut statuses = Vec::new();
    while let Some(now) = watch.message().await.expect("an orderly end") {
        statuses.push(now.status());
    }
    assert_eq!(
        statuses,
        [ServingStatus::Serving, ServingStatus::NotServing]
    );
    broker.stop().await;
}

/// Waits for the store at start. The broker is live, but not ready until the store has responded
/// once.
#[tokio::test]
async fn a_broker_without_its_store_lives_and_is_not_ready() {
    let mut redis = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(redis.url());
    options.init_store().await;
    redis.kill().await;
    let wait = ("LEASEHOLD__STORE__WAIT_FOR_STORE", "true");
    options.env.push((wait.0.to_owned(), wait.1.to_owned()));
    let mut broker = BrokerProcess::launch(&options).await;
    assert_eq!(get(broker.admin(), "/livez").await, ok());
    assert_eq!(get(broker.admin(), "/readyz").await, not_ready("starting"));
    for address in [broker.addr(), broker.admin()] {
        for name in READINESS {
            assert_eq!(
                check(address, name).await.expect("a known name"),
                ServingStatus::NotServing
            );
        }
        let live = check(address, LIVENESS).await.expect("a known name");
        assert_eq!(live, ServingStatus::Serving);
    }
    redis.restart().await;
    wait_for_status(broker.addr(), "", ServingStatus::Serving).await;
    let (status, body) = get(broker.admin(), "/readyz").await;
    assert_eq!(status, 200, "{body}");
    let expected = "ok; the store was found empty";
    assert!(body.starts_with(expected), "{body}");
    broker.terminate();
    assert_eq!(broker.wait_for_exit().await, Some(0));
}

/// Asserts that readiness does not depend on the store. Otherwise all brokers would lose their
/// clients at once, and the clients would receive no response at all.
#[tokio::test]
async fn readiness_does_not_follow_the_store() {
    let mut deployment = Deployment::start(1).await;
    let broker = &deployment.brokers[0];
    wait_for_status(broker.addr(), "", ServingStatus::Serving).await;
    let client = Client::new("worker-1", &[broker.addr()], 0);
    let held = client
        .acquire_at(0, &immediate_call("a"))
        .await
        .expect("it is free");
    deployment.redis.kill().await;
    for _ in 0..3 {
        let refused = client.renew_at(0, &held).await.expect_err("no store");
        assert_eq!(error_reason(&refused), Some(ErrorReason::StoreUnavailable));
        for path in ["/livez", "/readyz"] {
            assert_eq!(get(broker.admin(), path).await, ok());
        }
        for address in [broker.addr(), broker.admin()] {
            assert_eq!(
                check(address, "").await.expect("a known name"),
                ServingStatus::Serving
            );
        }
    }
}

/// Sends SIGTERM to brokers that are starting and wait for different parts. There is nothing to
/// drain.
#[tokio::test]
async fn a_start_is_ended_at_once() {
    let mut redis = RedisServer::start().await;
    let waits = BrokerOptions {
        env: vec![("LEASEHOLD__STORE__WAIT_FOR_STORE".into(), "true".into())],
        ..BrokerOptions::for_store(redis.url())
    };
    redis.kill().await;
    // This listener accepts connections and sends nothing.
    let silent_listener = TcpListener::bind("127.0.0.1:0").await;
    let silent_listener = silent_listener.expect("a port");
    let addr = silent_listener.local_addr().expect("its address");
    let dir = TempDir::new("shim");
    let slow_names = preload_shim::compile_shim("slow_names.c", dir.path()).await;
    let preload = slow_names.to_str().expect("a plain path");
    let named = BrokerOptions {
        env: vec![("LD_PRELOAD".to_owned(), preload.to_owned())],
        ..BrokerOptions::for_store("redis://a-name:6379/0".to_owned())
    };
    let silent = BrokerOptions::for_store(format!("redis://{addr}/0"));
    for options in [waits, silent, named] {
        let mut broker = BrokerProcess::launch(&options).await;
        until("the process is alive", async || {
            (get(broker.admin(), "/livez").await == ok()).then_some(())
        })
        .await;
        let started_at = Instant::now();
        broker.terminate();
        assert_eq!(broker.wait_for_exit().await, Some(0), "{}", broker.log());
        assert!(started_at.elapsed() < AT_ONCE, "{:?}", started_at.elapsed());
    }
}
