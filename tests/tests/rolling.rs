//! A rolling restart behind one address: three brokers are replaced one after the other, round after
//! round, under programs that hold leases, wait in lines and call. Nothing is lost, nobody overlaps,
//! and lines keep their order.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use leasehold::Client;
use leasehold_tests::{
    balancer::Balancer,
    binary::{built, leasehold_server},
    broker_process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    clock::boottime,
    deployment::Deployment,
    fault_report::{locks_are_free, report},
    faults::Window,
    load::{Kind, Load},
    redis_server::RedisServer,
    scale::{count, figures},
    sdk_guards::Guards,
    sdk_line::{self, Served, serve_all},
    sdk_site::connect,
    time_left::spread,
    witness::Witness,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const TTL: Duration = Duration::from_secs(10);
/// How much earlier than its validity ends a client gives a lock up.
const MARGIN: Duration = Duration::from_secs(1);
/// After that long a broker cuts who has not moved.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Programs that hold, and programs that wait.
const PROGRAMS: usize = 10;
const GUARDS_EACH: usize = 100;
const LINES: usize = 10;
const IN_LINE: usize = 20;
/// Callers, and the locks for which they contend.
const CALLERS: usize = 64;
const LOCKS: usize = 10;
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
    let (holding, waiting) = (programs("holding", &streams), programs("waiting", &streams));
    let (holding, waiting) = tokio::join!(holding, waiting);
    let (holding, waiting): (Vec<_>, Vec<_>) = (holding.iter().collect(), waiting.iter().collect());
    let guards = Guards::take(&holding, GUARDS_EACH, TTL).await;
    let (lines, _) = sdk_line::start_all(&holding, &waiting, (LINES, IN_LINE), TTL).await;
    let witness = Arc::new(Witness::new(LOCKS));
    let load = Load::start(CALLERS, &[calls.addr()], &witness, |_| Kind::Exclusive);
    let stop = CancellationToken::new();
    let least = guards.watch_remaining(&stop);
    let rounds = count(ROUNDS, 1);
    let begun = boottime();
    let time = ROUND * u32::try_from(rounds).expect("few");
    let served = serve_all(lines, time / u32::try_from(IN_LINE + 1).expect("few"));

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
    let ended = boottime();
    let calls = load.stop().await;
    let served = join_all(served).await.into_iter();
    let served: Vec<Served> = served.map(|line| line.expect("no panic")).collect();
    stop.cancel();
    let least = least.await.expect("no panic");
    let (lost, changed) = guards.lost_or_changed(&deployment.addrs()).await;

    let longest = (TTL - MARGIN).saturating_sub(least);
    figures(&format!(
        "rolling: rounds={rounds} replaced={} streams_moved={moved} leases={} lost={lost} \
         changed={changed} longest_without_ack={}ms of {}ms drains: {}",
        windows.len(),
        guards.all().count(),
        longest.as_millis(),
        (TTL - MARGIN).as_millis(),
        spread(drains)
    ));
    assert_eq!((lost, changed), (0, 0), "leases lost, leases changed");
    assert_eq!(guards.all().count(), PROGRAMS * GUARDS_EACH);
    assert!(longest < TTL - MARGIN, "{longest:?}");
    sdk_line::report("rolling", &served, IN_LINE, |at| {
        windows.iter().any(|window| window.contains(at))
    });
    let setting = format!("rolling: callers={CALLERS} locks={LOCKS}");
    report(
        &setting,
        &witness.verdict(),
        &windows,
        &calls,
        (begun, ended),
    );
    locks_are_free(&deployment, LOCKS).await;
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
        balancer.replaced(at, broker);
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

/// Clients that know the balancer and nothing else.
async fn programs(name: &str, balancer: &Balancer) -> Vec<Client> {
    let started = (0..PROGRAMS)
        .map(|index| async move { connect(&format!("{name}-{index}"), &[balancer.addr()]).await });
    join_all(started).await
}
