//! A simulated suspend of five minutes while a process holds a lock with the Rust client. In this
//! process only CLOCK_BOOTTIME steps ahead, and the guard reports the loss immediately.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]

use std::{sync::Arc, time::Duration};

use leasehold::Client as Sdk;
use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::Client,
    clock::{boottime, boottime_from_store},
    load::{
        mutual_exclusion_oracle::Oracle,
        store_expiry::{HolderExpiry, read_expiry, store_expiry},
    },
    process::{boottime_shim::BoottimeShim, child::TestProcess, temp_dir::TempDir},
    scale::{print_figures, scaled_duration},
    sdk::resource::{Report, ReportLine, Resource},
};
use tokio::{
    process::Command,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

const TTL: Duration = Duration::from_secs(10);
const SUSPENDED_FOR: Duration = Duration::from_secs(300);
/// Time within which the loss must be reported.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Tolerance for the step of 300 s that the process measures.
const STEP_TOLERANCE: Duration = Duration::from_secs(5);
/// Tolerance for a heartbeat that is due.
const HEARTBEAT_TOLERANCE: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(60);
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A process that holds a lock, and a waiter for this lock.
struct Holder {
    lock: &'static str,
    resource: Resource,
    /// Time at which the waiter was granted the lock, by the store's clock.
    turn: AbortOnDropHandle<Duration>,
    _process: TestProcess,
    _dir: TempDir,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspend_ends_the_validity_at_once() {
    let deployment = Deployment::start(1).await;
    let observer = Client::new("observer", &deployment.addrs(), 0);
    let shim = BoottimeShim::build().await;
    let witness = Arc::new(Oracle::new(3));
    let resource = async |index| Resource::start(&witness, index).await;
    let writes = Holder::start(&deployment, "writes", resource(0).await, Some(&shim)).await;
    let waits = Holder::start(&deployment, "waits", resource(1).await, Some(&shim)).await;
    let awake = Holder::start(&deployment, "awake", resource(2).await, None).await;

    // Longer than any of the leases is valid without heartbeats.
    sleep(TTL + AT_ONCE).await;
    let held = [
        writes.holder_in_store(&observer).await,
        waits.holder_in_store(&observer).await,
        awake.holder_in_store(&observer).await,
    ];
    let stepped = boottime();
    shim.set_offset(SUSPENDED_FOR);
    let mut losses = Vec::new();
    for (holder, before) in [&writes, &waits].into_iter().zip(&held) {
        let is_told = |line: &ReportLine| matches!(line.report, Report::Lost { .. });
        let loss_line = timeout(TEST_TIMEOUT, holder.resource.wait_for_line(is_told)).await;
        let loss_line = loss_line.expect("notified in time");
        let Report::Lost { at, is_valid } = loss_line.report else {
            panic!("{loss_line:?} is not the loss")
        };
        // Converted to the clock of the other processes.
        let lost = at.saturating_sub(SUSPENDED_FOR);
        losses.push(lost);
        let left = holder.remaining_after_loss(&observer, before, lost).await;
        let (after, ahead_by) = (
            loss_line.received_at - stepped,
            at.saturating_sub(loss_line.received_at),
        );
        print_figures(&format!(
            "sdk_suspend {}: CLOCK_BOOTTIME set {}s ahead, seen {}ms ahead; loss_reported_after={}ms \
             is_valid={is_valid} left_in_the_store={}ms granted_to_others_before=0",
            holder.lock,
            SUSPENDED_FOR.as_secs(),
            ahead_by.as_millis(),
            after.as_millis(),
            left.as_millis()
        ));
        assert!(after <= AT_ONCE, "notified {after:?} after the step");
        assert!(
            ahead_by.abs_diff(SUSPENDED_FOR) < STEP_TOLERANCE,
            "{ahead_by:?} ahead"
        );
        assert!(!is_valid, "it is lost, and trusted");
        let lines = holder.resource.lines();
        let trusted = lines
            .iter()
            .filter(|line| line.checked_at() > Some(stepped + SUSPENDED_FOR / 2));
        assert_eq!(trusted.count(), 0, "trusted after the step");
    }

    let rest = scaled_duration(TTL * 3, TTL / 3);
    sleep((stepped + rest).saturating_sub(boottime())).await;
    let now = boottime();
    let is_new_write = |line: &ReportLine| line.received_at > now && is_write(line);
    let write = timeout(TEST_TIMEOUT, awake.resource.wait_for_line(is_new_write)).await;
    write.expect("it writes on");
    let left = awake.assert_still_held(&observer, &held[2]).await;
    print_figures(&format!(
        "sdk_suspend awake: its clock was left alone, writes {}ms after the step, \
         left_in_the_store={}ms granted_to_others=0",
        (now - stepped).as_millis(),
        left.as_millis()
    ));
    awake.holder_in_store(&observer).await;
    for (holder, lost) in [writes, waits].into_iter().zip(losses) {
        let turn = timeout(TEST_TIMEOUT, holder.turn).await;
        let granted = turn.expect("its turn comes").expect("no panic");
        assert!(granted >= lost, "{}: granted while trusted", holder.lock);
    }
}

impl Holder {
    async fn start(
        deployment: &Deployment,
        lock: &'static str,
        resource: Resource,
        shim: Option<&BoottimeShim>,
    ) -> Self {
        let endpoint = format!("http://{}", deployment.addrs()[0]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_guarded_writer"));
        command.arg(format!("--endpoint={endpoint}"));
        command.arg(format!("--resource={}", resource.addr()));
        command.arg(format!("--ttl-ms={}", TTL.as_millis()));
        command
            .args((lock == "waits").then_some("--idle"))
            .arg(lock);
        if let Some(shim) = shim {
            shim.apply(&mut command);
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
        observer.wait_for_queue_length_at(0, lock, 1).await;
        Self {
            lock,
            resource,
            turn: AbortOnDropHandle::new(turn),
            _process: process,
            _dir: dir,
        }
    }

    /// Returns the lease in the store. Asserts that its heartbeats arrive, and that no loss was
    /// reported.
    async fn holder_in_store(&self, observer: &Client) -> HolderExpiry {
        let lines = self.resource.lines();
        let lost = lines.iter().find(|line| !is_write(line));
        assert!(lost.is_none(), "lost without a reason: {lost:?}");
        let held = read_expiry(observer, 0, self.lock)
            .await
            .expect("it is held");
        let renewed = held.remaining + TTL / 3 + HEARTBEAT_TOLERANCE >= store_expiry(TTL);
        assert!(renewed, "heartbeats arrive: {held:?}");
        held
    }

    /// Returns the remaining time of the lease in the store. The time is zero if the process has
    /// released the lock, which it does after it has detected the loss. Asserts that another holder
    /// was granted the lock only after that.
    async fn remaining_after_loss(
        &self,
        observer: &Client,
        before: &HolderExpiry,
        lost: Duration,
    ) -> Duration {
        let Some(now) = read_expiry(observer, 0, self.lock).await else {
            return Duration::ZERO;
        };
        if now.lease_id == before.lease_id {
            return now.remaining;
        }
        assert!(granted_at(now.token) >= lost, "granted to others: {now:?}");
        Duration::ZERO
    }

    /// Asserts that the lock still has the same holder, and returns the remaining time of the
    /// lease.
    async fn assert_still_held(&self, observer: &Client, before: &HolderExpiry) -> Duration {
        let now = read_expiry(observer, 0, self.lock)
            .await
            .expect("it is held");
        assert_eq!((&now.lease_id, now.token), (&before.lease_id, before.token));
        assert!(!self.turn.is_finished(), "granted to another caller");
        now.remaining
    }
}

/// Returns the store's time of a grant, which is its fencing token.
fn granted_at(token: i64) -> Duration {
    let token = u64::try_from(token);
    boottime_from_store(token.expect("a fencing token is positive"))
}

fn is_write(line: &ReportLine) -> bool {
    line.checked_at().is_some()
}
