//! A process that holds locks on a lease stream is killed: the next in line gets each of them when
//! the store's time for it is over, and neither sooner nor much later.

use std::time::Duration;

use futures::future::join_all;
use leasehold_tests::{
    client::{AcquireCall, Client},
    clock::boottime,
    deployment::Deployment,
    process::TestProcess,
    scale::{count, figures},
    stream_client::StreamClient,
    temp_dir::TempDir,
    time_left::{Looks, TimeLeft, expiry, look, spread, watch},
};
use rand::Rng;
use tokio::{process::Command, time::sleep};
use tokio_util::sync::CancellationToken;

const TTL: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(60);
const BEAT: Duration = Duration::from_millis(500);
/// How late a grant may be.
const SOON: Duration = Duration::from_millis(200);
/// Processes at the same time.
const ROUND: usize = 10;

/// One holder killed, and what became of its lock.
#[derive(Debug)]
struct Kill {
    /// Before the signal.
    at: Duration,
    /// What the record said before that.
    holder: TimeLeft,
    /// After that.
    looks: Looks,
    /// When the next in line was told.
    granted: Duration,
    token: i64,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holder_is_followed_when_its_time_is_over() {
    let kills = kill_all("killed", None).await;
    let early = kills.iter().filter(|k| k.granted < k.looks.end().earliest);
    let early = early.count();
    let late = |kill: &Kill| kill.looks.late(kill.granted);
    let after_kill = kills.iter().map(|k| k.granted - k.at).max();
    let renewed_late = kills.iter().filter(|k| k.looks.ends.len() > 1).count();
    figures(&format!(
        "hold_kill: kills={} ttl=2000ms E=2650ms early={early} after_E: {} latest_after_kill={}ms \
         renewed_after_kill={renewed_late}",
        kills.len(),
        spread(kills.iter().map(late).collect()),
        after_kill.unwrap_or_default().as_millis()
    ));
    assert_eq!(early, 0, "granted before its time was over: {kills:#?}");
    for kill in &kills {
        let remaining = kill.looks.ends[0].remaining;
        assert!(remaining <= expiry(TTL), "{kill:#?}");
        // It had a heartbeat in each third of the ttl; one may have been slow.
        assert!(remaining + TTL * 2 / 3 >= expiry(TTL), "{kill:#?}");
        assert!(!kill.looks.are_too_many(), "granted late: {kill:#?}");
        let end = kill.looks.end().earliest;
        assert!(end <= kill.at + expiry(TTL) + SOON, "{kill:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holder_without_disconnect_grace_is_followed_at_once() {
    let kills = kill_all("at-once", Some(Duration::ZERO)).await;
    let after = |kill: &Kill| kill.granted - kill.at;
    figures(&format!(
        "hold_kill: disconnect_grace=0 kills={} ttl=2000ms granted_after_kill: {}",
        kills.len(),
        spread(kills.iter().map(after).collect())
    ));
    for kill in &kills {
        assert!(after(kill) <= SOON, "granted late: {kill:#?}");
    }
}

async fn kill_all(name: &str, disconnect_grace: Option<Duration>) -> Vec<Kill> {
    let deployment = Deployment::start(2).await;
    let total = count(200, 20);
    let mut kills: Vec<Kill> = Vec::new();
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
        let ends = kill.looks.ends.iter();
        let others = ends.filter(|seen| seen.lease_id != kill.holder.lease_id);
        assert_eq!(others.count(), 0, "somebody held it in between: {kill:#?}");
        assert!(kill.token > kill.holder.token, "{kill:#?}");
    }
    kills
}

/// A process that holds the lock at the first broker.
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

/// Kills the holder at a random moment, with a waiter in line at either broker.
async fn kill(
    deployment: &Deployment,
    lock: &str,
    index: usize,
    (mut process, _dir): (TestProcess, TempDir),
) -> Kill {
    let addrs = deployment.addrs();
    let client = Client::new("observer", &addrs, 0);
    let mut waiter = StreamClient::open(addrs[index % 2]).await;
    waiter.beat(BEAT);
    let call = waiter.acquire(&AcquireCall::new(lock, TTL, WAIT), 1).await;
    client.queued_at(1, lock, 1).await;
    let phase = TTL.mul_f64(rand::thread_rng().gen_range(0.0..1.0));
    sleep(phase).await;
    let holder = look(&client, 1, lock).await.expect("it is held");
    let at = boottime();
    process.kill().await;
    let stop = CancellationToken::new();
    let turn = async {
        let granted = waiter.turn(call).await.expect("the stream lives");
        let at = boottime();
        stop.cancel();
        (granted.lease.expect("a lease"), at)
    };
    let ((lease, granted), mut looks) = tokio::join!(turn, watch(&client, 1, lock, &stop));
    looks.ends.retain(|seen| seen.lease_id != lease.lease_id);
    let token = lease.grants[0].fencing_token;
    Kill {
        at,
        holder,
        looks,
        granted,
        token,
    }
}
