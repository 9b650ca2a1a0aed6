//! Rolling restart behind one address. Three brokers are replaced one after the other in several
//! rounds, under programs that hold leases, wait in queues and send calls. No lease is lost, no two
//! clients hold a lock together, and queues keep their order.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use leasehold_tests::{
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    },
    clock::boottime,
    load::{
        background_load::{BackgroundLoad, CLIENTS_PER_ROLE},
        faults::FaultWindow,
        store_expiry::format_spread,
    },
    net::balancer::Balancer,
    process::binaries::{built_binary, leasehold_server},
    redis::server::RedisServer,
    scale::{print_figures, scaled_count},
};
use tokio::time::sleep;

/// Time after which a broker closes the connections of clients that have not moved.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
const BROKERS: usize = 3;
const ROUNDS: usize = 20;
/// Approximate duration of a round.
const ROUND: Duration = Duration::from_secs(18);
const ROUND_DURATION: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restarts_lose_no_lease_and_no_order() {
    run_binaries([(); BROKERS].map(|()| leasehold_server())).await;
}

/// Runs one broker of a later version, which adds fields to records, to the era and to the messages
/// between brokers (scripts/ahead.sh).
#[tokio::test(flavor = "multi_thread")]
async fn rolling_restarts_work_with_one_broker_of_the_next_version() {
    let (current, newer) = (leasehold_server(), built_binary("leasehold-server-ahead"));
    assert_ne!(version(&current), version(&newer));
    let deployment = run_binaries([current.clone(), newer, current]).await;
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
    let output = Command::new(binary).arg("--version").output();
    output.expect("it runs").stdout
}

/// Runs one broker of each of these binaries.
async fn run_binaries(binaries: [PathBuf; BROKERS]) -> Deployment {
    let mut deployment = start(binaries).await;
    let streams = Balancer::start(&deployment.brokers).await;
    let calls = Balancer::start(&deployment.brokers).await;
    let rounds = scaled_count(ROUNDS, 1);
    let time = ROUND * u32::try_from(rounds).expect("few");
    let bustle = BackgroundLoad::start([&streams, &calls], time).await;

    let (mut windows, mut drains, mut moved) = (Vec::new(), Vec::new(), 0);
    for at in (0..BROKERS).cycle().take(rounds * BROKERS) {
        sleep(ROUND_DURATION).await;
        let (from, on_it) = (boottime(), streams.open_connections(at));
        let drained = replace(&mut deployment.brokers[at], at, [&streams, &calls]).await;
        moved += on_it;
        drains.push(drained);
        windows.push(FaultWindow {
            effect: format!("broker {at} replaced: {on_it} streams moved, drained in {drained:?}"),
            is_store_available: true,
            fault: None,
            started_at: from,
            ended_at: boottime(),
        });
    }
    sleep(ROUND_DURATION).await;
    print_figures(&format!(
        "rolling: rounds={rounds} replaced={} streams_moved={moved} drains: {}",
        windows.len(),
        format_spread(drains)
    ));
    bustle
        .finish("rolling", &windows, &deployment.addrs())
        .await;
    deployment
}

/// Stops a broker with SIGTERM and starts a new process at its address. Returns the duration of the
/// drain.
async fn replace(broker: &mut BrokerProcess, at: usize, balancers: [&Balancer; 2]) -> Duration {
    let [streams, _] = balancers;
    assert!(
        streams.open_connections(at) > 0,
        "no stream is on broker {at}"
    );
    let from = boottime();
    broker.terminate();
    assert_eq!(broker.wait_for_exit().await, Some(0), "in good order");
    let drained = boottime() - from;
    assert!(drained < DRAIN_TIMEOUT, "all have moved: {drained:?}");
    streams.wait_for_no_connections(at).await;
    let elsewhere: usize = (0..BROKERS).map(|at| streams.open_connections(at)).sum();
    assert!(
        elsewhere >= 2 * CLIENTS_PER_ROLE,
        "{elsewhere} streams are left"
    );
    broker.restart().await;
    for balancer in balancers {
        balancer.replace_broker(at, broker.admin());
        balancer.wait_until_ready(at).await;
    }
    drained
}

async fn start(binaries: [PathBuf; BROKERS]) -> Deployment {
    let redis = RedisServer::start().await;
    let options = binaries.map(|binary| BrokerOptions {
        binary: Some(binary),
        ..BrokerOptions::for_store(redis.url())
    });
    options[0].init_store().await;
    let mut brokers = Vec::new();
    for options in &options {
        brokers.push(BrokerProcess::start(options).await);
    }
    Deployment { brokers, redis }
}
