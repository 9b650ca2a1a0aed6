//! A process that holds a lock with the Rust client is stopped for longer than its validity, and
//! resumed after another client has acquired the lock. Its guard is invalid at the first check.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold::{Client as Sdk, LostReason};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::Client,
    clock::boottime,
    load::{
        mutual_exclusion_oracle::{LockUse, Oracle, Share},
        store_expiry::{format_spread, read_expiry},
    },
    process::{child::TestProcess, temp_dir::TempDir},
    scale::{print_figures, scaled_count},
    sdk::resource::{Report, ReportLine, Resource},
};
use rand::Rng;
use tokio::{
    process::Command,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

const TTL: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(60);
/// Time within which a renewal in transit reaches the store.
const TRANSIT_TIME: Duration = Duration::from_millis(300);
const TEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of concurrent processes.
const ROUND: usize = 10;
/// One in `WORKING` holders works between the check of its guard and the write.
const WORKING: usize = 4;
const WORK: Duration = Duration::from_millis(2);

/// Record of a holder that was stopped and resumed.
#[derive(Debug)]
struct Pause {
    index: usize,
    /// Time immediately before the holder was resumed.
    resumed: Duration,
    /// Time at which the next waiter was granted the lock.
    granted: Duration,
    /// Lower bound of the expiry of the holder's lease.
    earliest: Duration,
    /// Reports of the holder before it was stopped.
    before: Vec<ReportLine>,
    /// Reports of the holder after it was resumed.
    after: Vec<ReportLine>,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_holder_reports_its_loss_before_any_check() {
    let (pauses, oracle) = pause_all("guarded", false, scaled_count(200, 20)).await;
    let mut gaps = 0;
    for pause in &pauses {
        // One write may have been checked before the stop. No other write precedes the first failed
        // check.
        let unaware = pause.before_refused();
        assert!(unaware.len() <= 1, "{pause:#?}");
        for write in &unaware {
            let is_old = write.checked_at() < Some(pause.resumed);
            assert!(is_old, "trusted when it went on: {pause:#?}");
            assert!(write.is_stale && !write.is_accepted, "{pause:#?}");
        }
        gaps += unaware.len();
        pause.is_told();
    }
    let distance = |pause: &Pause| pause.granted.checked_sub(trusted_until(&pause.before));
    let distances: Option<Vec<_>> = pauses.iter().map(distance).collect();
    let distances = distances.expect("trusted when another caller had it");
    let delays = pauses.iter().map(|pause| pause.delays() - pause.resumed);
    let verdict = oracle.verdict();
    print_figures(&format!(
        "sdk_pause: rounds={} ttl=2000ms stopped>=3000ms first_answer_no={} trusted_again=0 \
         written_past_the_check={gaps} refused_by_the_fence={} accepted_stale={} \
         distrusted_before_the_next_grant>={}ms loss_reported_after_SIGCONT: {} overlaps={} \
         regressions={}",
        pauses.len(),
        pauses.len(),
        verdict.rejected_writes,
        accepted_stale(&pauses),
        distances
            .iter()
            .min()
            .unwrap_or(&Duration::ZERO)
            .as_millis(),
        format_spread(delays.collect()),
        verdict.overlaps,
        verdict.regressions,
    ));
    assert_eq!(accepted_stale(&pauses), 0);
    assert_eq!(
        (verdict.rejected_writes, verdict.fence_violations),
        (gaps, 0)
    );
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_holder_that_does_not_check_keeps_writing() {
    let (pauses, oracle) = pause_all("careless", true, scaled_count(40, 10)).await;
    let stale = |pause: &Pause| pause.after.iter().filter(|line| line.is_stale).count();
    let written: usize = pauses.iter().map(stale).sum();
    let verdict = oracle.verdict();
    print_figures(&format!(
        "sdk_pause careless: rounds={} with_stale_writes={} stale_writes={written} \
         refused_by_the_fence={} accepted_stale={} overlaps={} regressions={}",
        pauses.len(),
        pauses.iter().filter(|pause| stale(pause) > 0).count(),
        verdict.rejected_writes,
        accepted_stale(&pauses),
        verdict.overlaps,
        verdict.regressions
    ));
    // The fenced resource rejects the writes that the unfenced resource accepts.
    assert!(pauses.iter().all(|pause| stale(pause) > 0), "{pauses:#?}");
    assert_eq!(
        (verdict.rejected_writes, accepted_stale(&pauses)),
        (written, 0)
    );
    assert_eq!((verdict.fence_violations, verdict.regressions), (0, 0));
    assert_eq!(verdict.overlaps, pauses.len(), "the referee sees them");
}

impl Pause {
    /// Returns the index of the first failed check of the guard.
    fn refused_at(&self) -> usize {
        let is_refused = |line: &ReportLine| matches!(line.report, Report::Rejected { .. });
        let first = self.after.iter().position(is_refused);
        first.unwrap_or_else(|| panic!("it never noticed: {self:#?}"))
    }

    /// Returns the writes after the stop and before the first failed check of the guard.
    fn before_refused(&self) -> Vec<&ReportLine> {
        let first = self.after[..self.refused_at()].iter();
        first.filter(|line| line.checked_at().is_some()).collect()
    }

    /// Asserts that the holder writes nothing after the first failed check, although it continues
    /// to check its guard. The guard must also report the loss without a check, and when it is
    /// released.
    fn is_told(&self) {
        let rest = &self.after[self.refused_at()..];
        let writes = rest
            .iter()
            .filter(|line| line.checked_at().is_some())
            .count();
        assert_eq!(writes, 0, "trusted again: {self:#?}");
        let Report::Rejected { reason, .. } = &rest[0].report else {
            panic!("its guard says no: {self:#?}")
        };
        assert_eq!(*reason, LostReason::Expired.to_string());
        let is_valid = self.after.iter().find_map(|line| match line.report {
            Report::Lost { is_valid, .. } => Some(is_valid),
            Report::Write { .. } | Report::Rejected { .. } | Report::Released(_) => None,
        });
        assert_eq!(is_valid, Some(false), "{self:#?}");
        let Some(Report::Released(how)) = rest.last().map(|line| &line.report) else {
            panic!("it ended without a release: {self:#?}")
        };
        assert!(how.contains("ended before"), "{how}");
    }

    /// Returns the time at which the holder had reported the loss.
    fn delays(&self) -> Duration {
        let is_lost = |line: &&ReportLine| matches!(line.report, Report::Lost { .. });
        let lost = self.after.iter().find(is_lost);
        lost.expect("notified").received_at
    }

    /// Records with the oracle the period in which the holder relied on the lock.
    fn record(&self, oracle: &Oracle, token: i64) {
        let writes = self.after.iter().filter(|line| line.checked_at().is_some());
        let careless = writes.filter(|line| line.checked_at() >= Some(self.resumed));
        let written = careless.map(|line| line.received_at).max();
        oracle.record(LockUse {
            lock: self.index,
            share: Share::ALL,
            token,
            started_at: self.before.first().expect("it has written").received_at,
            ended_at: written.unwrap_or_else(|| trusted_until(&self.before)),
        });
    }
}

/// Returns the latest end of the validity in the reports of the holder.
fn trusted_until(lines: &[ReportLine]) -> Duration {
    let until = lines.iter().filter_map(|line| match line.report {
        Report::Write {
            valid_until: until, ..
        } => Some(until),
        Report::Rejected { .. } | Report::Lost { .. } | Report::Released(_) => None,
    });
    until.max().expect("it has written")
}

/// Returns the number of writes that the fenced resource accepted after a write of a newer holder.
fn accepted_stale(pauses: &[Pause]) -> usize {
    let lines = pauses.iter().flat_map(|pause| &pause.after);
    lines
        .filter(|line| line.is_stale && line.is_accepted)
        .count()
}

async fn pause_all(name: &str, careless: bool, total: usize) -> (Vec<Pause>, Arc<Oracle>) {
    let deployment = Deployment::start(2).await;
    let oracle = Arc::new(Oracle::new(total));
    let mut others = Vec::new();
    for addr in deployment.addrs() {
        let other = Sdk::connect(&format!("http://{addr}")).await;
        others.push(other.expect("a broker that runs"));
    }
    let mut pauses: Vec<Pause> = Vec::new();
    while pauses.len() < total {
        let from = pauses.len();
        let round = (from..total.min(from + ROUND)).map(async |index| {
            let lock = format!("{name}-{index}");
            let resource = Resource::start(&oracle, index).await;
            let work = if index % WORKING == 0 {
                WORK
            } else {
                Duration::ZERO
            };
            let writer = write(&deployment, &resource, &lock, (careless, work)).await;
            let fixture = (&deployment, &others[index % 2], resource, &*oracle);
            pause(fixture, index, &lock, writer).await
        });
        pauses.extend(join_all(round).await);
    }
    (pauses, oracle)
}

/// Starts a process that acquires the lock at the first broker, and writes.
async fn write(
    deployment: &Deployment,
    resource: &Resource,
    lock: &str,
    (careless, work): (bool, Duration),
) -> (TestProcess, TempDir, bool) {
    let dir = TempDir::new("guarded-writer");
    let mut command = Command::new(env!("CARGO_BIN_EXE_guarded_writer"));
    command.arg(format!("--endpoint=http://{}", deployment.addrs()[0]));
    command.arg(format!("--resource={}", resource.addr()));
    command.arg(format!("--ttl-ms={}", TTL.as_millis()));
    command.arg(format!("--work-us={}", work.as_micros()));
    command.args(careless.then_some("--careless"));
    command.arg(lock);
    let log = dir.path().join("stderr.log");
    let (process, _) = TestProcess::start(command, &log, &["held"]).await;
    (process, dir, careless)
}

/// Stops the writer at a random moment, and resumes it after another client has acquired the lock
/// and has written.
async fn pause(
    (deployment, other, resource, oracle): (&Deployment, &Sdk, Resource, &Oracle),
    index: usize,
    lock: &str,
    (mut process, _dir, careless): (TestProcess, TempDir, bool),
) -> Pause {
    let observer = Client::new("observer", &deployment.addrs(), 0);
    let next = other.lock(lock).ttl(TTL).wait(WAIT);
    let turn = tokio::spawn(async move { (next.acquire().await, boottime()) });
    let turn = AbortOnDropHandle::new(turn);
    observer.wait_for_queue_length_at(1, lock, 1).await;
    resource
        .wait_for_line(|line| line.checked_at().is_some())
        .await;
    sleep(TTL.mul_f64(rand::thread_rng().gen_range(0.0..0.5))).await;

    process.pause().await;
    let stopped = boottime();
    sleep(TRANSIT_TIME).await;
    let before = resource.lines();
    let holder = read_expiry(&observer, 1, lock).await.expect("it is held");
    let turn = timeout(TEST_TIMEOUT, turn).await.expect("granted in time");
    let (guard, granted) = turn.expect("no panic");
    let guard = guard.expect("its turn");
    assert!(guard.is_valid() && resource.write(guard.fencing_token()));
    sleep((stopped + TTL * 3 / 2).saturating_sub(boottime())).await;
    assert_eq!(process.state(), 'T', "it is stopped all the time");
    let silent = resource.lines().len() == before.len();
    assert!(silent, "it has said something while it was stopped");

    let resumed = boottime();
    process.resume();
    if careless {
        let on_and_on = |line: &ReportLine| line.is_stale && line.checked_at() >= Some(resumed);
        resource.wait_for_line(on_and_on).await;
        process.kill().await;
    } else {
        resource
            .wait_for_line(|l| matches!(l.report, Report::Released(_)))
            .await;
        assert_eq!(process.wait_for_exit().await, Some(0));
    }
    let pause = Pause {
        index,
        resumed,
        granted,
        earliest: holder.earliest,
        after: resource.lines().split_off(before.len()),
        before,
    };
    assert!(pause.granted >= pause.earliest, "too soon: {pause:#?}");
    pause.record(oracle, holder.token);
    oracle.record(LockUse {
        lock: index,
        share: Share::ALL,
        token: guard.fencing_token(),
        started_at: granted,
        ended_at: boottime(),
    });
    guard.release().await.expect("it is held");
    pause
}
