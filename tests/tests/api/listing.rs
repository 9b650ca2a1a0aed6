//! ListLocks over a real socket: pages, page tokens, filters and rejections.

use std::{collections::BTreeSet, time::Duration};

use futures::stream::{StreamExt as _, iter};
use leasehold_proto::v1::{
    AcquireRequest, ErrorReason, ListLocksRequest, LockMode, LockTarget, Owner,
    lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    broker::{
        in_process::InProcessBroker,
        process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    },
    client::unary::{AcquireCall, Client, HeldLease, listing::names_on_pages},
    redis::{
        rejecting_fixture::{RejectingRedisFixture, numbered_names},
        server::RedisServer,
    },
    status::error_reason,
};
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

const TTL: Duration = Duration::from_secs(60);
const AT_ONCE: usize = 16;
const MAX_REPLY: usize = 256 * 1_024;

/// Acquires these locks.
async fn hold(client: &Client, names: &[String]) -> Vec<HeldLease> {
    let acquire = |name| {
        let call = AcquireCall::new(name, TTL, Duration::ZERO);
        async move { client.acquire_at(0, &call).await.expect("it is free") }
    };
    let held = iter(names).map(|name| acquire(name.as_str()));
    held.buffered(AT_ONCE).collect().await
}

fn sorted(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let names: BTreeSet<_> = names.into_iter().collect();
    names.into_iter().collect()
}

fn list(page_size: i32) -> ListLocksRequest {
    ListLocksRequest {
        page_size,
        ..ListLocksRequest::default()
    }
}

/// Returns the fields that a rejection names, and the description of the first one.
fn refused<T: std::fmt::Debug>(answer: Result<T, Status>) -> (Vec<String>, String) {
    let status = answer.expect_err("it is refused");
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert_eq!(error_reason(&status), Some(ErrorReason::InvalidField));
    let details = status.get_error_details();
    let fields = &details.bad_request().expect("fields").field_violations;
    let named = fields.iter().map(|field| field.field.clone()).collect();
    (named, fields[0].description.clone())
}

fn is_refused_token<T: std::fmt::Debug>(answer: Result<T, Status>) {
    let (fields, reason) = refused(answer);
    assert_eq!(fields, ["page_token"]);
    assert!(
        reason.contains("start again with the first page"),
        "{reason}"
    );
}

/// Starts a broker on a separate Redis.
async fn start_on_redis(env: &[(&str, &str)]) -> RejectingRedisFixture {
    RejectingRedisFixture::start_with(RedisServer::start().await, env).await
}

async fn is_paged(client: &Client) {
    let held = hold(client, &numbered_names("n", 60)).await;
    let waiting = AcquireCall::new("n-7", TTL, TTL);
    let _waits = client.start_acquire_at(0, &waiting);
    client.wait_for_queue_length_at(0, "n-7", 1).await;
    for size in [1, 7, 1_000] {
        let pages = client.pages(&list(size)).await.expect("pages");
        let longest_page = pages.iter().map(|page| page.locks.len()).max();
        assert!(
            longest_page <= usize::try_from(size).ok(),
            "{longest_page:?} of {size}"
        );
        assert_eq!(
            names_on_pages(&pages),
            sorted(numbered_names("n", 60)),
            "pages of {size}"
        );
        let shown = pages.iter().flat_map(|page| &page.locks);
        let lines: i32 = shown.map(|lock| lock.queue_length).sum();
        assert_eq!(lines, 1);
    }
    let token = held[0].token();
    let request = ListLocksRequest {
        name_prefix: "n-0".to_owned(),
        ..ListLocksRequest::default()
    };
    let page = client.page_at(0, &request).await.expect("a page");
    assert_eq!(page.locks[0].last_fencing_token, token);
    let seen = client.get_lock_at(0, "n-0").await.expect("it is held");
    assert_eq!(page.locks[0].holders[0].owner, seen.holders[0].owner);
}

#[tokio::test]
async fn a_list_is_paged_to_its_end_with_any_size_of_pages() {
    let broker = InProcessBroker::start().await;
    is_paged(&Client::new("lister", &[broker.api], 0)).await;
    broker.stop().await;
}

#[tokio::test]
async fn a_list_is_paged_to_its_end_on_redis() {
    let fixture = start_on_redis(&[]).await;
    is_paged(&fixture.client).await;
}

#[tokio::test]
async fn the_size_of_a_page_is_a_hundred_and_a_thousand_at_most() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("lister", &[broker.api], 0);
    hold(&client, &numbered_names("n", 1_020)).await;
    for (size, full) in [(0, 100), (1_000, 1_000), (i32::MAX, 1_000)] {
        let page = client.page_at(0, &list(size)).await.expect("a page");
        assert_eq!(page.locks.len(), full, "{size}");
        assert_ne!(page.next_page_token, "");
    }
    broker.stop().await;
}

#[tokio::test]
async fn each_illegal_field_of_a_list_is_named() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("lister", &[broker.api], 0);
    let wrong = ListLocksRequest {
        namespace: "Upper".to_owned(),
        name_prefix: "x".repeat(513),
        owner_id: "x".repeat(257),
        page_size: -1,
        page_token: String::new(),
    };
    let (fields, _) = refused(client.page_at(0, &wrong).await);
    assert_eq!(
        fields,
        ["namespace", "name_prefix", "owner_id", "page_size"]
    );
    let control = ListLocksRequest {
        name_prefix: "a\n".to_owned(),
        ..ListLocksRequest::default()
    };
    let (fields, _) = refused(client.page_at(0, &control).await);
    assert_eq!(fields, ["name_prefix"]);
    broker.stop().await;
}

/// Asserts that a page token works only with the filters of its list, and only unchanged.
async fn tokens_are_checked(client: &Client) {
    hold(client, &numbered_names("n", 5)).await;
    let first = ListLocksRequest {
        namespace: "default".to_owned(),
        name_prefix: "n".to_owned(),
        owner_id: "caller".to_owned(),
        ..list(2)
    };
    let page = client.page_at(0, &first).await.expect("a page");
    assert_eq!(page.locks.len(), 2);
    let token = page.next_page_token;
    let url_safe = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    assert!(token.chars().all(url_safe), "{token}");
    let next = ListLocksRequest {
        page_token: token.clone(),
        ..first
    };
    let page_of = |request: ListLocksRequest| async move { client.page_at(0, &request).await };
    let other_size = ListLocksRequest {
        page_size: 1,
        ..next.clone()
    };
    assert_eq!(page_of(other_size).await.expect("a page").locks.len(), 1);
    for change in [
        |request: &mut ListLocksRequest| request.namespace = String::new(),
        |request: &mut ListLocksRequest| request.name_prefix = "n-".to_owned(),
        |request: &mut ListLocksRequest| request.owner_id = String::new(),
    ] {
        let mut changed = next.clone();
        change(&mut changed);
        is_refused_token(page_of(changed).await);
    }
    let with_token = |page_token: String| ListLocksRequest {
        page_token,
        ..next.clone()
    };
    for at in 0..token.len() {
        let other = if &token[at..=at] == "a" { "b" } else { "a" };
        let tampered = format!("{}{other}{}", &token[..at], &token[at + 1..]);
        is_refused_token(page_of(with_token(tampered)).await);
        if at > 0 {
            is_refused_token(page_of(with_token(token[..at].to_owned())).await);
        }
    }
    for odd in ["x", "ä".repeat(20).as_str(), &format!("{token}a"), " "] {
        is_refused_token(page_of(with_token(odd.to_owned())).await);
    }
    assert_eq!(page_of(next).await.expect("a page").locks.len(), 2);
}

#[tokio::test]
async fn a_page_token_works_only_unchanged() {
    let broker = InProcessBroker::start().await;
    tokens_are_checked(&Client::new("caller", &[broker.api], 0)).await;
    broker.stop().await;
}

#[tokio::test]
async fn a_page_token_of_redis_works_only_unchanged() {
    tokens_are_checked(&start_on_redis(&[]).await.client).await;
}

#[tokio::test]
async fn a_page_token_works_at_any_broker_until_the_server_is_replaced() {
    let mut redis = RedisServer::start_with(&["--appendonly", "yes"]).await;
    let options = BrokerOptions::for_store(redis.url());
    options.init_store().await;
    let brokers = BrokerProcess::start_many(&options, 3).await;
    let addrs: Vec<_> = brokers.iter().map(BrokerProcess::addr).collect();
    let client = Client::new("lister", &addrs, 0);
    hold(&client, &numbered_names("n", 40)).await;
    let pages = client.pages(&list(3)).await.expect("pages");
    assert_eq!(names_on_pages(&pages), sorted(numbered_names("n", 40)));
    let memory = InProcessBroker::start().await;
    let elsewhere = Client::new("lister", &[memory.api], 0);
    let token = |page: usize| ListLocksRequest {
        page_token: pages[page].next_page_token.clone(),
        ..list(3)
    };
    is_refused_token(elsewhere.page_at(0, &token(0)).await);
    redis.restart().await;
    leasehold_tests::until::until("a broker serves", async || {
        client.page_at(0, &list(3)).await.ok()
    })
    .await;
    is_refused_token(client.page_at(0, &token(0)).await);
    memory.stop().await;
}

/// Acquires a semaphore as `count` holders with long names and reasons.
async fn acquire_by_many(
    client: &mut LockServiceClient<tonic::transport::Channel>,
    name: &str,
    count: usize,
) {
    for holder in 0..count {
        let target = LockTarget {
            name: name.to_owned(),
            mode: LockMode::Semaphore.into(),
            limit: 1_000,
            permits: 1,
            ..LockTarget::default()
        };
        let owner = Owner {
            id: format!("holder-{holder}"),
            reason: "r".repeat(500),
            labels: [("label".to_owned(), "l".repeat(400))].into(),
        };
        let request = AcquireRequest {
            target: Some(target),
            owner: Some(owner),
            ..AcquireRequest::default()
        };
        client.acquire(request).await.expect("there is room");
    }
}

#[tokio::test]
async fn a_page_ends_below_the_largest_reply() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("lister", &[broker.api], 0);
    let mut locks = LockServiceClient::new(broker.channel());
    let crowded: Vec<_> = (0..5).map(|n| format!("{n}{}", "x".repeat(511))).collect();
    for name in &crowded {
        acquire_by_many(&mut locks, name, 100).await;
    }
    let pages = client.pages(&list(1_000)).await.expect("pages");
    assert_eq!(names_on_pages(&pages), crowded);
    for page in &pages {
        assert!(page.encoded_len() <= MAX_REPLY, "{}", page.encoded_len());
        for lock in &page.locks {
            assert_eq!(lock.holders.len(), 100);
        }
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_lock_too_large_for_a_reply_is_listed_with_fewer_holders() {
    let fixture = start_on_redis(&[("HTTP2__MAX_REPLY", "8KiB")]).await;
    let mut locks = LockServiceClient::new(leasehold_tests::client::unary::channel(
        fixture.broker.addr(),
    ));
    hold(&fixture.client, &numbered_names("n", 20)).await;
    acquire_by_many(&mut locks, "crowded", 30).await;
    let pages = fixture.client.pages(&list(1_000)).await.expect("pages");
    let mut expected = numbered_names("n", 20);
    expected.push("crowded".to_owned());
    assert_eq!(names_on_pages(&pages), sorted(expected));
    assert!(pages.iter().all(|page| page.encoded_len() <= 8_192));
    let mut shown = pages.iter().flat_map(|page| &page.locks);
    let crowded = shown
        .find(|lock| lock.holder_count == 30)
        .expect("it is listed");
    assert!((1..30).contains(&crowded.holders.len()));
}

#[tokio::test]
async fn unreadable_records_are_skipped() {
    let mut fixture = start_on_redis(&[]).await;
    hold(&fixture.client, &numbered_names("n", 3)).await;
    let redis = &mut fixture.raw;
    redis
        .must(&["HSET", &RejectingRedisFixture::record_key("n-1"), "v", "9"])
        .await;
    redis
        .must(&["SET", &RejectingRedisFixture::record_key("text"), "x"])
        .await;
    redis
        .must(&[
            "HSET",
            &RejectingRedisFixture::record_key("alien"),
            "a",
            "b",
        ])
        .await;
    for key in ["{default:}", "{default", "{:x}", "{a:{}", "x"] {
        let key = format!("{KEY_PREFIX}{key}");
        redis.must(&["HSET", &key, "f", "7"]).await;
    }
    let pages = fixture.client.pages(&list(0)).await.expect("pages");
    assert_eq!(names_on_pages(&pages), ["n-0", "n-2"]);
    assert_eq!(
        fixture.count_log_lines("SCHEMA"),
        1,
        "{}",
        fixture.broker.log()
    );
    fixture.raw.must(&["SCRIPT", "FLUSH"]).await;
    let pages = fixture.client.pages(&list(1)).await.expect("pages");
    assert_eq!(names_on_pages(&pages), ["n-0", "n-2"]);
    fixture.assert_healthy().await;
    assert!(
        !fixture.has_logged_lost_connection(),
        "{}",
        fixture.broker.log()
    );
}
