//! Kill of a broker with many lease streams. No lease is lost, clients reconnect within seconds,
//! and queues keep their order.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold_tests::{
    broker::deployment::Deployment,
    client::{
        session::{LeaseEnd, SessionClient, SessionLease},
        unary::{AcquireCall, Client},
    },
    clock::boottime,
    scale::{print_figures, scaled_count},
};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

const TTL: Duration = Duration::from_secs(10);
/// Expiry in the store for this TTL.
const EXPIRY: Duration = Duration::from_millis(12_250);
const CLIENTS: usize = 20;
const BACK_WITHIN: Duration = Duration::from_secs(3);
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

const QUEUES: usize = 4;
const WAITERS: usize = 50;
const WAITING_CLIENTS: usize = 10;
/// Time for which the holders continue to work after the crash.
const WORK: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn no_lease_is_lost_with_its_broker() {
    let mut deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let each = scaled_count(2_000, 200) / CLIENTS;
    let client = |index| SessionClient::start(&format!("client-{index}"), &addrs, index);
    let holders: Vec<_> = (0..CLIENTS).map(client).collect();
    let takes = holders
        .iter()
        .enumerate()
        .map(|(index, holder)| acquire_leases(holder, index, each));
    let kept = join_all(takes).await;
    let acknowledged = kept.iter().flatten().map(acknowledged);
    let acknowledged = timeout(TEST_TIMEOUT, join_all(acknowledged)).await;
    acknowledged.expect("every lease is renewed");

    let killed_at = kill(&mut deployment).await;
    let moved: Vec<_> = kept.iter().step_by(2).flatten().collect();
    let back = moved
        .iter()
        .map(|kept| time_until_attached(kept, killed_at));
    let back = timeout(TEST_TIMEOUT, join_all(back)).await;
    let mut back = back.expect("every lease is attached again, or over");
    back.sort();
    // By this time the store has expired all leases that were not renewed after the crash.
    sleep((killed_at + EXPIRY + Duration::from_secs(1)).saturating_sub(boottime())).await;
    let observer = Client::new("observer", &addrs[1..], 0);
    let checks = kept.iter().flatten().map(|kept| is_same(&observer, kept));
    let same = join_all(checks).await;
    let lost = same.iter().filter(|is_same| !**is_same).count();
    let at = |part: usize| back[(back.len() - 1) * part / 100].as_millis();
    print_figures(&format!(
        "hold_crash: leases={} moved={} lost_or_changed={lost} reattach_p50={}ms p99={}ms max={}ms",
        same.len(),
        back.len(),
        at(50),
        at(99),
        at(100)
    ));
    assert_eq!(
        (same.len(), back.len()),
        (each * CLIENTS, each * CLIENTS / 2)
    );
    assert_eq!(lost, 0, "leases that were lost or changed their token");
    assert!(
        at(99) < BACK_WITHIN.as_millis(),
        "clients are back too late"
    );
    for holder in holders {
        holder.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_keep_their_order_when_a_broker_dies() {
    let mut deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let owner = SessionClient::start("holder", &addrs, 1);
    let held = join_all((0..QUEUES).map(|line| {
        let call = AcquireCall::new(&queue_name(line), TTL, Duration::ZERO);
        let owner = &owner;
        async move { owner.acquire(&call).await.expect("it is free") }
    }))
    .await;
    let client = |index| SessionClient::start(&format!("waiter-{index}"), &addrs, index);
    let waiters: Vec<_> = (0..WAITING_CLIENTS).map(client).map(Arc::new).collect();
    let observer = Client::new("observer", &addrs[1..], 0);
    let mut lines: Vec<Vec<_>> = (0..QUEUES).map(|_| Vec::new()).collect();
    for place in 0..WAITERS {
        for (line, queue) in lines.iter_mut().enumerate() {
            let waiter = Arc::clone(&waiters[(place + line) % WAITING_CLIENTS]);
            let call = AcquireCall::new(&queue_name(line), TTL, TEST_TIMEOUT);
            let turn = tokio::spawn(async move {
                let kept = waiter.acquire(&call).await.expect("its turn");
                let end = waiter.release(&kept).await;
                (kept.token(), end)
            });
            queue.push(AbortOnDropHandle::new(turn));
            observer
                .wait_for_queue_length_at(0, &queue_name(line), place + 1)
                .await;
        }
    }
    let killed_at = kill(&mut deployment).await;
    let returned = waiters
        .iter()
        .step_by(2)
        .map(|waiter| waiter.wait_for_opened_streams(2));
    let returned = timeout(TEST_TIMEOUT, join_all(returned)).await;
    returned.expect("every client of the dead broker is back");
    let back = boottime() - killed_at;
    sleep((killed_at + WORK).saturating_sub(boottime())).await;
    for line in 0..QUEUES {
        observer
            .wait_for_queue_length_at(0, &queue_name(line), WAITERS)
            .await;
    }
    for kept in &held {
        assert_eq!(owner.release(kept).await, LeaseEnd::Released);
    }
    let mut inversions = 0;
    for (held, line) in held.iter().zip(lines) {
        let turns = timeout(TEST_TIMEOUT, join_all(line)).await;
        let turns = turns.expect("every waiter gets a turn");
        let turns = turns.into_iter().map(|turn| turn.expect("no panic"));
        let (tokens, ends): (Vec<_>, Vec<_>) = turns.unzip();
        assert_eq!(
            ends,
            [LeaseEnd::Released; WAITERS],
            "each gave its lock back"
        );
        assert!(held.token() < tokens[0]);
        inversions += tokens.windows(2).filter(|two| two[0] >= two[1]).count();
    }
    print_figures(&format!(
        "hold_crash: lines={QUEUES} in_line={WAITERS} clients_back={}ms inversions={inversions} \
         all_served={}ms after the release",
        back.as_millis(),
        (boottime() - killed_at - WORK).as_millis()
    ));
    assert_eq!(inversions, 0, "grants out of the order of joining");
}

fn queue_name(line: usize) -> String {
    format!("line-{line}")
}

/// Kills the first broker with SIGKILL. Returns the time immediately before the signal.
async fn kill(deployment: &mut Deployment) -> Duration {
    let broker = &mut deployment.brokers[0];
    let killed_at = boottime();
    broker.kill().await;
    let refused = TcpStream::connect(broker.addr()).await;
    assert!(refused.is_err(), "a killed broker refuses");
    killed_at
}

async fn acquire_leases(holder: &SessionClient, client: usize, leases: usize) -> Vec<SessionLease> {
    let takes = (0..leases).map(|index| async move {
        let call = AcquireCall::new(&format!("lock-{client}-{index}"), TTL, Duration::ZERO);
        holder.acquire(&call).await.expect("it is free")
    });
    join_all(takes).await
}

async fn acknowledged(kept: &SessionLease) {
    kept.wait_until(|known| known.acknowledged_at.is_some())
        .await;
}

/// Returns the time from the crash until the lease was attached again, or until it ended if that
/// happened first.
async fn time_until_attached(kept: &SessionLease, killed_at: Duration) -> Duration {
    let is_settled = |at: Option<Duration>| at.is_some_and(|at| at > killed_at);
    let known = kept
        .wait_until(|known| is_settled(known.attached_at) || known.end.is_some())
        .await;
    let ended_at = known.end.map(|(at, _)| at);
    known.attached_at.or(ended_at).unwrap_or_default() - killed_at
}

/// Returns true if the lease is valid and the store holds it with the same token.
async fn is_same(observer: &Client, kept: &SessionLease) -> bool {
    let target = kept.lease.grants[0].target.as_ref();
    let name = &target.expect("a grant names its lock").name;
    let lock = observer.get_lock(name).await.expect("GetLock works");
    let holder = lock.and_then(|lock| lock.holders.into_iter().next());
    kept.is_trusted()
        && kept.state().end.is_none()
        && holder.is_some_and(|holder| {
            holder.lease_id == kept.lease.lease_id && holder.fencing_token == kept.token()
        })
}
