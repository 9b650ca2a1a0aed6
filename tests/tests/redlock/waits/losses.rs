//! Brokers on five independent servers, of which some are lost, empty, backed up or slow.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_server::lock::{LockKey, NOT_AFTER_MS};
use leasehold_tests::{
    broker_process::BrokerProcess,
    client::{AcquireCall, Client},
    clock::boottime,
    redis_copies::{back_up, replica_of},
    redis_server::{Data, RedisServer},
    redlock::{QUARANTINE, RedlockDeployment, TTL_MAX},
    scale::{count, figures},
    status::reason,
    time_left::expiry,
    until::until,
    world::lock_named,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const BROKERS: usize = 2;
const CLIENTS: usize = 12;
const TTL: Duration = Duration::from_secs(2);
/// A caller is answered within this time, whatever the servers do.
const PROMPT: Duration = Duration::from_secs(1);
/// What a call may take besides: the broker's process and the client's share two cores.
const SLACK: Duration = Duration::from_millis(150);
/// A command that was sent before is not executed any more.
const TOO_LATE: Duration = Duration::from_millis(NOT_AFTER_MS + 250);
const LIMIT: Duration = Duration::from_secs(30);
const BACK: Duration = Duration::from_secs(5);

fn now(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn addrs(brokers: &[BrokerProcess]) -> Vec<SocketAddr> {
    brokers.iter().map(BrokerProcess::addr).collect()
}

fn key(lock: &str) -> LockKey {
    lock_named("default", lock)
}

/// Acquires and releases locks of its own; how long each call took. Every one must be done.
async fn pairs(client: &Client, at: usize, times: usize) -> Vec<Duration> {
    let mut took = Vec::new();
    for number in 0..times {
        let begun = boottime();
        let held = client
            .acquire_at(at, &now(&format!("own/{at}/{number}")))
            .await;
        took.push(boottime() - begun);
        let held = held.expect("a quorum is there");
        client
            .release_at(at, &held)
            .await
            .expect("a quorum is there");
    }
    took
}

/// All clients at once; their calls' p50, p99 and longest.
async fn load(endpoints: &[SocketAddr], what: &str) -> Duration {
    let times = count(2_000, 200) / CLIENTS;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|index| Client::new(&format!("client-{index}"), endpoints, 0))
        .collect();
    let begun = boottime();
    let clients = clients.iter().enumerate();
    let all = join_all(clients.map(|(at, client)| pairs(client, at, times))).await;
    let ran = boottime() - begun;
    let mut all = all.concat();
    all.sort_unstable();
    let part = |hundredths: usize| all[(all.len() - 1) * hundredths / 100];
    figures(&format!(
        "redlock {what}: {} grants by {CLIENTS} clients in {ran:?}, p50={:?} p99={:?} longest={:?}",
        all.len(),
        part(50),
        part(99),
        part(100)
    ));
    part(100)
}

/// Until a call that does not wait is granted; when.
async fn granted_again(client: &Client) -> Duration {
    until("grants again", async || {
        let call = now(&format!("again/{:?}", boottime()));
        client.acquire_at(0, &call).await.ok().map(|_| boottime())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_five_may_be_lost_and_the_third_ends_grants_at_once() {
    let mut servers = RedlockDeployment::start(5).await;
    let brokers = servers.brokers(BROKERS).await;
    let endpoints = addrs(&brokers);
    load(&endpoints, "with all five").await;
    servers.lose(1).await;
    servers.lose(4).await;
    let longest = load(&endpoints, "with three of five").await;
    assert!(
        longest < TTL / 4,
        "nobody waits for what is lost: {longest:?}"
    );

    servers.lose(2).await;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|index| Client::new(&format!("client-{index}"), &endpoints, 0))
        .collect();
    let refused = clients.iter().enumerate().map(async |(at, client)| {
        let mut longest = Duration::ZERO;
        for number in 0..count(50, 5) {
            let begun = boottime();
            let call = now(&format!("none/{at}/{number}"));
            let refused = client.acquire_at(at, &call).await.expect_err("no quorum");
            longest = longest.max(boottime() - begun);
            assert_eq!(reason(&refused), Some(ErrorReason::StoreUnavailable));
        }
        longest
    });
    let longest = join_all(refused).await.into_iter().max().expect("clients");
    for number in 0..5 {
        let lock = key(&format!("none/0/{number}"));
        for left in [0, 3] {
            let held = servers.held_at(left, &lock).await;
            // What one of two was granted is taken back, or was never granted.
            assert_eq!(held, None, "{lock} at {left}");
        }
    }
    let back = boottime();
    servers.restart(2, Data::Kept).await;
    let resumed = granted_again(&clients[0]).await - back;
    figures(&format!(
        "redlock with two of five: longest answer {longest:?}; grants {resumed:?} after the third came \
         back with its data, Q={QUARANTINE:?}"
    ));
    assert!(longest < PROMPT + SLACK, "{longest:?}");
    assert!(
        resumed >= QUARANTINE && resumed < QUARANTINE + BACK,
        "{resumed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_came_back_empty_votes_when_nothing_it_forgot_can_live() {
    let mut servers = RedlockDeployment::start(5).await;
    let brokers = servers.brokers(1).await;
    let client = Client::new("client", &addrs(&brokers), 0);
    let came = boottime();
    servers.restart(3, Data::Lost).await;
    let mut without = 0;
    let first = loop {
        let lock = format!("lock/{without}");
        let held = client
            .acquire_at(0, &now(&lock))
            .await
            .expect("four are there");
        // Every server has answered, or will not: its copy of the command is sent at once.
        sleep(Duration::from_millis(10)).await;
        if servers.held_at(3, &key(&lock)).await.is_some() {
            break boottime() - came;
        }
        assert!(boottime() - came < QUARANTINE + BACK, "it votes again");
        client.release_at(0, &held).await.expect("it is held");
        without += 1;
    };
    figures(&format!(
        "redlock: {without} grants without a server that came back empty, its first vote after \
         {first:?}, Q={QUARANTINE:?}"
    ));
    assert!(first >= QUARANTINE, "{first:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_and_a_first_replica_stop_no_grant() {
    let servers = RedlockDeployment::start(5).await;
    let brokers = servers.brokers(1).await;
    let client = Client::new("client", &addrs(&brokers), 0);
    // With two stopped, every grant needs the servers that are changed.
    servers.pause([3, 4]).await;
    let server = &servers.servers()[0];
    let before = server.identity().await;
    let era = era_of(server).await;
    let no_delay = ["CONFIG", "SET", "repl-diskless-sync-delay", "0"];
    server.connect().await.must(&no_delay).await;
    let done = CancellationToken::new();
    let changes = async {
        back_up(server).await;
        let replica = replica_of(server).await;
        done.cancel();
        replica
    };
    let grants = async {
        let (mut longest, mut granted) = ((Duration::ZERO, 0), 0);
        while !done.is_cancelled() || granted < count(400, 40) {
            let begun = boottime();
            let held = client.acquire_at(0, &now(&format!("lock/{granted}"))).await;
            longest = longest.max((boottime() - begun, granted));
            let held = held.expect("grants go on");
            client.release_at(0, &held).await.expect("it is held");
            granted += 1;
        }
        (longest, granted)
    };
    let (_replica, (longest, granted)) = tokio::join!(changes, grants);
    let after = server.identity().await;
    figures(&format!(
        "redlock: {granted} grants through a backup and a first replica, the longest (and its number) {longest:?}"
    ));
    assert_ne!(
        after.replid, before.replid,
        "a replica changes the id of the data"
    );
    assert_eq!(era_of(server).await, era, "and ends no era");
}

async fn era_of(server: &RedisServer) -> String {
    let era = server.connect().await.must(&["GET", "lh:era"]).await;
    era.text().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_without_a_quorum_stops_before_anybody_else_is_granted() {
    let mut servers = RedlockDeployment::start(5).await;
    let brokers = servers.brokers(BROKERS).await;
    let endpoints = addrs(&brokers);
    let [holder, next] = ["holder", "next"].map(|name| Client::new(name, &endpoints, 0));
    for round in 0..count(10, 1) {
        let lock = format!("lost/{round}");
        // Only servers 0, 1 and 2 have it.
        servers.pause([3, 4]).await;
        let call = AcquireCall::new(&lock, TTL, Duration::ZERO);
        let mut held = holder.acquire(&call).await.expect("a quorum is there");
        // What the others were asked comes too late for them.
        sleep(TOO_LATE).await;
        servers.lose(2).await;
        servers.resume([3, 4]);
        let waits = AcquireCall::new(&lock, TTL, Duration::from_secs(30));
        let granted = async { (next.acquire(&waits).await, boottime()) };
        let told = async {
            loop {
                sleep(TTL / 10).await;
                match holder.renew_at(0, &held).await {
                    // A renewal counts from its sending.
                    Ok(renewed) => held = renewed,
                    Err(refused) => {
                        let over = reason(&refused);
                        if !held.trusted() {
                            return (held.valid_until(), over);
                        }
                    }
                }
            }
        };
        let both = timeout(LIMIT, async { tokio::join!(granted, told) }).await;
        let ((granted, granted_at), told) = both.expect("the lease cannot be renewed");
        let granted = granted.expect("a quorum is there, and the lease runs out");
        let (valid_until, over) = told;
        let apart = granted_at.saturating_sub(valid_until);
        figures(&format!(
            "redlock: a lease whose third server was lost was refused with {over:?} and valid until \
             {apart:?} before the next grant was told"
        ));
        assert!(over.is_some());
        assert!(granted.token() > held.token());
        assert!(granted_at >= valid_until, "valid beside the next grant");
        assert!(apart < expiry(TTL_MAX) + BACK, "{apart:?}");
        next.release(&granted).await.expect("it is held");
        servers.restart(2, Data::Kept).await;
        // The next round needs its vote.
        sleep(QUARANTINE).await;
    }
}
