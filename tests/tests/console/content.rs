//! Content of the operator console over plain HTTP: displayed data, escaping and response headers.

use std::time::Duration;

use leasehold_tests::{
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess},
    },
    client::unary::{AcquireCall, Client},
    console::client::{ConsoleUser, HttpResponse, path_with_query},
    redis::server::RedisServer,
    until::until,
};

const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(60);
/// A name with characters that are special in HTML, in URLs and in right-to-left text.
const SPECIAL_NAME: &str = "<script>alert(1)</script>\"'&amp;/a b?c=d&e#\u{202E}fdp.שלום";
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
    img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

/// Returns a call that waits.
fn waiting_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, WAIT)
}

async fn fixture() -> (Deployment, ConsoleUser, Client) {
    let fixture = Deployment::start(1).await;
    let user = ConsoleUser::new(fixture.brokers[0].admin());
    let client = Client::new("worker-1", &fixture.addrs(), 0);
    until("it is ready", async || {
        (user.get("/").await.status == 200).then_some(())
    })
    .await;
    (fixture, user, client)
}

fn lock_path(name: &str) -> String {
    path_with_query("/lock", &[("name", name)])
}

#[tokio::test]
async fn every_response_has_the_security_headers() {
    let (_site, user, _) = fixture().await;
    let paths = [
        "/",
        "/locks",
        "/locks?sort=line",
        "/lock?name=a",
        "/owner?id=x",
        "/audit",
        "/assets/page.css",
        "/assets/page.js",
        "/assets/icon.svg",
    ];
    let mut seen: Vec<(String, HttpResponse)> = Vec::new();
    for page in paths {
        let reply = user.get(page).await;
        assert_eq!(reply.status, 200, "{page}: {}", reply.body);
        seen.push((page.to_owned(), reply));
    }
    let wrong = [
        ("GET", "/lock", 400),
        ("GET", "/owner", 400),
        ("GET", "/locks?namespace=NO", 400),
        ("GET", "/locks?from=x", 400),
        ("GET", "/locks?sort=x", 400),
        ("GET", "/lock/force-release", 405),
        ("POST", "/", 405),
        ("DELETE", "/lock", 405),
    ];
    for (method, page, status) in wrong {
        let reply = user.request(method, page, "").await;
        assert_eq!(reply.status, status, "{method} {page}: {}", reply.body);
        seen.push((page.to_owned(), reply));
    }
    for (page, reply) in seen {
        for (name, value) in [
            ("content-security-policy", POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("x-frame-options", "DENY"),
        ] {
            assert_eq!(reply.header(name), value, "{page}: {name}");
        }
    }
    assert_eq!(user.get("/nothing").await.status, 404);
    assert_eq!(user.get("/livez").await.body, "ok");
}

#[tokio::test]
async fn names_are_escaped_everywhere() {
    let (fixture, user, client) = fixture().await;
    let hostile = client.with_name(SPECIAL_NAME, 0);
    let held = hostile
        .acquire_at(0, &immediate_call(SPECIAL_NAME))
        .await
        .expect("it is free");
    let _waits = hostile.start_acquire_at(0, &waiting_call(SPECIAL_NAME));
    client.wait_for_queue_length_at(0, SPECIAL_NAME, 1).await;
    let pages = [
        "/".to_owned(),
        "/locks".to_owned(),
        lock_path(SPECIAL_NAME),
        path_with_query(
            "/lock",
            &[("name", SPECIAL_NAME), ("lease", &held.lease.lease_id)],
        ),
        path_with_query(
            "/locks",
            &[("prefix", SPECIAL_NAME), ("owner", SPECIAL_NAME)],
        ),
        path_with_query("/owner", &[("id", SPECIAL_NAME)]),
        path_with_query("/lock", &[("name", "a"), ("done", SPECIAL_NAME)]),
        path_with_query("/lock", &[("name", "a"), ("lease", SPECIAL_NAME)]),
    ];
    for page in &pages {
        let reply = until("all of it is counted", async || {
            let reply = user.get(page).await;
            let is_whole = page != "/" || reply.body.contains("dd id=\"waiting\">1<");
            is_whole.then_some(reply)
        })
        .await;
        assert_eq!(reply.status, 200, "{page}: {}", reply.body);
        assert!(
            !reply.body.contains("<script>alert"),
            "{page}: {}",
            reply.body
        );
        let names_it = page.contains("name=a&");
        let shows = reply.body.contains("&#60;script&#62;alert(1)");
        assert!(shows || names_it, "{page}: {}", reply.body);
    }
    // Invisible characters are written out, and links lead to the lock itself.
    let list = user.get("/locks").await;
    assert!(list.body.contains("‹U+202E›fdp.שלום"), "{}", list.body);
    let hrefs = list.texts_between("class=\"name\"><a href=\"", "\"");
    let lock = user.get(&hrefs[0]).await;
    assert!(lock.body.contains(&held.lease.lease_id), "{}", lock.body);
    drop(fixture);
}

#[tokio::test]
async fn a_lock_shows_who_holds_it_and_who_waits_in_order() {
    let (_site, user, client) = fixture().await;
    let held = client
        .acquire_at(0, &immediate_call("a"))
        .await
        .expect("it is free");
    let mut waits = Vec::new();
    for n in 1..=3 {
        waits.push(
            client
                .with_name(&format!("waiter-{n}"), 0)
                .start_acquire_at(0, &waiting_call("a")),
        );
        client.wait_for_queue_length_at(0, "a", n).await;
    }
    let page = user.get(&lock_path("a")).await;
    let owners = page.texts_between("<bdi>", "</bdi>");
    let line: Vec<_> = owners
        .iter()
        .filter(|name| name.starts_with("waiter"))
        .collect();
    assert_eq!(line, ["waiter-1", "waiter-2", "waiter-3"]);
    assert!(owners.contains(&"worker-1".to_owned()), "{owners:?}");
    for shown in [
        held.lease.lease_id.as_str(),
        &held.token().to_string(),
        "class=\"chip held\"",
        "exclusive",
    ] {
        assert!(page.body.contains(shown), "{shown}: {}", page.body);
    }
    let lefts = page.texts_between("data-left=\"", "\"");
    let left: u64 = lefts[0].parse().expect("milliseconds");
    assert!((60_000..=72_250).contains(&left), "E(60 s) at most: {left}");
    assert_eq!(lefts.len(), 4, "one holder, three who wait");

    let idle = user.get(&lock_path("b")).await;
    assert_eq!(idle.status, 200);
    assert!(
        idle.body
            .contains("This lock has no holders and no waiters.")
    );
}

#[tokio::test]
async fn an_owner_is_all_that_it_holds_and_waits_for() {
    let (_site, user, client) = fixture().await;
    let other = client.with_name("other", 0);
    for lock in ["held/1", "held/2"] {
        client
            .acquire_at(0, &immediate_call(lock))
            .await
            .expect("it is free");
    }
    other
        .acquire_at(0, &immediate_call("waited"))
        .await
        .expect("it is free");
    let _before = other
        .with_name("first", 0)
        .start_acquire_at(0, &waiting_call("waited"));
    client.wait_for_queue_length_at(0, "waited", 1).await;
    let _waits = [
        client.start_acquire_at(0, &waiting_call("waited")),
        other.start_acquire_at(0, &waiting_call("held/1")),
    ];
    client.wait_for_queue_length_at(0, "waited", 2).await;
    client.wait_for_queue_length_at(0, "held/1", 1).await;
    let page = user.get("/owner?id=worker-1").await;
    let (holds, waits) = page.body.split_once("Waits for</h2>").expect("two parts");
    assert!(holds.contains("default/held/1") && holds.contains("default/held/2"));
    assert!(
        waits.contains("default/waited") && !waits.contains("held/1"),
        "{waits}"
    );
    assert!(
        waits.contains("data-of=\"Position\" class=\"number\">2<"),
        "{waits}"
    );
    let says = "2 locks are free when their leases expire, and 1 waiting call proceeds then";
    assert!(page.body.contains(says), "{}", page.body);
    let nobody = user.get("/owner?id=nobody").await;
    assert!(nobody.body.contains("It holds none of the locks"));
}

#[tokio::test]
async fn a_list_is_paged_and_sorts_the_locks_that_it_reads() {
    let (_site, user, client) = fixture().await;
    for n in 0..120 {
        let lock = format!("many/{n:03}");
        client
            .acquire_at(0, &immediate_call(&lock))
            .await
            .expect("it is free");
    }
    client
        .acquire_at(0, &immediate_call("one"))
        .await
        .expect("it is free");
    let _waits = [
        client.start_acquire_at(0, &waiting_call("many/077")),
        client.start_acquire_at(0, &waiting_call("many/077")),
    ];
    client.wait_for_queue_length_at(0, "many/077", 2).await;
    let names =
        |page: &HttpResponse| page.texts_between("class=\"name\"><a href=\"/lock", "</bdi>");
    let (mut next, mut found, mut pages) =
        (Some("/locks?prefix=many%2F".to_owned()), Vec::new(), 0);
    while let Some(path) = next {
        let page = user.get(&path).await;
        assert_eq!(page.status, 200, "{}", page.body);
        assert!(names(&page).len() <= 50);
        found.extend(names(&page));
        next = page.link_target("Next page");
        pages += 1;
    }
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), 120, "each once, and none of another name");
    assert!(pages >= 3);
    let by_line = user.get("/locks?sort=line").await;
    let first = names(&by_line);
    assert!(first[0].ends_with("many/077"), "{first:?}");
    assert_eq!(first.len(), 50);
    assert!(
        by_line.body.contains("The first 50 of 121 locks."),
        "{}",
        by_line.body
    );
    let by_age = user.get("/locks?sort=age").await;
    assert!(
        names(&by_age)[0].ends_with("many/000"),
        "{:?}",
        names(&by_age)
    );
    let owned = user.get("/locks?owner=nobody").await;
    assert!(
        owned.body.contains("No lock that is held"),
        "{}",
        owned.body
    );
}

#[tokio::test]
async fn the_overview_counts_all_locks() {
    let (fixture, user, client) = fixture().await;
    for n in 0..70 {
        let lock = format!("many/{n}");
        client
            .acquire_at(0, &immediate_call(&lock))
            .await
            .expect("it is free");
    }
    let _waits = [
        client.start_acquire_at(0, &waiting_call("many/7")),
        client.start_acquire_at(0, &waiting_call("many/7")),
    ];
    let _more = client.start_acquire_at(0, &waiting_call("many/8"));
    client.wait_for_queue_length_at(0, "many/7", 2).await;
    client.wait_for_queue_length_at(0, "many/8", 1).await;
    let page = until("all is counted", async || {
        let page = user.get("/").await;
        page.body.contains("<dd id=\"waiting\">3<").then_some(page)
    })
    .await;
    assert!(page.body.contains("<dd id=\"held\">70<"), "{}", page.body);
    let hot = page.texts_between("class=\"name\"><a href=\"/lock", "</bdi>");
    assert!(
        hot[0].ends_with("many/7") && hot[1].ends_with("many/8"),
        "{hot:?}"
    );
    assert_eq!(hot.len(), 2);
    assert!(page.body.contains("Redis at 127.0.0.1:"), "{}", page.body);
    assert!(
        page.body.contains("class=\"chip good\">answers<"),
        "{}",
        page.body
    );
    assert!(page.body.contains(env!("CARGO_PKG_VERSION")));
    drop(fixture);
}

#[tokio::test]
async fn without_its_store_the_page_says_so() {
    let mut redis = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(redis.url());
    options.init_store().await;
    redis.kill().await;
    let wait = ("LEASEHOLD__STORE__WAIT_FOR_STORE", "true");
    options.env.push((wait.0.to_owned(), wait.1.to_owned()));
    let broker = BrokerProcess::launch(&options).await;
    let user = ConsoleUser::new(broker.admin());
    for page in ["/locks", "/lock?name=a"] {
        let reply = user.get(page).await;
        assert_eq!(reply.status, 503, "{page}: {}", reply.body);
    }
    redis.restart().await;
    until("it is ready", async || {
        (user.get("/").await.status == 200).then_some(())
    })
    .await;
    redis.kill().await;
    let page = until("it notices", async || {
        let page = user.get("/").await;
        page.body
            .contains("class=\"chip bad\">trouble<")
            .then_some(page)
    })
    .await;
    assert!(
        page.body.contains("the store is unavailable"),
        "{}",
        page.body
    );
    let list = user.get("/locks").await;
    assert_eq!(list.status, 503, "{}", list.body);
}

#[tokio::test]
async fn a_page_of_another_site_may_only_link_here() {
    let (_site, user, _) = fixture().await;
    let foreign = user.clone().with_header("sec-fetch-site", "cross-site");
    assert_eq!(foreign.get("/").await.status, 403);
    let follows = foreign.with_header("sec-fetch-mode", "navigate");
    assert_eq!(follows.get("/").await.status, 200, "a link may lead here");
}
