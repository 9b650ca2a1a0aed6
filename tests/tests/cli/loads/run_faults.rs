//! Faults of `leasehold run`: the broker is killed, the network is cut, and `leasehold` is stopped
//! or killed. No command may be alive when the next waiter has the lock.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use leasehold::{Client as Sdk, Guard};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::Client,
    clock::boottime,
    load::{
        mutual_exclusion_oracle::{LockUse, Oracle, Share},
        store_expiry::format_spread,
    },
    net::http2_proxy::{Direction, Http2Proxy, ProxyMode},
    process::leasehold_command::{Cli, is_alive},
    scale::{print_figures, scaled_count},
    until::until,
};
use rand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::Child,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

const TTL: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_secs(60);
const TEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for which the next holder checks that no other process writes.
const CHECK_DURATION: Duration = Duration::from_millis(500);
/// Number of concurrent jobs in a round, which includes each kind of fault.
const ROUND: usize = 8;
/// Broker that is killed, and that only the jobs with this fault use.
const VICTIM: usize = 0;
const OTHER: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    BrokerKilled,
    NetworkCut,
    Stopped,
    Killed,
}

const FAULTS: [Fault; 4] = [
    Fault::BrokerKilled,
    Fault::NetworkCut,
    Fault::Stopped,
    Fault::Killed,
];

/// Line in the output file of a job.
#[derive(Debug, Clone, Copy)]
struct OutputLine {
    token: i64,
    at: Duration,
    pid: i32,
}

/// A job that runs while its lock is held.
struct Job {
    index: usize,
    fault: Fault,
    lock: String,
    cli: Cli,
    proxy: Http2Proxy,
    process: Child,
    file: PathBuf,
}

/// Outcome of a job.
#[derive(Debug)]
struct Outcome {
    fault: Fault,
    code: Option<i32>,
    /// Time at which the fault was injected.
    faulted: Duration,
    /// Time at which the next waiter was granted the lock.
    granted: Duration,
    next_token: i64,
    lines: Vec<OutputLine>,
    /// Processes of the job that were alive at the next grant.
    alive: Vec<i32>,
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_outlives_its_lock() {
    let total = scaled_count(100, 8);
    let mut deployment = Deployment::start(2).await;
    let url = format!("http://{}", deployment.addrs()[OTHER]);
    let other = Sdk::connect(&url).await.expect("a broker that runs");
    let oracle = Arc::new(Oracle::new(total));
    let mut outcomes = Vec::new();
    while outcomes.len() < total {
        let from = outcomes.len();
        let jobs = (from..total.min(from + ROUND)).map(|index| begin(&deployment, index));
        let jobs = join_all(jobs).await;
        let addrs = deployment.addrs();
        let observer = Client::new("observer", &[addrs[OTHER]], 0);
        let waiters = jobs.iter().map(|job| wait(&other, &observer, &job.lock));
        let waiters = join_all(waiters).await;
        sleep(TTL.mul_f64(rand::thread_rng().gen_range(0.0..0.3))).await;
        // All jobs at this broker lose it at the same time.
        deployment.brokers[VICTIM].kill().await;
        let rounds = jobs
            .into_iter()
            .zip(waiters)
            .map(|(job, next)| inject_fault(job, next));
        let done = join_all(rounds).await;
        for (index, outcome) in (from..).zip(&done) {
            outcome.record(&oracle, index);
        }
        outcomes.extend(done);
        deployment.brokers[VICTIM].restart().await;
    }
    assert_outcomes(&outcomes, &oracle);
}

/// Starts a job and waits until it writes.
async fn begin(deployment: &Deployment, index: usize) -> Job {
    let fault = FAULTS[index % FAULTS.len()];
    let broker = if fault == Fault::BrokerKilled {
        VICTIM
    } else {
        OTHER
    };
    let proxy = Http2Proxy::start(deployment.addrs()[broker]).await;
    let cli = Cli::for_broker(proxy.addr());
    let lock = format!("job-{index}");
    let file = cli.home.path().join("written");
    // Every other group of jobs ignores the termination signal and has a detached descendant.
    let kind = (index / FAULTS.len()).is_multiple_of(2);
    let program = env!("CARGO_BIN_EXE_fenced_job");
    let mut command = cli.command(&["run", "--ttl=3s", "--kill-after=1s", &lock, "--", program]);
    command.args(
        kind.then_some(["--stubborn", "--family"])
            .into_iter()
            .flatten(),
    );
    command
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let process = command.spawn().expect("it starts");
    let wanted = if kind { 2 } else { 1 };
    until("the job writes", async || {
        (pids(&read(&file)).len() == wanted).then_some(())
    })
    .await;
    Job {
        index,
        fault,
        lock,
        cli,
        proxy,
        process,
        file,
    }
}

/// Starts the next waiter and returns after it is queued. The task returns the guard and the time
/// of the grant.
async fn wait(other: &Sdk, observer: &Client, lock: &str) -> AbortOnDropHandle<(Guard, Duration)> {
    let next = other.lock(lock).ttl(TTL).wait(WAIT).acquire();
    let next = tokio::spawn(async move {
        let guard = next.await.expect("its turn");
        (guard, boottime())
    });
    observer.wait_for_queue_length_at(0, lock, 1).await;
    AbortOnDropHandle::new(next)
}

async fn inject_fault(mut job: Job, next: AbortOnDropHandle<(Guard, Duration)>) -> Outcome {
    let id = job.process.id().and_then(|id| i32::try_from(id).ok());
    let pid = id.and_then(Pid::from_raw).expect("it runs");
    let signal = |signal| kill_process(pid, signal).expect("a process of this test");
    match job.fault {
        Fault::BrokerKilled => {}
        Fault::NetworkCut => job.proxy.set_mode(ProxyMode::DropFrames(Direction::Both)),
        Fault::Stopped => signal(Signal::STOP),
        Fault::Killed => signal(Signal::KILL),
    }
    let faulted = boottime();
    let (guard, granted) = timeout(TEST_TIMEOUT, next)
        .await
        .expect("its turn comes")
        .expect("no panic");
    let alive = pids(&read(&job.file))
        .into_iter()
        .filter(|pid| is_alive(*pid))
        .collect();
    sleep(CHECK_DURATION).await;
    if job.fault == Fault::Stopped {
        signal(Signal::CONT);
    }
    let code = timeout(TEST_TIMEOUT, job.process.wait())
        .await
        .expect("it ends");
    let outcome = Outcome {
        fault: job.fault,
        code: code.expect("its status").code(),
        faulted,
        granted,
        next_token: guard.fencing_token(),
        lines: read(&job.file),
        alive,
    };
    guard.release().await.expect("it is held");
    drop((job.cli, job.index));
    outcome
}

impl Outcome {
    fn last(&self) -> Duration {
        self.lines.last().expect("it has written").at
    }

    /// Records with the oracle the periods in which the job and the next holder wrote.
    fn record(&self, oracle: &Oracle, lock: usize) {
        let first = self.lines.first().expect("it has written");
        for line in &self.lines {
            oracle.write(lock, line.token, 1);
        }
        let visit = |token, entered, ended| LockUse {
            lock,
            share: Share::ALL,
            token,
            started_at: entered,
            ended_at: ended,
        };
        oracle.record(visit(first.token, first.at, self.last()));
        oracle.record(visit(
            self.next_token,
            self.granted,
            self.granted + CHECK_DURATION,
        ));
    }
}

fn assert_outcomes(outcomes: &[Outcome], oracle: &Oracle) {
    let verdict = oracle.verdict();
    let left = outcomes
        .iter()
        .map(|outcome| end(&outcome.lines))
        .sum::<usize>();
    let early = |outcome: &Outcome| outcome.granted.checked_sub(outcome.last());
    let distances: Vec<_> = outcomes.iter().filter_map(early).collect();
    let each = FAULTS.map(|fault| {
        let of_it = outcomes.iter().filter(|outcome| outcome.fault == fault);
        let lived: Vec<_> = of_it
            .map(|outcome| outcome.last().saturating_sub(outcome.faulted))
            .collect();
        format!(
            "{fault:?}: rounds={} lived_on {}",
            lived.len(),
            format_spread(lived)
        )
    });
    print_figures(&format!(
        "cli_run_faults: rounds={} ttl=3000ms kill_after=1000ms overlaps={} alive_at_the_grant={} \
         ended_before_the_next_grant>={}ms; {}",
        outcomes.len(),
        verdict.overlaps,
        outcomes
            .iter()
            .map(|outcome| outcome.alive.len())
            .sum::<usize>(),
        distances
            .iter()
            .min()
            .unwrap_or(&Duration::ZERO)
            .as_millis(),
        each.join("; ")
    ));
    assert_eq!(
        (verdict.overlaps, verdict.regressions),
        (0, 0),
        "{}",
        summary(outcomes)
    );
    assert_eq!(left, 0, "left behind");
    for outcome in outcomes {
        assert!(
            outcome.alive.is_empty(),
            "alive at the grant: {}",
            summary(outcomes)
        );
        let expected = match outcome.fault {
            Fault::BrokerKilled | Fault::NetworkCut | Fault::Stopped => Some(123),
            Fault::Killed => None,
        };
        assert_eq!(outcome.code, expected, "{:?}", outcome.fault);
    }
}

/// Kills the remaining processes of a job and returns their number.
fn end(lines: &[OutputLine]) -> usize {
    let left: Vec<_> = pids(lines)
        .into_iter()
        .filter(|pid| is_alive(*pid))
        .collect();
    for pid in left.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        // The process may exit at this moment.
        let _ = kill_process(pid, Signal::KILL);
    }
    left.len()
}

fn summary(outcomes: &[Outcome]) -> String {
    let lines = outcomes.iter().map(|outcome| {
        let late = outcome.last().saturating_sub(outcome.granted);
        format!(
            "{:?}: {late:?} too late, alive {:?}",
            outcome.fault, outcome.alive
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn read(file: &Path) -> Vec<OutputLine> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(parse_line).collect()
}

fn parse_line(text: &str) -> OutputLine {
    let words: Vec<_> = text.split(' ').collect();
    let [token, at, pid] = words.as_slice() else {
        panic!("not a job's line: {text:?}")
    };
    OutputLine {
        token: token.parse().expect("a token"),
        at: Duration::from_nanos(at.parse().expect("a time")),
        pid: pid.parse().expect("a process id"),
    }
}

/// Returns the ids of the processes that have written.
fn pids(lines: &[OutputLine]) -> Vec<i32> {
    let mut pids: Vec<_> = lines.iter().map(|line| line.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}
