//! What the operators' page tells browsers while they show it: soon, seldom, to so many, and no longer than it may.

use std::time::Duration;

use leasehold_tests::{
    client::{AcquireCall, Client},
    deployment::Deployment,
    page::{Events, Looker},
    until::until,
};
use tokio::time::{Instant, timeout};

const TTL: Duration = Duration::from_secs(60);
/// Less than the time after which a page is looked at again without any news.
const SOON: Duration = Duration::from_secs(3);
const LISTENERS_MOST: usize = 64;

async fn site() -> (Deployment, Looker, Client) {
    let site = Deployment::start(1).await;
    let looker = Looker::new(site.brokers[0].admin());
    let client = Client::new("worker-1", &site.addrs(), 0);
    until("it is ready", async || {
        (looker.get("/").await.status == 200).then_some(())
    })
    .await;
    (site, looker, client)
}

fn now(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

async fn listening(looker: &Looker, path: &str) -> Events {
    let mut events = looker.listen(path).await.expect("there is room");
    // It listens from then on.
    assert_eq!(events.next().await.as_deref(), Some("changed"));
    events
}

#[tokio::test]
async fn a_change_is_told_to_whom_it_concerns() {
    let (_site, looker, client) = site().await;
    let mut overview = listening(&looker, "/live?view=overview").await;
    let mut of_a = listening(&looker, "/live?view=lock&name=a").await;
    let mut of_b = listening(&looker, "/live?view=lock&name=b").await;
    let began = Instant::now();
    client.acquire_at(0, &now("a")).await.expect("it is free");
    for events in [&mut overview, &mut of_a] {
        let told = timeout(SOON, events.next()).await.expect("soon");
        assert_eq!(told.as_deref(), Some("changed"));
    }
    let told = timeout(SOON.saturating_sub(began.elapsed()), of_b.next()).await;
    assert!(told.is_err(), "nothing has changed there: {told:?}");
    let page = looker.get("/").await;
    assert!(
        page.body.contains("<dd id=\"held\">1<"),
        "counted before it was told: {}",
        page.body
    );
}

#[tokio::test]
async fn many_changes_are_few_events() {
    let (_site, looker, client) = site().await;
    let mut events = listening(&looker, "/live?view=lock&name=a").await;
    let (began, mut changes) = (Instant::now(), 0);
    let work = async {
        while began.elapsed() < SOON {
            let held = client.acquire_at(0, &now("a")).await.expect("it is free");
            client.release_at(0, &held).await.expect("it is held");
            changes += 2;
        }
    };
    let mut told = 0;
    let listen = async {
        while events.next().await.is_some() {
            told += 1;
        }
    };
    tokio::select! {
        () = work => {}
        () = listen => panic!("it ended"),
    }
    assert!(changes > 50, "{changes}");
    assert!(
        (2..=7).contains(&told),
        "twice a second: {told} of {changes}"
    );
}

#[tokio::test]
async fn so_many_browsers_listen_and_no_more() {
    let (_site, looker, _) = site().await;
    let mut listening = Vec::new();
    for _ in 0..LISTENERS_MOST {
        let events = looker.listen("/live?view=audit").await;
        listening.push(events.expect("there is room"));
    }
    let refused = looker.listen("/live?view=audit").await;
    let refused = refused.expect_err("one too many");
    assert_eq!(refused.status, 503);
    assert_eq!(
        looker.get("/audit").await.status,
        200,
        "pages are shown all the same"
    );
    drop(listening.pop());
    until("a place is free again", async || {
        looker.listen("/live?view=audit").await.ok()
    })
    .await;
}

#[tokio::test]
async fn a_drain_ends_what_is_told() {
    let (mut site, looker, client) = site().await;
    let mut lists = Vec::new();
    for view in ["overview", "lock&name=a", "search", "audit"] {
        let path = format!("/live?view={view}");
        lists.push(looker.listen(&path).await.expect("there is room"));
    }
    // A stream's client that does not move keeps the broker for the whole drain.
    let held = client.acquire_at(0, &now("a")).await.expect("it is free");
    let waits = AcquireCall::new("a", TTL, TTL);
    let _waits = client.open_at(0, &waits);
    client.queued_at(0, "a", 1).await;
    let _stays = leasehold_tests::stream_client::StreamClient::open(site.addrs()[0]).await;
    site.brokers[0].terminate();
    for mut events in lists {
        let mut last = None;
        while let Some(event) = events.next().await {
            last = Some(event);
        }
        assert_eq!(last.as_deref(), Some("draining"));
    }
    let again = looker.listen("/live?view=overview").await;
    assert_eq!(
        again.expect_err("not any more").status,
        204,
        "browsers do not come again"
    );
    let page = looker.get("/").await;
    assert!(
        page.body.contains("This replica is draining"),
        "{}",
        page.body
    );
    drop(held);
    site.brokers[0].kill().await;
}
