//! The operator console with many locks and long queues: response time, size and memory.

use std::{net::SocketAddr, time::Duration};

use futures::stream::{self, StreamExt as _};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::{AcquireCall, AcquireHandle, Client},
    console::{browser::Browser, client::ConsoleUser},
    scale::{print_figures, scaled_count},
    until::until,
};
use serde_json::json;
use tokio::time::Instant;

const TTL: Duration = Duration::from_secs(60);
const AT_ONCE: usize = 32;
const LINES: usize = 50;
/// Maximum number of waits on one connection.
const WAITS_MAX: usize = 500;
/// Maximum size of a page of 50 locks, of ten queues or of one queue.
const SIZE_MOST: usize = 100_000;
/// Maximum response time, far above the usual time and still acceptable to an operator.
const VIEW_MAX: Duration = Duration::from_secs(2);
const GROWTH_MAX_KIB: u64 = 32 * 1_024;

fn name(n: usize) -> String {
    format!("invoices/{n:05}")
}

async fn hold(client: &Client, locks: usize) {
    let taken = stream::iter(0..locks).map(async |n| {
        let call = AcquireCall::new(&name(n), TTL, Duration::ZERO);
        client.acquire_at(0, &call).await.expect("it is free");
    });
    taken.buffer_unordered(AT_ONCE).collect::<()>().await;
}

async fn wait(fixture: &Deployment, waiters: usize) -> Vec<AcquireHandle> {
    let (mut waits, mut client) = (Vec::new(), None);
    for n in 0..waiters {
        if n % WAITS_MAX == 0 {
            client = Some(Client::new(&format!("waiter-{n}"), &fixture.addrs(), 0));
        }
        let client = client.as_ref().expect("the first begins one");
        let call = AcquireCall::new(&name(n % LINES), TTL, TTL);
        waits.push(client.start_acquire_at(0, &call));
    }
    waits
}

async fn view(user: &ConsoleUser, path: &str) -> usize {
    let started_at = Instant::now();
    let page = user.get(path).await;
    let took = started_at.elapsed();
    assert_eq!(page.status, 200, "{path}: {}", page.body);
    let size = page.body.len();
    print_figures(&format!("page: {path}: {took:.1?} {size} bytes"));
    assert!(
        took < VIEW_MAX && size < SIZE_MOST,
        "{path}: {took:?} {size}"
    );
    size
}

/// Measures the first contentful paint in a browser.
async fn measure_first_paint(admin: SocketAddr) {
    let mut browser = Browser::start().await;
    browser.open(admin, &json!({})).await;
    for path in ["/", "/locks"] {
        browser.run(&format!("await page.goto('{path}')")).await;
        let paint = browser.run(PAINT).await.as_f64().expect("milliseconds");
        print_figures(&format!(
            "page: {path}: first contentful paint {paint:.0} ms"
        ));
        assert!(paint < 5_000.0, "{path}: {paint} ms");
    }
}

/// Runs alone: it measures times and memory of pages with many locks.
#[tokio::test]
async fn many_locks_and_long_lines_are_shown_soon() {
    let fixture = Deployment::start(1).await;
    let broker = &fixture.brokers[0];
    let user = ConsoleUser::new(broker.admin());
    let client = Client::new("worker-1", &fixture.addrs(), 0);
    until("it is ready", async || {
        (user.get("/").await.status == 200).then_some(())
    })
    .await;
    let (locks, waiters) = (scaled_count(10_000, 500), scaled_count(1_000, 100));
    hold(&client, locks).await;
    let _waits = wait(&fixture, waiters).await;
    until("all wait", async || {
        let mut waiting = 0;
        for n in 0..LINES {
            let lock = client.get_lock(&name(n)).await.expect("it is held");
            waiting += lock.expect("it is held").queue_length;
        }
        (usize::try_from(waiting) == Ok(waiters)).then_some(())
    })
    .await;
    let before = broker.process().resident_kib();
    print_figures(&format!(
        "page: locks={locks} waiters={waiters} resident={before} KiB"
    ));
    let lock = format!("/lock?name={}", name(7));
    for path in [
        "/",
        "/locks",
        "/locks?sort=line",
        "/locks?prefix=invoices%2F000",
        &lock,
        "/owner?id=worker-1",
        "/audit",
    ] {
        view(&user, path).await;
    }
    let started_at = Instant::now();
    until("all are counted", async || {
        let page = user.get("/").await;
        let is_whole = page.body.contains(&format!("id=\"held\">{locks}<"))
            && page.body.contains(&format!("id=\"waiting\">{waiters}<"));
        is_whole.then_some(())
    })
    .await;
    let response = user
        .get("/")
        .await
        .texts_between("<p class=\"small\">", " ago")
        .remove(0);
    print_figures(&format!(
        "page: counted after {:.1?} more: {response}",
        started_at.elapsed()
    ));
    view(&user, "/").await;

    measure_first_paint(broker.admin()).await;
    for _ in 0..20 {
        for path in ["/", "/locks", "/locks?sort=age", "/owner?id=worker-1"] {
            user.get(path).await;
        }
    }
    let after = broker.process().resident_kib();
    let growth = after.saturating_sub(before);
    print_figures(&format!(
        "page: 90 views later: resident={after} KiB, {growth} KiB more"
    ));
    assert!(growth < GROWTH_MAX_KIB, "{growth} KiB");
}

const PAINT: &str = "return await page.evaluate(() => new Promise((done) => {
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) {
            if (entry.name === 'first-contentful-paint') done(entry.startTime);
        }
    }).observe({ type: 'paint', buffered: true });
}))";
