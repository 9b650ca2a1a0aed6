//! A process that holds a lock with the Rust client is stopped for longer than its validity, and
//! goes on after somebody else has got the lock: its guard knows before it is asked.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold::{Client as Sdk, LostReason};
use leasehold_tests::{
    client::Client,
    clock::boottime,
    deployment::Deployment,
    process::TestProcess,
    resource::{Line, Report, Resource},
    scale::{count, figures},
    temp_dir::TempDir,
    time_left::{look, spread},
    witness::{Share, Visit, Witness},
};
use rand::Rng;
use tokio::{
    process::Command,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

const TTL: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(60);
/// A renewal that was under way has reached the store by then.
const ON_THE_WAY: Duration = Duration::from_millis(300);
const GIVE_UP: Duration = Duration::from_secs(20);
/// Processes at the same time.
const ROUND: usize = 10;
/// One holder in so many works for a while between asking its guard and writing.
const WORKING: usize = 4;
const WORK: Duration = Duration::from_millis(2);

/// One holder stopped, and what it did when it went on.
#[derive(Debug)]
struct Pause {
    index: usize,
    /// Before it went on.
    resumed: Duration,
    /// When the next in line had its lock.
    granted: Duration,
    /// The end of the holder's time could not be before.
    earliest: Duration,
    /// What the holder said before it was stopped.
    before: Vec<Line>,
    /// What it said when it went on.
    after: Vec<Line>,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_holder_knows_of_its_loss_before_it_is_asked() {
    let (pauses, witness) = pause_all("guarded", false, count(200, 20)).await;
    let mut gaps = 0;
    for pause in &pauses {
        // One write may have been past its check already. Nothing else comes before the guard is
        // asked, and says no.
        let unaware = pause.before_refused();
        assert!(unaware.len() <= 1, "{pause:#?}");
        for write in &unaware {
            let is_old = write.asked() < Some(pause.resumed);
            assert!(is_old, "trusted when it went on: {pause:#?}");
            assert!(write.is_stale && !write.is_accepted, "{pause:#?}");
        }
        gaps += unaware.len();
        pause.is_told();
    }
    let distance = |pause: &Pause| pause.granted.checked_sub(trusted_until(&pause.before));
    let distances: Option<Vec<_>> = pauses.iter().map(distance).collect();
    let distances = distances.expect("trusted when somebody else had it");
    let told = pauses.iter().map(|pause| pause.told() - pause.resumed);
    let verdict = witness.verdict();
    figures(&format!(
        "sdk_pause: rounds={} ttl=2000ms stopped>=3000ms first_answer_no={} trusted_again=0 \
         written_past_the_check={gaps} refused_by_the_fence={} accepted_stale={} \
         distrusted_before_the_next_grant>={}ms loss_reported_after_SIGCONT: {} overlaps={} \
         regressions={}",
        pauses.len(),
        pauses.len(),
        verdict.caught,
        accepted_stale(&pauses),
        distances
            .iter()
            .min()
            .unwrap_or(&Duration::ZERO)
            .as_millis(),
        spread(told.collect()),
        verdict.overlaps,
        verdict.regressions,
    ));
    assert_eq!(accepted_stale(&pauses), 0);
    assert_eq!((verdict.caught, verdict.fence_violations), (gaps, 0));
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_holder_that_does_not_ask_writes_on() {
    let (pauses, witness) = pause_all("careless", true, count(40, 10)).await;
    let stale = |pause: &Pause| pause.after.iter().filter(|line| line.is_stale).count();
    let written: usize = pauses.iter().map(stale).sum();
    let verdict = witness.verdict();
    figures(&format!(
        "sdk_pause careless: rounds={} with_stale_writes={} stale_writes={written} \
         refused_by_the_fence={} accepted_stale={} overlaps={} regressions={}",
        pauses.len(),
        pauses.iter().filter(|pause| stale(pause) > 0).count(),
        verdict.caught,
        accepted_stale(&pauses),
        verdict.overlaps,
        verdict.regressions
    ));
    // What an unfenced resource takes, a fenced one does not.
    assert!(pauses.iter().all(|pause| stale(pause) > 0), "{pauses:#?}");
    assert_eq!((verdict.caught, accepted_stale(&pauses)), (written, 0));
    assert_eq!((verdict.fence_violations, verdict.regressions), (0, 0));
    assert_eq!(verdict.overlaps, pauses.len(), "the referee sees them");
}

impl Pause {
    /// Where the guard has said no for the first time.
    fn refused_at(&self) -> usize {
        let is_refused = |line: &Line| matches!(line.report, Report::Refused { .. });
        let first = self.after.iter().position(is_refused);
        first.unwrap_or_else(|| panic!("it never noticed: {self:#?}"))
    }

    /// What the holder wrote when it went on, before its guard said no.
    fn before_refused(&self) -> Vec<&Line> {
        let first = self.after[..self.refused_at()].iter();
        first.filter(|line| line.asked().is_some()).collect()
    }

    /// From then on it writes nothing, though it goes on asking; it is told of the loss without
    /// asking, and again when it releases.
    fn is_told(&self) {
        let rest = &self.after[self.refused_at()..];
        let writes = rest.iter().filter(|line| line.asked().is_some()).count();
        assert_eq!(writes, 0, "trusted again: {self:#?}");
        let Report::Refused { why, .. } = &rest[0].report else {
            panic!("its guard says no: {self:#?}")
        };
        assert_eq!(*why, LostReason::Expired.to_string());
        let is_valid = self.after.iter().find_map(|line| match line.report {
            Report::Lost { is_valid, .. } => Some(is_valid),
            Report::Write { .. } | Report::Refused { .. } | Report::Released(_) => None,
        });
        assert_eq!(is_valid, Some(false), "{self:#?}");
        let Some(Report::Released(how)) = rest.last().map(|line| &line.report) else {
            panic!("it ended without a release: {self:#?}")
        };
        assert!(how.contains("over before"), "{how}");
    }

    /// When it had reported its loss.
    fn told(&self) -> Duration {
        let is_lost = |line: &&Line| matches!(line.report, Report::Lost { .. });
        let lost = self.after.iter().find(is_lost);
        lost.expect("told").received
    }

    /// Shows the referee until when the holder relied on the lock.
    fn record(&self, witness: &Witness, token: i64) {
        let writes = self.after.iter().filter(|line| line.asked().is_some());
        let careless = writes.filter(|line| line.asked() >= Some(self.resumed));
        let written = careless.map(|line| line.received).max();
        witness.record(Visit {
            lock: self.index,
            share: Share::ALL,
            token,
            entered: self.before.first().expect("it has written").received,
            ended: written.unwrap_or_else(|| trusted_until(&self.before)),
        });
    }
}

/// Until when the guard was trusted, as far as it was asked.
fn trusted_until(lines: &[Line]) -> Duration {
    let until = lines.iter().filter_map(|line| match line.report {
        Report::Write { until, .. } => Some(until),
        Report::Refused { .. } | Report::Lost { .. } | Report::Released(_) => None,
    });
    until.max().expect("it has written")
}

/// Writes that the fenced resource took although a newer holder had written.
fn accepted_stale(pauses: &[Pause]) -> usize {
    let lines = pauses.iter().flat_map(|pause| &pause.after);
    lines
        .filter(|line| line.is_stale && line.is_accepted)
        .count()
}

async fn pause_all(name: &str, careless: bool, total: usize) -> (Vec<Pause>, Arc<Witness>) {
    let deployment = Deployment::start(2).await;
    let witness = Arc::new(Witness::new(total));
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
            let resource = Resource::start(&witness, index).await;
            let work = if index % WORKING == 0 {
                WORK
            } else {
                Duration::ZERO
            };
            let writer = write(&deployment, &resource, &lock, (careless, work)).await;
            let scene = (&deployment, &others[index % 2], resource, &*witness);
            pause(scene, index, &lock, writer).await
        });
        pauses.extend(join_all(round).await);
    }
    (pauses, witness)
}

/// A process that holds the lock at the first broker, and writes.
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

/// Stops the writer at a random moment, until another client has got the lock and has written.
async fn pause(
    (deployment, other, resource, witness): (&Deployment, &Sdk, Resource, &Witness),
    index: usize,
    lock: &str,
    (mut process, _dir, careless): (TestProcess, TempDir, bool),
) -> Pause {
    let observer = Client::new("observer", &deployment.addrs(), 0);
    let next = other.lock(lock).ttl(TTL).wait(WAIT);
    let turn = tokio::spawn(async move { (next.acquire().await, boottime()) });
    let turn = AbortOnDropHandle::new(turn);
    observer.queued_at(1, lock, 1).await;
    resource.heard(|line| line.asked().is_some()).await;
    sleep(TTL.mul_f64(rand::thread_rng().gen_range(0.0..0.5))).await;

    process.pause().await;
    let stopped = boottime();
    sleep(ON_THE_WAY).await;
    let before = resource.lines();
    let holder = look(&observer, 1, lock).await.expect("it is held");
    let turn = timeout(GIVE_UP, turn).await.expect("granted in time");
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
        let on_and_on = |line: &Line| line.is_stale && line.asked() >= Some(resumed);
        resource.heard(on_and_on).await;
        process.kill().await;
    } else {
        resource
            .heard(|l| matches!(l.report, Report::Released(_)))
            .await;
        assert_eq!(process.ended().await, Some(0));
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
    pause.record(witness, holder.token);
    witness.record(Visit {
        lock: index,
        share: Share::ALL,
        token: guard.fencing_token(),
        entered: granted,
        ended: boottime(),
    });
    guard.release().await.expect("it is held");
    pause
}
