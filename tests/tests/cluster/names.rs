//! What the servers of a cluster are called: by names, by names that come and go, or not at all.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    client::{AcquireCall, Client},
    clock::boottime,
    cluster_course::runs_its_course,
    cluster_site::{ClusterSite, SHARDS, TTL, locks_in, quick, shard, slot_of_lock},
    cluster_work::{Answer, Lock, Work},
    redis_connection::Reply,
    scale::figures,
    until::until,
};
use tokio::time::sleep;

const BROKERS: usize = 2;
const CALLERS: usize = 4;
const HOT: usize = 3;
/// The broker reads the map once a second, from each master in its turn.
const SEEN_WITHIN: Duration = Duration::from_secs(3);
const FAILED_ONE_IN: usize = 100;
/// How the servers are called, one way after the other.
const WAYS: [&str; 3] = ["hostname", "ip", "unknown-endpoint"];

/// A cluster in which nobody is called by its address.
async fn called(options: &[&str]) -> ClusterSite {
    let mut cluster = quick();
    cluster.options = options.iter().map(|&word| word.to_owned()).collect();
    ClusterSite::unprepared(cluster).await
}

/// The first masters, by this name.
fn url(site: &ClusterSite, host: &str) -> String {
    let ports = (0..SHARDS).map(|index| site.cluster.addr(index).port());
    let addrs: Vec<_> = ports.map(|port| format!("{host}:{port}")).collect();
    format!("redis-cluster://{}", addrs.join(","))
}

/// A server that the first one does not name, or names so.
async fn redirection(site: &ClusterSite) -> String {
    let mut raw = site.cluster.connect(0).await;
    let name = locks_in(&shard(1), "elsewhere", 1).remove(0);
    raw.refused(&["GET", &format!("lh:{{default:{name}}}")])
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_without_a_name_are_where_the_one_is_that_was_asked() {
    let mut site = called(&["--cluster-preferred-endpoint-type", "unknown-endpoint"]).await;
    let port = site.cluster.addr(1).port();
    let moved = redirection(&site).await;
    assert!(moved.ends_with(&format!(" :{port}")), "{moved}");
    let mut raw = site.cluster.connect(0).await;
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

    site.options.store = url(&site, "localhost");
    site.options.init_store().await;
    site.add_brokers(BROKERS).await;
    runs_its_course(&mut site, "cluster_names unknown endpoint").await;
    let log = site.brokers[0].log();
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
    let mut site = called(&["--cluster-announce-hostname", "localhost"]).await;
    site.options.init_store().await;
    site.add_brokers(BROKERS).await;
    let locks = (0..SHARDS).flat_map(|group| {
        let names = locks_in(&shard(group), "renamed", HOT).into_iter();
        names.map(move |name| Lock { name, group })
    });
    let work = Work::new(locks.collect(), &site.addrs());
    let each: Vec<Vec<usize>> = (0..SHARDS)
        .map(|group| (group * HOT..(group + 1) * HOT).collect())
        .collect();
    let callers = each.iter().flat_map(|locks| {
        let work = &work;
        (0..CALLERS).map(move |index| work.call(&locks[..HOT - 1], index))
    });
    let kept = each.iter().map(|locks| locks[HOT - 1]);
    let kept = kept.map(|lock| work.keep(lock, lock, &work.stop));
    let renames = async {
        for way in WAYS {
            for index in 0..site.cluster.count() {
                let mut raw = site.cluster.connect(index).await;
                let option = ["CONFIG", "SET", "cluster-preferred-endpoint-type", way];
                raw.must(&option).await;
                // Servers are of two minds for a while.
                sleep(SEEN_WITHIN / 10).await;
            }
            sleep(SEEN_WITHIN / 2).await;
        }
        work.stop.cancel();
    };
    let (_, kept, ()) = tokio::join!(join_all(callers), join_all(kept), renames);
    let tally = work.tally(|_| true);
    figures(&format!(
        "cluster_names renamed {} times: {tally}",
        WAYS.len()
    ));
    for stay in &kept {
        assert!(stay.lost.is_none(), "{stay:?}");
    }
    // Nothing waits out a quarantine, and hardly a call comes while a node is opened by a new name.
    assert!(tally.failed() * FAILED_ONE_IN <= tally.done(), "{tally}");
    let recovering = Answer::Refused(ErrorReason::StoreRecovering);
    assert_eq!(tally.count(|_, answer| answer == recovering), 0, "{tally}");
    let by_name = format!("localhost:{}", site.cluster.addr(0).port());
    for broker in &site.brokers {
        until("it has called them by their names", async || {
            broker.log().contains(&by_name).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_should_have_names_and_have_none_are_known_by_their_addresses() {
    let mut cluster = quick();
    cluster.apart = true;
    let by_name = ["--cluster-preferred-endpoint-type", "hostname"];
    cluster.options = by_name.map(str::to_owned).to_vec();
    let mut site = ClusterSite::unprepared(cluster).await;
    let port = site.cluster.addr(1).port();
    let moved = redirection(&site).await;
    assert!(moved.ends_with(&format!(" ?:{port}")), "{moved}");
    // The first server alone is at this address.
    let first = site.cluster.addr(0).port();
    site.options.store = format!("redis-cluster://127.0.3.1:{first}");
    site.options.init_store().await;
    site.add_brokers(1).await;
    let client = Client::new("caller", &site.addrs(), 0);
    for name in (0..SHARDS).flat_map(|index| locks_in(&shard(index), "nameless", HOT)) {
        let call = AcquireCall::new(&name, TTL, Duration::ZERO);
        client.acquire_at(0, &call).await.expect("it is free");
    }

    let name = locks_in(&shard(1), "moves", 1).remove(0);
    let call = AcquireCall::new(&name, TTL, Duration::ZERO);
    let mut held = client.acquire_at(0, &call).await.expect("it is free");
    let mut migration = site.cluster.begin_migration(slot_of_lock(&name), 2).await;
    migration.move_all().await;
    migration.finish().await;
    let known = boottime();
    client.renew(&mut held).await.expect("it is followed");
    let followed = boottime() - known;
    figures(&format!(
        "cluster_names without names: a slot that moved is followed within {} ms",
        followed.as_millis()
    ));
    assert!(followed <= SEEN_WITHIN, "{followed:?}");
}
