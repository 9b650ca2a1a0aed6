//! Kill of a process that holds locks on a lease stream. The next waiter of each lock is granted it
//! when the lease has expired in the store, neither sooner nor much later.

use std::time::Duration;

use futures::future::join_all;
use leasehold_tests::{
    broker::deployment::Deployment,
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
    clock::boottime,
    load::store_expiry::{
        ExpiryReads, HolderExpiry, format_spread, read_expiry, store_expiry, watch_expiry,
    },
    process::{child::TestProcess, temp_dir::TempDir},
    scale::{print_figures, scaled_count},
};
use rand::Rng;
use tokio::{process::Command, time::sleep};
use tokio_util::sync::CancellationToken;

const TTL: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(60);
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum delay of a grant.
const TIME_LIMIT: Duration = Duration::from_millis(200);
/// Number of processes at the same time.
const ROUND: usize = 10;

/// A killed holder, and the later state of its lock.
#[derive(Debug)]
struct KilledHolder {
    /// Time before the signal.
    at: Duration,
    /// Expiry of the lock that was read before the signal.
    holder: HolderExpiry,
    /// Expiries that were read after the signal.
    looks: ExpiryReads,
    /// Time at which the next waiter received the grant.
    granted: Duration,
    token: i64,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_waiter_is_granted_a_killed_holders_lock_at_its_expiry() {
    let kills = kill_all("killed", None).await;
    let early = kills
        .iter()
        .filter(|k| k.granted < k.looks.last_expiry().earliest);
    let early = early.count();
    let late = |kill: &KilledHolder| kill.looks.delay_of(kill.granted);
    let after_kill = kills.iter().map(|k| k.granted - k.at).max();
    let renewed_late = kills.iter().filter(|k| k.looks.expiries.len() > 1).count();
    print_figures(&format!(
        "hold_kill: kills={} ttl=2000ms E=2650ms early={early} after_E: {} latest_after_kill={}ms \
         renewed_after_kill={renewed_late}",
        kills.len(),
        format_spread(kills.iter().map(late).collect()),
        after_kill.unwrap_or_default().as_millis()
    ));
    assert_eq!(early, 0, "granted before its time was over: {kills:#?}");
    for kill in &kills {
        let remaining = kill.looks.expiries[0].remaining;
        assert!(remaining <= store_expiry(TTL), "{kill:#?}");
        // The process sends a heartbeat in each third of the TTL. One heartbeat may have been slow.
        assert!(remaining + TTL * 2 / 3 >= store_expiry(TTL), "{kill:#?}");
        assert!(
            !kill.looks.has_too_many_reads_after_end(),
            "granted late: {kill:#?}"
        );
        let end = kill.looks.last_expiry().earliest;
        assert!(end <= kill.at + store_expiry(TTL) + TIME_LIMIT, "{kill:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_waiter_is_granted_a_killed_holders_lock_at_once_without_disconnect_grace() {
    let kills = kill_all("at-once", Some(Duration::ZERO)).await;
    let after = |kill: &KilledHolder| kill.granted - kill.at;
    print_figures(&format!(
        "hold_kill: disconnect_grace=0 kills={} ttl=2000ms granted_after_kill: {}",
        kills.len(),
        format_spread(kills.iter().map(after).collect())
    ));
    for kill in &kills {
        assert!(after(kill) <= TIME_LIMIT, "granted late: {kill:#?}");
    }
}

async fn kill_all(name: &str, disconnect_grace: Option<Duration>) -> Vec<KilledHolder> {
    let deployment = Deployment::start(2).await;
    let total = scaled_count(200, 20);
    let mut kills: Vec<KilledHolder> = Vec::new();
    while kills.len() < total {
        let from = kills.len();
        let round = (from..total.min(from + ROUND)).map(async |index| {
            let lock = format!("{name}-{index}");
            let holder = hold(&deployment, &lock, disconnect_grace).await;
            kill(&deployment, &lock, index, holder).await
        });
        kills.extend(join_all(round).await);
    }
    for kill in &kills {
        let ends = kill.looks.expiries.iter();
        let others = ends.filter(|seen| seen.lease_id != kill.holder.lease_id);
        assert_eq!(others.count(), 0, "a caller held it in between: {kill:#?}");
        assert!(kill.token > kill.holder.token, "{kill:#?}");
    }
    kills
}

/// Starts a process that holds the lock at the first broker.
async fn hold(
    deployment: &Deployment,
    lock: &str,
    disconnect_grace: Option<Duration>,
) -> (TestProcess, TempDir) {
    let dir = TempDir::new("hold-locks");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hold_locks"));
    command.arg(format!("--endpoint={}", deployment.addrs()[0]));
    command.arg(format!("--ttl-ms={}", TTL.as_millis()));
    command.args(disconnect_grace.map(|g| format!("--disconnect-grace-ms={}", g.as_millis())));
    command.arg(lock);
    let log = dir.path().join("stderr.log");
    let (process, _) = TestProcess::start(command, &log, &["held"]).await;
    (process, dir)
}

/// Kills the holder at a random moment. A waiter is queued at one of the two brokers.
async fn kill(
    deployment: &Deployment,
    lock: &str,
    index: usize,
    (mut process, _dir): (TestProcess, TempDir),
) -> KilledHolder {
    let addrs = deployment.addrs();
    let client = Client::new("observer", &addrs, 0);
    let mut waiter = StreamClient::open(addrs[index % 2]).await;
    waiter.start_heartbeats(HEARTBEAT_INTERVAL);
    let call = waiter.acquire(&AcquireCall::new(lock, TTL, WAIT), 1).await;
    client.wait_for_queue_length_at(1, lock, 1).await;
    let phase = TTL.mul_f64(rand::thread_rng().gen_range(0.0..1.0));
    sleep(phase).await;
    let holder = read_expiry(&client, 1, lock).await.expect("it is held");
    let at = boottime();
    process.kill().await;
    let stop = CancellationToken::new();
    let turn = async {
        let granted = waiter.wait_for_grant(call).await.expect("the stream lives");
        let at = boottime();
        stop.cancel();
        (granted.lease.expect("a lease"), at)
    };
    let ((lease, granted), mut looks) = tokio::join!(turn, watch_expiry(&client, 1, lock, &stop));
    looks
        .expiries
        .retain(|seen| seen.lease_id != lease.lease_id);
    let token = lease.grants[0].fencing_token;
    KilledHolder {
        at,
        holder,
        looks,
        granted,
        token,
    }
}
