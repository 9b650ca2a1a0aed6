//! Server-sent events of the operator console: delay, rate, maximum number of listeners, and end at
//! a drain.

use std::time::Duration;

use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::{AcquireCall, Client},
    console::client::{ConsoleUser, ServerSentEvents},
    until::until,
};
use tokio::time::{Instant, timeout};

const TTL: Duration = Duration::from_secs(60);
/// Time below the interval at which a page is refreshed without events.
const TIME_LIMIT: Duration = Duration::from_secs(3);
const LISTENERS_MAX: usize = 64;

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

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

async fn open_events(user: &ConsoleUser, path: &str) -> ServerSentEvents {
    let mut events = user.subscribe(path).await.expect("there is room");
    // The first event confirms the subscription.
    assert_eq!(events.next_event().await.as_deref(), Some("changed"));
    events
}

#[tokio::test]
async fn a_change_is_sent_by_permission() {
    let (_site, user, client) = fixture().await;
    let mut overview = open_events(&user, "/live?view=overview").await;
    let mut of_a = open_events(&user, "/live?view=lock&name=a").await;
    let mut of_b = open_events(&user, "/live?view=lock&name=b").await;
    let started_at = Instant::now();
    client
        .acquire_at(0, &immediate_call("a"))
        .await
        .expect("it is free");
    for events in [&mut overview, &mut of_a] {
        let received = timeout(TIME_LIMIT, events.next_event())
            .await
            .expect("soon");
        assert_eq!(received.as_deref(), Some("changed"));
    }
    let received = timeout(
        TIME_LIMIT.saturating_sub(started_at.elapsed()),
        of_b.next_event(),
    )
    .await;
    assert!(received.is_err(), "nothing has changed there: {received:?}");
    let page = user.get("/").await;
    assert!(
        page.body.contains("<dd id=\"held\">1<"),
        "counted before it was told: {}",
        page.body
    );
}

#[tokio::test]
async fn many_changes_are_few_events() {
    let (_site, user, client) = fixture().await;
    let mut events = open_events(&user, "/live?view=lock&name=a").await;
    let (started_at, mut changes) = (Instant::now(), 0);
    let work = async {
        while started_at.elapsed() < TIME_LIMIT {
            let held = client
                .acquire_at(0, &immediate_call("a"))
                .await
                .expect("it is free");
            client.release_at(0, &held).await.expect("it is held");
            changes += 2;
        }
    };
    let mut received = 0;
    let listen = async {
        while events.next_event().await.is_some() {
            received += 1;
        }
    };
    tokio::select! {
        () = work => {}
        () = listen => panic!("it ended"),
    }
    assert!(changes > 50, "{changes}");
    assert!(
        (2..=7).contains(&received),
        "twice a second: {received} of {changes}"
    );
}

#[tokio::test]
async fn the_number_of_event_streams_is_limited() {
    let (_site, user, _) = fixture().await;
    let mut listening = Vec::new();
    for _ in 0..LISTENERS_MAX {
        let events = user.subscribe("/live?view=audit").await;
        listening.push(events.expect("there is room"));
    }
    let refused = user.subscribe("/live?view=audit").await;
    let refused = refused.expect_err("one too many");
    assert_eq!(refused.status, 503);
    assert_eq!(
        user.get("/audit").await.status,
        200,
        "pages are shown all the same"
    );
    drop(listening.pop());
    until("a place is free again", async || {
        user.subscribe("/live?view=audit").await.ok()
    })
    .await;
}

#[tokio::test]
async fn a_drain_ends_event_streams() {
    let (mut fixture, user, client) = fixture().await;
    let mut lists = Vec::new();
    for view in ["overview", "lock&name=a", "search", "audit"] {
        let path = format!("/live?view={view}");
        lists.push(user.subscribe(&path).await.expect("there is room"));
    }
    // The client of this stream does not move, so the broker runs for the whole drain.
    let held = client
        .acquire_at(0, &immediate_call("a"))
        .await
        .expect("it is free");
    let waits = AcquireCall::new("a", TTL, TTL);
    let _waits = client.start_acquire_at(0, &waits);
    client.wait_for_queue_length_at(0, "a", 1).await;
    let _stays = leasehold_tests::client::stream::StreamClient::open(fixture.addrs()[0]).await;
    fixture.brokers[0].terminate();
    for mut events in lists {
        let mut last = None;
        while let Some(event) = events.next_event().await {
            last = Some(event);
        }
        assert_eq!(last.as_deref(), Some("draining"));
    }
    let again = user.subscribe("/live?view=overview").await;
    assert_eq!(
        again.expect_err("no longer allowed").status,
        204,
        "browsers do not come again"
    );
    let page = user.get("/").await;
    assert!(
        page.body.contains("This replica is draining"),
        "{}",
        page.body
    );
    drop(held);
    fixture.brokers[0].kill().await;
}
