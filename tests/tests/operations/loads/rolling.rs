//! A rolling restart behind one address: three brokers are replaced one after the other, round after
//! round, under programs that hold leases, wait in lines and call. Nothing is lost, nobody overlaps,
//! and lines keep their order.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use leasehold_tests::{
    balancer::Balancer,
    binary::{built, leasehold_server},
    broker_process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    bustle::{Bustle, PROGRAMS},
    clock::boottime,
    deployment::Deployment,
    faults::Window,
    redis_server::RedisServer,
    scale::{count, figures},
    time_left::spread,
};
use tokio::time::sleep;

/// After that long a broker cuts who has not moved.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
const BROKERS: usize = 3;
const ROUNDS: usize = 20;
/// About as long as a round takes.
const ROUND: Duration = Duration::from_secs(18);
const CALM: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn replacing_every_broker_in_turn_costs_nobody_anything() {
    survive([(); BROKERS].map(|()| leasehold_server())).await;
}

/// The later version adds to records, to the era, and to what brokers tell each other (scripts/ahead.sh).
#[tokio::test(flavor = "multi_thread")]
async fn so_it_is_with_one_broker_a_version_ahead() {
    let (ours, ahead) = (leasehold_server(), built("leasehold-server-ahead"));
    assert_ne!(version(&ours), version(&ahead));
    let deployment = survive([ours.clone(), ahead, ours]).await;
    let mut raw = deployment.redis.connect().await;
    let mut added = 0;
    for (key, _) in raw.keys_with_pttl(KEY_PREFIX).await {
        let kind = raw.must(&["TYPE", &key]).await;
        if kind.text() == "hash" {
            added += raw.must(&["HEXISTS", &key, "later"]).await.integer();
        }
    }
    assert!(added > 0, "the later version has served");
}

fn version(binary: &Path) -> Vec<u8> {
    let said = Command::new(binary).arg("--version").output();
    said.expect("it runs").stdout
}

/// With one broker of each of these binaries.
async fn survive(binaries: [PathBuf; BROKERS]) -> Deployment {
    let mut deployment = start(binaries).await;
    let streams = Balancer::start(&deployment.brokers).await;
    let calls = Balancer::start(&deployment.brokers).await;
    let rounds = count(ROUNDS, 1);
    let time = ROUND * u32::try_from(rounds).expect("few");
    let bustle = Bustle::start([&streams, &calls], time).await;

    let (mut windows, mut drains, mut moved) = (Vec::new(), Vec::new(), 0);
    for at in (0..BROKERS).cycle().take(rounds * BROKERS) {
        sleep(CALM).await;
        let (from, on_it) = (boottime(), streams.open(at));
        let drained = replace(&mut deployment.brokers[at], at, [&streams, &calls]).await;
        moved += on_it;
        drains.push(drained);
        windows.push(Window {
            effect: format!("broker {at} replaced: {on_it} streams moved, drained in {drained:?}"),
            store_works: true,
            from,
            to: boottime(),
        });
    }
    sleep(CALM).await;
    figures(&format!(
        "rolling: rounds={rounds} replaced={} streams_moved={moved} drains: {}",
        windows.len(),
        spread(drains)
    ));
    bustle.end("rolling", &windows, &deployment.addrs()).await;
    deployment
}

/// Stops a broker in good order and puts a new process in its place; how long the drain took.
async fn replace(broker: &mut BrokerProcess, at: usize, balancers: [&Balancer; 2]) -> Duration {
    let [streams, _] = balancers;
    assert!(streams.open(at) > 0, "nobody is on broker {at}");
    let from = boottime();
    broker.terminate();
    assert_eq!(broker.ended().await, Some(0), "in good order");
    let drained = boottime() - from;
    assert!(drained < DRAIN_TIMEOUT, "all have moved: {drained:?}");
    streams.left(at).await;
    let elsewhere: usize = (0..BROKERS).map(|at| streams.open(at)).sum();
    assert!(elsewhere >= 2 * PROGRAMS, "{elsewhere} streams are left");
    broker.restart().await;
    for balancer in balancers {
        balancer.replaced(at, broker.admin());
        balancer.ready(at).await;
    }
    drained
}

async fn start(binaries: [PathBuf; BROKERS]) -> Deployment {
    let redis = RedisServer::start().await;
    let options = binaries.map(|binary| BrokerOptions {
        binary: Some(binary),
        ..BrokerOptions::on(redis.url())
    });
    options[0].init_store().await;
    let mut brokers = Vec::new();
    for options in &options {
        brokers.push(BrokerProcess::start(options).await);
    }
    Deployment { brokers, redis }
}
