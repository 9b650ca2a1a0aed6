//! A machine sleeps for five minutes while a process on it holds a lock with the Rust client: the
//! process sees CLOCK_BOOTTIME step ahead and no other clock, and is told at once of its loss.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]

use std::{sync::Arc, time::Duration};

use leasehold::Client as Sdk;
use leasehold_tests::{
    ahead::Ahead,
    client::Client,
    clock::{boottime, boottime_of},
    deployment::Deployment,
    process::TestProcess,
    resource::{Line, Report, Resource},
    scale::{duration, figures},
    temp_dir::TempDir,
    time_left::{TimeLeft, expiry, look},
    witness::Witness,
};
use tokio::{
    process::Command,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

const TTL: Duration = Duration::from_secs(10);
const SLEPT: Duration = Duration::from_secs(300);
/// The loss is to be reported within this time.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How exactly a step of 300 s must have been seen.
const ABOUT: Duration = Duration::from_secs(5);
/// A heartbeat that is due may be slow.
const LATE: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(60);
const GIVE_UP: Duration = Duration::from_secs(20);

/// A process with a lock of its own, and somebody who waits for that.
struct Holder {
    lock: &'static str,
    resource: Resource,
    /// When the next in line was granted the lock, by the store's clock.
    turn: AbortOnDropHandle<Duration>,
    _process: TestProcess,
    _dir: TempDir,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspend_ends_trust_at_once() {
    let deployment = Deployment::start(1).await;
    let observer = Client::new("observer", &deployment.addrs(), 0);
    let ahead = Ahead::build().await;
    let witness = Arc::new(Witness::new(3));
    let resource = async |index| Resource::start(&witness, index).await;
    let writes = Holder::start(&deployment, "writes", resource(0).await, Some(&ahead)).await;
    let waits = Holder::start(&deployment, "waits", resource(1).await, Some(&ahead)).await;
    let awake = Holder::start(&deployment, "awake", resource(2).await, None).await;

    // Longer than any of them could trust without heartbeats.
    sleep(TTL + AT_ONCE).await;
    let held = [
        writes.held(&observer).await,
        waits.held(&observer).await,
        awake.held(&observer).await,
    ];
    let stepped = boottime();
    ahead.set(SLEPT);
    let mut losses = Vec::new();
    for (holder, before) in [&writes, &waits].into_iter().zip(&held) {
        let is_told = |line: &Line| matches!(line.report, Report::Lost { .. });
        let told = timeout(GIVE_UP, holder.resource.heard(is_told)).await;
        let told = told.expect("told in time");
        let Report::Lost { at, is_valid } = told.report else {
            panic!("{told:?} is not the loss")
        };
        // On the clock that everybody else has.
        let lost = at.saturating_sub(SLEPT);
        losses.push(lost);
        let left = holder.left_of(&observer, before, lost).await;
        let (after, ahead_by) = (told.received - stepped, at.saturating_sub(told.received));
        figures(&format!(
            "sdk_suspend {}: CLOCK_BOOTTIME set {}s ahead, seen {}ms ahead; loss_reported_after={}ms \
             is_valid={is_valid} left_in_the_store={}ms granted_to_others_before=0",
            holder.lock,
            SLEPT.as_secs(),
            ahead_by.as_millis(),
            after.as_millis(),
            left.as_millis()
        ));
        assert!(after <= AT_ONCE, "told {after:?} after the step");
        assert!(ahead_by.abs_diff(SLEPT) < ABOUT, "{ahead_by:?} ahead");
        assert!(!is_valid, "it is lost, and trusted");
        let lines = holder.resource.lines();
        let trusted = lines
            .iter()
            .filter(|line| line.asked() > Some(stepped + SLEPT / 2));
        assert_eq!(trusted.count(), 0, "trusted after the step");
    }

    let rest = duration(TTL * 3, TTL / 3);
    sleep((stepped + rest).saturating_sub(boottime())).await;
    let now = boottime();
    let is_new_write = |line: &Line| line.received > now && is_write(line);
    let write = timeout(GIVE_UP, awake.resource.heard(is_new_write)).await;
    write.expect("it writes on");
    let left = awake.is_held_still(&observer, &held[2]).await;
    figures(&format!(
        "sdk_suspend awake: its clock was left alone, writes {}ms after the step, \
         left_in_the_store={}ms granted_to_others=0",
        (now - stepped).as_millis(),
        left.as_millis()
    ));
    awake.held(&observer).await;
    for (holder, lost) in [writes, waits].into_iter().zip(losses) {
        let turn = timeout(GIVE_UP, holder.turn).await;
        let granted = turn.expect("its turn comes").expect("no panic");
        assert!(granted >= lost, "{}: granted while trusted", holder.lock);
    }
}

impl Holder {
    async fn start(
        deployment: &Deployment,
        lock: &'static str,
        resource: Resource,
        ahead: Option<&Ahead>,
    ) -> Self {
        let endpoint = format!("http://{}", deployment.addrs()[0]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_guarded_writer"));
        command.arg(format!("--endpoint={endpoint}"));
        command.arg(format!("--resource={}", resource.addr()));
        command.arg(format!("--ttl-ms={}", TTL.as_millis()));
        command
            .args((lock == "waits").then_some("--idle"))
            .arg(lock);
        if let Some(ahead) = ahead {
            ahead.apply(&mut command);
        }
        let dir = TempDir::new("guarded-writer");
        let log = dir.path().join("stderr.log");
        let (process, _) = TestProcess::start(command, &log, &["held"]).await;
        let next = Sdk::connect(&endpoint).await.expect("a broker that runs");
        let turn = tokio::spawn(async move {
            let turn = next.lock(lock).ttl(TTL).wait(WAIT).acquire().await;
            let turn = turn.expect("its turn");
            let granted = granted_at(turn.fencing_token());
            turn.release().await.expect("it is held");
            granted
        });
        let observer = Client::new("observer", &deployment.addrs(), 0);
        observer.queued_at(0, lock, 1).await;
        Self {
            lock,
            resource,
            turn: AbortOnDropHandle::new(turn),
            _process: process,
            _dir: dir,
        }
    }

    /// What the store says while heartbeats arrive, and no loss was reported.
    async fn held(&self, observer: &Client) -> TimeLeft {
        let lines = self.resource.lines();
        let lost = lines.iter().find(|line| !is_write(line));
        assert!(lost.is_none(), "lost without a reason: {lost:?}");
        let held = look(observer, 0, self.lock).await.expect("it is held");
        let renewed = held.remaining + TTL / 3 + LATE >= expiry(TTL);
        assert!(renewed, "heartbeats arrive: {held:?}");
        held
    }

    /// For how much longer the store holds the lock for it; nothing once it has stopped and given the lock back,
    /// which it does after it has found the loss. Only then somebody else may hold it.
    async fn left_of(&self, observer: &Client, before: &TimeLeft, lost: Duration) -> Duration {
        let Some(now) = look(observer, 0, self.lock).await else {
            return Duration::ZERO;
        };
        if now.lease_id == before.lease_id {
            return now.remaining;
        }
        assert!(granted_at(now.token) >= lost, "granted to others: {now:?}");
        Duration::ZERO
    }

    /// The store holds the lock for nobody else; for how much longer.
    async fn is_held_still(&self, observer: &Client, before: &TimeLeft) -> Duration {
        let now = look(observer, 0, self.lock).await.expect("it is held");
        assert_eq!((&now.lease_id, now.token), (&before.lease_id, before.token));
        assert!(!self.turn.is_finished(), "granted to somebody else");
        now.remaining
    }
}

/// A fencing token is the store's time of the grant.
fn granted_at(token: i64) -> Duration {
    let token = u64::try_from(token);
    boottime_of(token.expect("a fencing token is positive"))
}

fn is_write(line: &Line) -> bool {
    line.asked().is_some()
}
