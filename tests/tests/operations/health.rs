//! What probes are told: that a broker lives, and that new clients should come to it.

use std::time::Duration;

use http::uri::PathAndQuery;
use leasehold_proto::v1::{ErrorReason, Heartbeat};
use leasehold_tests::{
    broker_process::{BrokerOptions, BrokerProcess},
    client::{AcquireCall, Client, channel},
    deployment::Deployment,
    health::{LIVENESS, READINESS, awaits, check, watch},
    in_process::InProcess,
    plain_http::{ask, get},
    redis_server::RedisServer,
    shim,
    status::reason,
    temp_dir::TempDir,
    until::until,
};
use tokio::{net::TcpListener, time::Instant};
use tonic::{Code, Request, client::Grpc};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_prost::ProstCodec;

const TTL: Duration = Duration::from_secs(10);
/// Much less than the drain_timeout.
const AT_ONCE: Duration = Duration::from_secs(2);

fn ok() -> (u16, String) {
    (200, "ok".to_owned())
}

fn not_ready(why: &str) -> (u16, String) {
    (503, why.to_owned())
}

fn now(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

#[tokio::test]
async fn health_answers_on_both_listeners() {
    let broker = InProcess::start().await;
    for address in [broker.api, broker.admin] {
        for name in READINESS {
            awaits(address, name, ServingStatus::Serving).await;
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
    let broker = InProcess::start().await;
    awaits(broker.admin, "", ServingStatus::Serving).await;
    for path in ["/livez", "/readyz"] {
        assert_eq!(get(broker.admin, path).await, ok());
        let head = ask(broker.admin, "HEAD", path).await.expect("an answer");
        assert_eq!(head, (200, String::new()));
        let post = ask(broker.admin, "POST", path).await.expect("an answer");
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
async fn a_drain_is_told_to_watches_and_waits_for_none() {
    let broker = InProcess::start().await;
    awaits(broker.api, "", ServingStatus::Serving).await;
    let mut watch = watch(broker.api, "").await;
    broker.begin_stop();
    let mut told = Vec::new();
    while let Some(now) = watch.message().await.expect("an orderly end") {
        told.push(now.status());
    }
    assert_eq!(told, [ServingStatus::Serving, ServingStatus::NotServing]);
    broker.stop().await;
}

/// A broker that waits for its store is alive, and not ready until the store has answered once.
#[tokio::test]
async fn a_broker_without_its_store_lives_and_is_not_ready() {
    let mut redis = RedisServer::start().await;
    let mut options = BrokerOptions::on(redis.url());
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
    awaits(broker.addr(), "", ServingStatus::Serving).await;
    assert_eq!(get(broker.admin(), "/readyz").await, ok());
    broker.terminate();
    assert_eq!(broker.ended().await, Some(0));
}

/// All brokers would lose their clients at once, who would hear nothing at all.
#[tokio::test]
async fn readiness_does_not_follow_the_store() {
    let mut deployment = Deployment::start(1).await;
    let broker = &deployment.brokers[0];
    awaits(broker.addr(), "", ServingStatus::Serving).await;
    let client = Client::new("worker-1", &[broker.addr()], 0);
    let held = client.acquire_at(0, &now("a")).await.expect("it is free");
    deployment.redis.kill().await;
    for _ in 0..3 {
        let refused = client.renew_at(0, &held).await.expect_err("no store");
        assert_eq!(reason(&refused), Some(ErrorReason::StoreUnavailable));
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

/// SIGTERM while a broker starts, whatever it waits for: there is nothing to drain.
#[tokio::test]
async fn a_start_is_ended_at_once() {
    let mut redis = RedisServer::start().await;
    let waits = BrokerOptions {
        env: vec![("LEASEHOLD__STORE__WAIT_FOR_STORE".into(), "true".into())],
        ..BrokerOptions::on(redis.url())
    };
    redis.kill().await;
    // Accepts connections, and answers nothing.
    let silent_listener = TcpListener::bind("127.0.0.1:0").await;
    let silent_listener = silent_listener.expect("a port");
    let addr = silent_listener.local_addr().expect("its address");
    let dir = TempDir::new("shim");
    let slow_names = shim::compile("slow_names.c", dir.path()).await;
    let preload = slow_names.to_str().expect("a plain path");
    let named = BrokerOptions {
        env: vec![("LD_PRELOAD".to_owned(), preload.to_owned())],
        ..BrokerOptions::on("redis://a-name:6379/0".to_owned())
    };
    let silent = BrokerOptions::on(format!("redis://{addr}/0"));
    for options in [waits, silent, named] {
        let mut broker = BrokerProcess::launch(&options).await;
        until("the process is alive", async || {
            (get(broker.admin(), "/livez").await == ok()).then_some(())
        })
        .await;
        let begun = Instant::now();
        broker.terminate();
        assert_eq!(broker.ended().await, Some(0), "{}", broker.log());
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    }
}
