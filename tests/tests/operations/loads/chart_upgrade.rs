//! The chart is upgraded from one set of values to another and back, as Kubernetes would do it, with
//! the rendered pods as processes on a real Redis, under programs that hold leases, wait in lines and
//! call. Nothing is lost, nobody overlaps, and lines keep their order.

use std::{collections::VecDeque, net::Ipv4Addr, time::Duration};

use leasehold_tests::{
    balancer::Balancer,
    bustle::{Bustle, PROGRAMS},
    clock::boottime,
    faults::Window,
    pods::{Pod, Rendered, address},
    redis_server::RedisServer,
    scale::{count, figures},
    time_left::spread,
};
use serde_json::json;
use tokio::time::sleep;

const REPLICAS: usize = 3;
const ROUNDS: usize = 10;
/// About as long as a round takes.
const ROUND: Duration = Duration::from_secs(33);
const CALM: Duration = Duration::from_secs(2);

/// One place more than there are replicas, for the pod that comes before one leaves.
fn places() -> VecDeque<Ipv4Addr> {
    (1..=4).map(address).collect()
}

fn render(case: &str, redis: &RedisServer) -> Rendered {
    let set = [
        format!("store.url={}", redis.url()),
        format!("replicaCount={REPLICAS}"),
        // All clients of a test come from one address.
        "config.server.max_connections_per_address=20000".to_owned(),
    ];
    Rendered::from_values(case, &set)
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrading_costs_nobody_anything() {
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

    let all: Vec<_> = places().into_iter().map(Pod::place).collect();
    let balancers = [Balancer::before(&all).await, Balancer::before(&all).await];
    let [streams, calls] = &balancers;
    let mut free = places();
    let mut pods = VecDeque::new();
    while pods.len() < REPLICAS {
        pods.push_back(added(&values[0], &mut free, &balancers).await);
    }
    let rounds = count(ROUNDS, 1);
    let time = ROUND * u32::try_from(rounds).expect("few");
    let bustle = Bustle::start([streams, calls], time).await;

    let (mut windows, mut ends) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let rendered = &values[(round + 1) % 2];
        rendered.run_job("-check-config").await;
        for _ in 0..REPLICAS {
            sleep(CALM).await;
            let from = boottime();
            pods.push_back(added(rendered, &mut free, &balancers).await);
            let oldest = pods.pop_front().expect("there are some");
            let (ip, at) = (oldest.ip(), place_of(oldest.ip()));
            let on_it = streams.open(at);
            assert!(on_it > 0, "nobody is on {ip}");
            for balancer in &balancers {
                balancer.leaving(at);
            }
            let took = oldest.stop().await;
            streams.left(at).await;
            free.push_back(ip);
            ends.push(took);
            windows.push(Window {
                effect: format!("{ip} replaced: {on_it} streams moved, ended in {took:?}"),
                store_works: true,
                from,
                to: boottime(),
            });
            let elsewhere: usize = (0..all.len()).map(|at| streams.open(at)).sum();
            assert!(elsewhere >= 2 * PROGRAMS, "{elsewhere} streams are left");
        }
    }
    sleep(CALM).await;
    figures(&format!(
        "chart_upgrade: rounds={rounds} pods_replaced={} ends: {}",
        windows.len(),
        spread(ends)
    ));
    let addrs: Vec<_> = pods.iter().map(|pod| Pod::place(pod.ip()).0).collect();
    bustle.end("chart_upgrade", &windows, &addrs).await;
    for pod in pods {
        pod.stop().await;
    }
}

/// A pod at the next free place, which the balancers know from now on.
async fn added(
    rendered: &Rendered,
    free: &mut VecDeque<Ipv4Addr>,
    balancers: &[Balancer; 2],
) -> Pod {
    let ip = free
        .pop_front()
        .expect("no more than one beside the others");
    let pod = Pod::start(rendered, ip).await;
    for balancer in balancers {
        balancer.replaced(place_of(ip), Pod::place(ip).1);
        balancer.ready(place_of(ip)).await;
    }
    pod
}

fn place_of(ip: Ipv4Addr) -> usize {
    let at = places().into_iter().position(|place| place == ip);
    at.expect("one of ours")
}
