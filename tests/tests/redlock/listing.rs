//! ListLocks on a RedLock store: each lock is listed once, whichever quorum of servers is
//! available.

use std::time::Duration;

use leasehold_proto::v1::{ErrorReason, ListLocksRequest};
use leasehold_tests::{
    client::unary::{AcquireCall, Client, listing::names_on_pages},
    redis::rejecting_fixture::numbered_names,
    redlock::deployment::RedlockDeployment,
    status::error_reason,
    until::until,
};
use tonic::Code;

const TTL: Duration = Duration::from_secs(60);

fn list(page_size: i32) -> ListLocksRequest {
    ListLocksRequest {
        page_size,
        ..ListLocksRequest::default()
    }
}

async fn hold(client: &Client, names: &[String]) {
    for name in names {
        let call = AcquireCall::new(name, TTL, Duration::ZERO);
        client.acquire(&call).await.expect("it is free");
    }
}

async fn listed(client: &Client, size: i32) -> Vec<String> {
    let pages = client.pages(&list(size)).await;
    names_on_pages(&pages.expect("a quorum answers"))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_lock_is_listed_once_whichever_servers_are_there() {
    let mut store = RedlockDeployment::start(3).await;
    let options = store.options_with_ttl_max("60s");
    options.init_store().await;
    let broker = leasehold_tests::broker::process::BrokerProcess::start(&options).await;
    let client = Client::new("lister", &[broker.addr()], 0);
    let mut locks = numbered_names("early", 30);
    hold(&client, &locks).await;
    assert_eq!(listed(&client, 7).await, sorted(&locks));
    // Server 0 has no record of the late locks.
    store.kill(0).await;
    let late = numbered_names("late", 30);
    hold(&client, &late).await;
    locks.extend(late);
    assert_eq!(listed(&client, 7).await, sorted(&locks));
    store
        .restart(0, leasehold_tests::redis::server::RestartData::Kept)
        .await;
    until("it is back", async || {
        broker.log().contains("serves again").then_some(())
    })
    .await;
    for size in [1, 7, 1_000] {
        assert_eq!(
            listed(&client, size).await,
            sorted(&locks),
            "pages of {size}"
        );
    }
    store.kill(1).await;
    store.kill(2).await;
    let refused = client.page_at(0, &list(0)).await.expect_err("no quorum");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert_eq!(error_reason(&refused), Some(ErrorReason::StoreUnavailable));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_in_the_midst_hides_nothing() {
    let mut store = RedlockDeployment::start(3).await;
    let options = store.options_with_ttl_max("60s");
    options.init_store().await;
    let broker = leasehold_tests::broker::process::BrokerProcess::start(&options).await;
    let client = Client::new("lister", &[broker.addr()], 0);
    let locks = numbered_names("n", 30);
    hold(&client, &locks).await;
    store.kill(0).await;
    let first = until("the first is passed over", async || {
        client.page_at(0, &list(5)).await.ok()
    })
    .await;
    store
        .restart(0, leasehold_tests::redis::server::RestartData::Kept)
        .await;
    until("it is back", async || {
        broker.log().contains("serves again").then_some(())
    })
    .await;
    let mut pages = vec![first];
    while let Some(page) = pages.last().filter(|page| !page.next_page_token.is_empty()) {
        let next = ListLocksRequest {
            page_token: page.next_page_token.clone(),
            ..list(5)
        };
        pages.push(client.page_at(0, &next).await.expect("a page"));
    }
    assert_eq!(names_on_pages(&pages), sorted(&locks));
}

fn sorted(names: &[String]) -> Vec<String> {
    let mut names = names.to_vec();
    names.sort_unstable();
    names
}
