//! Upgrade of the chart from one set of values to another and back, as Kubernetes does it. The
//! rendered pods run as processes on a real Redis, under programs that hold leases, wait in queues
//! and send calls. No lease is lost, no two clients hold a lock together, and queues keep their
//! order.

use std::{collections::VecDeque, net::Ipv4Addr, time::Duration};

use leasehold_tests::{
    broker::pods::{Pod, RenderedChart, pod_address},
    clock::boottime,
    load::{
        background_load::{BackgroundLoad, CLIENTS_PER_ROLE},
        faults::FaultWindow,
        store_expiry::format_spread,
    },
    net::balancer::Balancer,
    redis::server::RedisServer,
    scale::{print_figures, scaled_count},
};
use serde_json::json;
use tokio::time::sleep;

const REPLICAS: usize = 3;
const ROUNDS: usize = 10;
/// Approximate duration of a round.
const ROUND: Duration = Duration::from_secs(33);
const ROUND_DURATION: Duration = Duration::from_secs(2);

/// Returns one address more than there are replicas, for the pod that starts before another pod
/// stops.
fn places() -> VecDeque<Ipv4Addr> {
    (1..=4).map(pod_address).collect()
}

fn render(case: &str, redis: &RedisServer) -> RenderedChart {
    let set = [
        format!("store.url={}", redis.url()),
        format!("replicaCount={REPLICAS}"),
        // All clients of a test connect from one address.
        "config.server.max_connections_per_address=20000".to_owned(),
    ];
    RenderedChart::from_values(case, &set)
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_of_the_chart_lose_no_lease_and_no_order() {
    let redis = RedisServer::start().await;
    let values = [render("default", &redis), render("upgrade", &redis)];
    let strategy = json!({
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    });
    for rendered in &values {
        assert_eq!(rendered.deployment()["strategy"], strategy);
        assert_eq!(rendered.deployment()["replicas"], REPLICAS);
    }
    let [before, after] = values.each_ref().map(|rendered| {
        let metadata = &rendered.deployment()["template"]["metadata"];
        metadata["annotations"]["checksum/config"].clone()
    });
    assert_ne!(before, after, "pods are replaced");
    values[0].run_job("-check-config").await;
    values[0].run_job("-init-store").await;

    let all: Vec<_> = places().into_iter().map(Pod::addresses).collect();
    let balancers = [
        Balancer::for_addresses(&all).await,
        Balancer::for_addresses(&all).await,
    ];
    let [streams, calls] = &balancers;
    let mut free = places();
    let mut pods = VecDeque::new();
    while pods.len() < REPLICAS {
        pods.push_back(added(&values[0], &mut free, &balancers).await);
    }
    let rounds = scaled_count(ROUNDS, 1);
    let time = ROUND * u32::try_from(rounds).expect("few");
    let bustle = BackgroundLoad::start([streams, calls], time).await;

    let (mut windows, mut ends) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let rendered = &values[(round + 1) % 2];
        rendered.run_job("-check-config").await;
        for _ in 0..REPLICAS {
            sleep(ROUND_DURATION).await;
            let started_at = boottime();
            pods.push_back(added(rendered, &mut free, &balancers).await);
            let oldest = pods.pop_front().expect("there are some");
            let (ip, at) = (oldest.ip(), place_of(oldest.ip()));
            let on_it = streams.open_connections(at);
            assert!(on_it > 0, "no stream is on {ip}");
            for balancer in &balancers {
                balancer.stop_new_connections(at);
            }
            let took = oldest.stop().await;
            streams.wait_for_no_connections(at).await;
            free.push_back(ip);
            ends.push(took);
            windows.push(FaultWindow {
                effect: format!("{ip} replaced: {on_it} streams moved, ended in {took:?}"),
                is_store_available: true,
                fault: None,
                started_at,
                ended_at: boottime(),
            });
            let elsewhere: usize = (0..all.len()).map(|at| streams.open_connections(at)).sum();
            assert!(
                elsewhere >= 2 * CLIENTS_PER_ROLE,
                "{elsewhere} streams are left"
            );
        }
    }
    sleep(ROUND_DURATION).await;
    print_figures(&format!(
        "chart_upgrade: rounds={rounds} pods_replaced={} ends: {}",
        windows.len(),
        format_spread(ends)
    ));
    let addrs: Vec<_> = pods.iter().map(|pod| Pod::addresses(pod.ip()).0).collect();
    bustle.finish("chart_upgrade", &windows, &addrs).await;
    for pod in pods {
        pod.stop().await;
    }
}

/// Starts a pod at the next free address and registers it with the balancers.
async fn added(
    rendered: &RenderedChart,
    free: &mut VecDeque<Ipv4Addr>,
    balancers: &[Balancer; 2],
) -> Pod {
    let ip = free
        .pop_front()
        .expect("no more than one beside the others");
    let pod = Pod::start(rendered, ip).await;
    for balancer in balancers {
        balancer.replace_broker(place_of(ip), Pod::addresses(ip).1);
        balancer.wait_until_ready(place_of(ip)).await;
    }
    pod
}

fn place_of(ip: Ipv4Addr) -> usize {
    let at = places().into_iter().position(|place| place == ip);
    at.expect("one of ours")
}
