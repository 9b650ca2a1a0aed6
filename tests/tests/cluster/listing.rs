//! ListLocks on a cluster: the locks of all masters, and what is told when one does not answer.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::{ErrorReason, ListLocksRequest};
use leasehold_tests::{
    client::{AcquireCall, Client, Held, listing::names_on},
    cluster::ClusterOptions,
    cluster_site::{ClusterSite, SHARDS, TTL, locks_in, quick, shard},
    status::reason,
};
use tonic::Code;

const EACH: usize = 40;

fn list(page_size: i32) -> ListLocksRequest {
    ListLocksRequest {
        page_size,
        ..ListLocksRequest::default()
    }
}

/// Some locks of each master, in order.
fn locks() -> Vec<String> {
    let of_one = |master| locks_in(&shard(master), &format!("m{master}"), EACH);
    let mut locks: Vec<_> = (0..SHARDS).flat_map(of_one).collect();
    locks.sort_unstable();
    locks
}

/// Acquires all locks for as long as `ttl`.
async fn hold(client: &Client, locks: &[String], ttl: Duration) -> Vec<Held> {
    let calls: Vec<_> = locks
        .iter()
        .map(|lock| AcquireCall::new(lock, ttl, Duration::ZERO))
        .collect();
    let all = join_all(calls.iter().map(|call| client.acquire_at(0, call))).await;
    all.into_iter().map(|held| held.expect("free")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_locks_of_all_masters_are_listed_once() {
    let mut site = ClusterSite::unprepared(ClusterOptions::default()).await;
    let longer = ("LEASEHOLD__LIMITS__TTL_MAX", "60s");
    site.options
        .env
        .push((longer.0.to_owned(), longer.1.to_owned()));
    site.options.init_store().await;
    site.add_brokers(2).await;
    let client = Client::new("lister", &site.addrs(), 0);
    let locks = locks();
    for size in [1_000, 7] {
        let all = hold(&client, &locks, Duration::from_secs(60)).await;
        let pages = client.pages(&list(size)).await.expect("pages");
        assert_eq!(names_on(&pages), locks, "pages of {size}");
        for held in &all {
            client.release_at(0, held).await.expect("it is held");
        }
        let pages = client.pages(&list(0)).await.expect("pages");
        assert!(names_on(&pages).is_empty(), "{:?}", names_on(&pages));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_does_not_answer_is_named() {
    let options = ClusterOptions {
        replicas: 0,
        ..quick()
    };
    let mut site = ClusterSite::start(options, 1).await;
    let client = Client::new("lister", &site.addrs(), 0);
    hold(&client, &locks(), TTL).await;
    let first = client.page_at(0, &list(1)).await.expect("the first master");
    site.cluster.kill(1).await;
    let refused = client
        .pages(&list(1_000))
        .await
        .expect_err("one is missing");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert_eq!(reason(&refused), Some(ErrorReason::StoreUnavailable));
    let named = format!("Redis at {} does not answer", site.cluster.addr(1));
    assert!(refused.message().contains(&named), "{}", refused.message());
    // The list of the first master goes on all the same.
    let next = ListLocksRequest {
        page_token: first.next_page_token,
        ..list(1)
    };
    let page = client.page_at(0, &next).await.expect("the first master");
    assert_eq!(page.locks.len(), 1);
}
