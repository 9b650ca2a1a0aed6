//! Brokers on a RedLock store of five servers, of which some are lost, empty, backed up or slow.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_server::lock::{COMMAND_DEADLINE_MS, LockKey};
use leasehold_tests::{
    broker::process::BrokerProcess,
    client::unary::{AcquireCall, Client},
    clock::boottime,
    load::store_expiry::store_expiry,
    redis::{
        replica_and_backup::{start_replica_of, take_backup},
        server::{RedisServer, RestartData},
    },
    redlock::deployment::{QUARANTINE, RedlockDeployment, TTL_MAX},
    scale::{print_figures, scaled_count},
    status::error_reason,
    store_fixture::lock_key,
    until::until,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const BROKERS: usize = 2;
const CLIENTS: usize = 12;
const TTL: Duration = Duration::from_secs(2);
/// Time within which a caller receives a reply, whatever the servers do.
const PROMPT: Duration = Duration::from_secs(1);
/// Tolerance for the duration of a call, because the broker's process and the clients share two
/// cores.
const SLACK: Duration = Duration::from_millis(150);
/// Time after which a node rejects a command that was sent before, with a margin of 250 ms.
const TOO_LATE: Duration = Duration::from_millis(COMMAND_DEADLINE_MS + 250);
const LIMIT: Duration = Duration::from_secs(30);
const RECOVERED_WITHIN: Duration = Duration::from_secs(5);

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn addrs(brokers: &[BrokerProcess]) -> Vec<SocketAddr> {
    brokers.iter().map(BrokerProcess::addr).collect()
}

fn key(lock: &str) -> LockKey {
    lock_key("default", lock)
}

/// Acquires and releases `times` locks of this client. Returns the duration of each acquire, and
/// asserts that every call succeeds.
async fn pairs(client: &Client, at: usize, times: usize) -> Vec<Duration> {
    let mut took = Vec::new();
    for number in 0..times {
        let started_at = boottime();
        let held = client
            .acquire_at(at, &immediate_call(&format!("own/{at}/{number}")))
            .await;
        took.push(boottime() - started_at);
        let held = held.expect("a quorum is there");
        client
            .release_at(at, &held)
            .await
            .expect("a quorum is there");
    }
    took
}

/// Runs all clients concurrently. Prints p50, p99 and maximum of the duration of their acquires,
/// and returns p99.
async fn load(endpoints: &[SocketAddr], what: &str) -> Duration {
    let times = scaled_count(2_000, 200) / CLIENTS;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|index| Client::new(&format!("client-{index}"), endpoints, 0))
        .collect();
    let started_at = boottime();
    let clients = clients.iter().enumerate();
    let all = join_all(clients.map(|(at, client)| pairs(client, at, times))).await;
    let ran = boottime() - started_at;
    let mut all = all.concat();
    all.sort_unstable();
    let part = |hundredths: usize| all[(all.len() - 1) * hundredths / 100];
    print_figures(&format!(
        "redlock {what}: {} grants by {CLIENTS} clients in {ran:?}, p50={:?} p99={:?} longest={:?}",
        all.len(),
        part(50),
        part(99),
        part(100)
    ));
    part(99)
}

/// Waits until a call that does not wait is granted, and returns the time of the grant.
async fn granted_again(client: &Client) -> Duration {
    until("grants again", async || {
        let call = immediate_call(&format!("again/{:?}", boottime()));
        client.acquire_at(0, &call).await.ok().map(|_| boottime())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_five_may_be_lost_and_the_third_ends_grants_at_once() {
    let mut servers = RedlockDeployment::start(5).await;
    let brokers = servers.start_brokers(BROKERS).await;
    let endpoints = addrs(&brokers);
    load(&endpoints, "with all five").await;
    servers.kill(1).await;
    servers.kill(4).await;
    let p99 = load(&endpoints, "with three of five").await;
    assert!(p99 < TTL / 4, "no caller waits for what is lost: {p99:?}");

    servers.kill(2).await;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|index| Client::new(&format!("client-{index}"), &endpoints, 0))
        .collect();
    let refused = clients.iter().enumerate().map(async |(at, client)| {
        let mut took = Vec::new();
        for number in 0..scaled_count(50, 5) {
            let started_at = boottime();
            let call = immediate_call(&format!("none/{at}/{number}"));
            let refused = client.acquire_at(at, &call).await.expect_err("no quorum");
            took.push(boottime() - started_at);
            assert_eq!(error_reason(&refused), Some(ErrorReason::StoreUnavailable));
        }
        took
    });
    let took = join_all(refused).await.concat();
    let late = took.iter().filter(|took| **took > PROMPT + SLACK).count();
    for number in 0..5 {
        let lock = key(&format!("none/0/{number}"));
        for left in [0, 3] {
            let held = servers.holder_at(left, &lock).await;
            // A grant at one of the two servers was rolled back, or did not happen.
            assert_eq!(held, None, "{lock} at {left}");
        }
    }
    let back = boottime();
    servers.restart(2, RestartData::Kept).await;
    let resumed = granted_again(&clients[0]).await - back;
    print_figures(&format!(
        "redlock with two of five: {late} of {} answers after more than {:?}; grants {resumed:?} after \
         the third came back with its data, Q={QUARANTINE:?}",
        took.len(),
        PROMPT + SLACK
    ));
    // The machine may be too busy for a few of them, but not for one in twenty.
    assert!(late * 20 <= took.len(), "{took:?}");
    assert!(
        resumed >= QUARANTINE && resumed < QUARANTINE + RECOVERED_WITHIN,
        "{resumed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_came_back_empty_votes_when_nothing_it_forgot_can_live() {
    let mut servers = RedlockDeployment::start(5).await;
    let brokers = servers.start_brokers(1).await;
    let client = Client::new("client", &addrs(&brokers), 0);
    let restored_at = boottime();
    servers.restart(3, RestartData::Deleted).await;
    let mut without = 0;
    let first = loop {
        let lock = format!("lock/{without}");
        let held = client
            .acquire_at(0, &immediate_call(&lock))
            .await
            .expect("four are there");
        // The command was sent to all servers at the same time. By now each server has executed it
        // or will not.
        sleep(Duration::from_millis(10)).await;
        if servers.holder_at(3, &key(&lock)).await.is_some() {
            break boottime() - restored_at;
        }
        assert!(
            boottime() - restored_at < QUARANTINE + RECOVERED_WITHIN,
            "it votes again"
        );
        client.release_at(0, &held).await.expect("it is held");
        without += 1;
    };
    print_figures(&format!(
        "redlock: {without} grants without a server that came back empty, its first vote after \
         {first:?}, Q={QUARANTINE:?}"
    ));
    assert!(first >= QUARANTINE, "{first:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_and_a_first_replica_stop_no_grant() {
    let servers = RedlockDeployment::start(5).await;
    let brokers = servers.start_brokers(1).await;
    let client = Client::new("client", &addrs(&brokers), 0);
    // While two servers are paused, every grant needs the server that is changed.
    servers.pause([3, 4]).await;
    let server = &servers.servers()[0];
    let before = server.identity().await;
    let era = era_of(server).await;
    let no_delay = ["CONFIG", "SET", "repl-diskless-sync-delay", "0"];
    server.connect().await.must(&no_delay).await;
    let done = CancellationToken::new();
    let changes = async {
        take_backup(server).await;
        let replica = start_replica_of(server).await;
        done.cancel();
        replica
    };
    let grants = async {
        let (mut longest, mut granted) = ((Duration::ZERO, 0), 0);
        while !done.is_cancelled() || granted < scaled_count(400, 40) {
            let started_at = boottime();
            let held = client
                .acquire_at(0, &immediate_call(&format!("lock/{granted}")))
                .await;
            longest = longest.max((boottime() - started_at, granted));
            let held = held.expect("grants go on");
            client.release_at(0, &held).await.expect("it is held");
            granted += 1;
        }
        (longest, granted)
    };
    let (_replica, (longest, granted)) = tokio::join!(changes, grants);
    let after = server.identity().await;
    print_figures(&format!(
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
async fn a_holder_without_a_quorum_stops_before_another_is_granted() {
    let mut servers = RedlockDeployment::start(5).await;
    let brokers = servers.start_brokers(BROKERS).await;
    let endpoints = addrs(&brokers);
    let [holder, next] = ["holder", "next"].map(|name| Client::new(name, &endpoints, 0));
    for round in 0..scaled_count(10, 1) {
        let lock = format!("lost/{round}");
        // Only servers 0, 1 and 2 grant the lock.
        servers.pause([3, 4]).await;
        let call = AcquireCall::new(&lock, TTL, Duration::ZERO);
        let mut held = holder.acquire(&call).await.expect("a quorum is there");
        // Servers 3 and 4 receive the command too late to execute it.
        sleep(TOO_LATE).await;
        servers.kill(2).await;
        servers.resume([3, 4]);
        let waits = AcquireCall::new(&lock, TTL, Duration::from_secs(30));
        let granted = async { (next.acquire(&waits).await, boottime()) };
        let loss_notified = async {
            loop {
                sleep(TTL / 10).await;
                match holder.renew_at(0, &held).await {
                    // The validity begins when the renewal is sent.
                    Ok(renewed) => held = renewed,
                    Err(refused) => {
                        let over = error_reason(&refused);
                        if !held.is_trusted() {
                            return (held.valid_until(), over);
                        }
                    }
                }
            }
        };
        let both = timeout(LIMIT, async { tokio::join!(granted, loss_notified) }).await;
        let ((granted, granted_at), loss_notified) = both.expect("the lease cannot be renewed");
        let granted = granted.expect("a quorum is there, and the lease runs out");
        let (valid_until, over) = loss_notified;
        let apart = granted_at.saturating_sub(valid_until);
        print_figures(&format!(
            "redlock: a lease whose third server was lost was refused with {over:?} and valid until \
             {apart:?} before the next grant was told"
        ));
        assert!(over.is_some());
        assert!(granted.token() > held.token());
        assert!(granted_at >= valid_until, "valid beside the next grant");
        assert!(
            apart < store_expiry(TTL_MAX) + RECOVERED_WITHIN,
            "{apart:?}"
        );
        next.release(&granted).await.expect("it is held");
        servers.restart(2, RestartData::Kept).await;
        // The next round needs the vote of server 2.
        sleep(QUARANTINE).await;
    }
}
