//! ListLocks on a cluster: locks of all masters, and the error if a master does not respond.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::{ErrorReason, ListLocksRequest};
use leasehold_tests::{
    client::unary::{AcquireCall, Client, HeldLease, listing::names_on_pages},
    cluster::{
        deployment::ClusterOptions,
        fixture::{
            ClusterFixture, SHARDS, TTL, fast_failover_options, initial_slots_of, lock_names_in,
        },
    },
    status::error_reason,
};
use tonic::Code;

const EACH: usize = 40;

fn list(page_size: i32) -> ListLocksRequest {
    ListLocksRequest {
        page_size,
        ..ListLocksRequest::default()
    }
}

/// Returns names of locks on each master, sorted.
fn locks() -> Vec<String> {
    let of_one = |master| lock_names_in(&initial_slots_of(master), &format!("m{master}"), EACH);
    let mut locks: Vec<_> = (0..SHARDS).flat_map(of_one).collect();
    locks.sort_unstable();
    locks
}

/// Acquires all locks with this TTL.
async fn hold(client: &Client, locks: &[String], ttl: Duration) -> Vec<HeldLease> {
    let calls: Vec<_> = locks
        .iter()
        .map(|lock| AcquireCall::new(lock, ttl, Duration::ZERO))
        .collect();
    let all = join_all(calls.iter().map(|call| client.acquire_at(0, call))).await;
    all.into_iter().map(|held| held.expect("free")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_locks_of_all_masters_are_listed_once() {
    let ttl = Duration::from_secs(60);
    let fixture = ClusterFixture::with_ttl_max(ttl, 2).await;
    let client = Client::new("lister", &fixture.addrs(), 0);
    let locks = locks();
    for size in [1_000, 7] {
        let all = hold(&client, &locks, ttl).await;
        let pages = client.pages(&list(size)).await.expect("pages");
        assert_eq!(names_on_pages(&pages), locks, "pages of {size}");
        for held in &all {
            client.release_at(0, held).await.expect("it is held");
        }
        let pages = client.pages(&list(0)).await.expect("pages");
        assert!(
            names_on_pages(&pages).is_empty(),
            "{:?}",
            names_on_pages(&pages)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_does_not_answer_is_named() {
    let options = ClusterOptions {
        replicas: 0,
        ..fast_failover_options()
    };
    let mut fixture = ClusterFixture::start(options, 1).await;
    let client = Client::new("lister", &fixture.addrs(), 0);
    hold(&client, &locks(), TTL).await;
    let first = client.page_at(0, &list(1)).await.expect("the first master");
    fixture.cluster.kill(1).await;
    let refused = client
        .pages(&list(1_000))
        .await
        .expect_err("one is missing");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert_eq!(error_reason(&refused), Some(ErrorReason::StoreUnavailable));
    let named = format!("Redis at {} does not answer", fixture.cluster.addr(1));
    assert!(refused.message().contains(&named), "{}", refused.message());
    // The next page of the first master is still available.
    let next = ListLocksRequest {
        page_token: first.next_page_token,
        ..list(1)
    };
    let page = client.page_at(0, &next).await.expect("the first master");
    assert_eq!(page.locks.len(), 1);
}
