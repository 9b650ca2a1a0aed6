//! Endpoint names of cluster servers: host names, changing names, or no names.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    client::unary::{AcquireCall, Client},
    clock::boottime,
    cluster::{
        fixture::{
            ClusterFixture, SHARDS, TTL, fast_failover_options, initial_slots_of, lock_names_in,
            slot_of_lock,
        },
        scenario::run_scenario,
        workload::{CallResult, Lock, Workload},
    },
    redis::connection::Reply,
    scale::print_figures,
    until::until,
};
use tokio::time::sleep;

const BROKERS: usize = 2;
const CALLERS: usize = 4;
const HOT: usize = 3;
/// Upper bound of the time until a change of the slot map takes effect. The broker reads it once a
/// second, from each master in turn.
const SEEN_WITHIN: Duration = Duration::from_secs(3);
const FAILED_ONE_IN: usize = 100;
/// Endpoint types, which are set one after the other.
const ENDPOINT_TYPES: [&str; 3] = ["hostname", "ip", "unknown-endpoint"];

/// Starts a cluster with these options for endpoint names.
async fn called(options: &[&str]) -> ClusterFixture {
    let mut cluster = fast_failover_options();
    cluster.server_options = options.iter().map(|&word| word.to_owned()).collect();
    ClusterFixture::uninitialized(cluster).await
}

/// Returns a URL with this host name and the ports of the first masters.
fn url(fixture: &ClusterFixture, host: &str) -> String {
    let ports = (0..SHARDS).map(|index| fixture.cluster.addr(index).port());
    let addrs: Vec<_> = ports.map(|port| format!("{host}:{port}")).collect();
    format!("redis-cluster://{}", addrs.join(","))
}

/// Returns the redirect of the first server to another server, with or without its name.
async fn redirection(fixture: &ClusterFixture) -> String {
    let mut raw = fixture.cluster.connect(0).await;
    let name = lock_names_in(&initial_slots_of(1), "elsewhere", 1).remove(0);
    raw.expect_error(&["GET", &format!("lh:{{default:{name}}}")])
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_without_a_name_have_the_address_of_the_queried_server() {
    let mut fixture = called(&["--cluster-preferred-endpoint-type", "unknown-endpoint"]).await;
    let port = fixture.cluster.addr(1).port();
    let moved = redirection(&fixture).await;
    assert!(moved.ends_with(&format!(" :{port}")), "{moved}");
    let mut raw = fixture.cluster.connect(0).await;
    let slots = raw.must(&["CLUSTER", "SLOTS"]).await;
    let hosts = slots
        .array()
        .iter()
        .map(|range| &range.array()[2].array()[0]);
    assert!(
        hosts
            .clone()
            .all(|host| *host == Reply::Text(String::new()))
    );

    fixture.options.store = url(&fixture, "localhost");
    fixture.options.init_store().await;
    fixture.add_brokers(BROKERS).await;
    run_scenario(&mut fixture, "cluster_names unknown endpoint").await;
    let log = fixture.brokers[0].log();
    let successors = log
        .lines()
        .filter(|line| line.contains("the masters of the cluster"));
    let successors: Vec<_> = successors.collect();
    assert!(!successors.is_empty(), "{log}");
    assert!(
        successors.iter().all(|line| !line.contains("127.0.0.1")),
        "{successors:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_change_their_names_are_known_again() {
    let mut fixture = called(&["--cluster-announce-hostname", "localhost"]).await;
    fixture.options.init_store().await;
    fixture.add_brokers(BROKERS).await;
    let locks = (0..SHARDS).flat_map(|group| {
        let names = lock_names_in(&initial_slots_of(group), "renamed", HOT).into_iter();
        names.map(move |name| Lock { name, group })
    });
    let work = Workload::new(locks.collect(), &fixture.addrs());
    let each: Vec<Vec<usize>> = (0..SHARDS)
        .map(|group| (group * HOT..(group + 1) * HOT).collect())
        .collect();
    let callers = each.iter().flat_map(|locks| {
        let work = &work;
        (0..CALLERS).map(move |index| work.run_caller(&locks[..HOT - 1], index))
    });
    let kept = each.iter().map(|locks| locks[HOT - 1]);
    let kept = kept.map(|lock| work.hold_unary(lock, lock, &work.stop));
    let renames = async {
        for way in ENDPOINT_TYPES {
            for index in 0..fixture.cluster.count() {
                let mut raw = fixture.cluster.connect(index).await;
                let option = ["CONFIG", "SET", "cluster-preferred-endpoint-type", way];
                raw.must(&option).await;
                // Servers announce different names for a while.
                sleep(SEEN_WITHIN / 10).await;
            }
            sleep(SEEN_WITHIN / 2).await;
        }
        work.stop.cancel();
    };
    let (_, kept, ()) = tokio::join!(join_all(callers), join_all(kept), renames);
    let counts = work.count_attempts(|_| true);
    print_figures(&format!(
        "cluster_names renamed {} times: {counts}",
        ENDPOINT_TYPES.len()
    ));
    for hold in &kept {
        assert!(hold.lost.is_none(), "{hold:?}");
    }
    // No call waits for a quarantine, and very few calls fail while a node is opened under a new
    // name.
    assert!(
        counts.failed() * FAILED_ONE_IN <= counts.succeeded(),
        "{counts}"
    );
    let recovering = CallResult::Rejected(ErrorReason::StoreRecovering);
    assert_eq!(
        counts.count(|_, answer| answer == recovering),
        0,
        "{counts}"
    );
    let by_name = format!("localhost:{}", fixture.cluster.addr(0).port());
    for broker in &fixture.brokers {
        until("it has called them by their names", async || {
            broker.log().contains(&by_name).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_should_have_names_and_have_none_are_known_by_their_addresses() {
    let mut cluster = fast_failover_options();
    cluster.has_separate_addresses = true;
    let by_name = ["--cluster-preferred-endpoint-type", "hostname"];
    cluster.server_options = by_name.map(str::to_owned).to_vec();
    let mut fixture = ClusterFixture::uninitialized(cluster).await;
    let port = fixture.cluster.addr(1).port();
    let moved = redirection(&fixture).await;
    assert!(moved.ends_with(&format!(" ?:{port}")), "{moved}");
    // Only the first server is reachable at this address.
    let first = fixture.cluster.addr(0).port();
    fixture.options.store = format!("redis-cluster://127.0.3.1:{first}");
    fixture.options.init_store().await;
    fixture.add_brokers(1).await;
    let client = Client::new("caller", &fixture.addrs(), 0);
    for name in
        (0..SHARDS).flat_map(|index| lock_names_in(&initial_slots_of(index), "nameless", HOT))
    {
        let call = AcquireCall::new(&name, TTL, Duration::ZERO);
        client.acquire_at(0, &call).await.expect("it is free");
    }

    let name = lock_names_in(&initial_slots_of(1), "moves", 1).remove(0);
    let call = AcquireCall::new(&name, TTL, Duration::ZERO);
    let mut held = client.acquire_at(0, &call).await.expect("it is free");
    let mut migration = fixture
        .cluster
        .start_migration(slot_of_lock(&name), 2)
        .await;
    migration.move_remaining_keys().await;
    migration.finish().await;
    let known = boottime();
    client.renew(&mut held).await.expect("it is followed");
    let followed = boottime() - known;
    print_figures(&format!(
        "cluster_names without names: a slot that moved is followed within {} ms",
        followed.as_millis()
    ));
    assert!(followed <= SEEN_WITHIN, "{followed:?}");
}
