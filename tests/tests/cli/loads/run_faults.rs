//! Commands under `leasehold run` while the broker is killed, the network is cut, and `leasehold` itself
//! is stopped or killed: none of them is alive when the next in line has the lock.

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
    cli::{Cli, lives},
    client::Client,
    clock::boottime,
    deployment::Deployment,
    proxy::{Mode, Proxy, Way},
    scale::{count, figures},
    time_left::spread,
    until::until,
    witness::{Share, Visit, Witness},
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
const GIVE_UP: Duration = Duration::from_secs(20);
/// How long the next holder looks whether anybody writes beside it.
const BESIDE: Duration = Duration::from_millis(500);
/// Rounds at the same time; each kind of fault is among them.
const ROUND: usize = 8;
/// The broker that is killed; nobody else uses it.
const VICTIM: usize = 0;
const OTHER: usize = 1;

/// What goes wrong.
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

/// One line of a job.
#[derive(Debug, Clone, Copy)]
struct Line {
    token: i64,
    at: Duration,
    pid: i32,
}

/// A job under its lock.
struct Job {
    index: usize,
    fault: Fault,
    lock: String,
    cli: Cli,
    proxy: Proxy,
    process: Child,
    file: PathBuf,
}

/// What became of one.
#[derive(Debug)]
struct Outcome {
    fault: Fault,
    code: Option<i32>,
    /// When the fault had come.
    faulted: Duration,
    /// When the next in line had its lock.
    granted: Duration,
    next_token: i64,
    lines: Vec<Line>,
    /// Processes of the job that lived when the next in line had its lock.
    alive: Vec<i32>,
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_outlives_its_lock() {
    let total = count(100, 8);
    let mut deployment = Deployment::start(2).await;
    let url = format!("http://{}", deployment.addrs()[OTHER]);
    let other = Sdk::connect(&url).await.expect("a broker that runs");
    let witness = Arc::new(Witness::new(total));
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
        // All jobs at this broker lose it at once.
        deployment.brokers[VICTIM].kill().await;
        let rounds = jobs
            .into_iter()
            .zip(waiters)
            .map(|(job, next)| go_wrong(job, next));
        let done = join_all(rounds).await;
        for (index, outcome) in (from..).zip(&done) {
            outcome.record(&witness, index);
        }
        outcomes.extend(done);
        deployment.brokers[VICTIM].restart().await;
    }
    judge(&outcomes, &witness);
}

/// Starts a job and waits until it writes.
async fn begin(deployment: &Deployment, index: usize) -> Job {
    let fault = FAULTS[index % FAULTS.len()];
    let broker = if fault == Fault::BrokerKilled {
        VICTIM
    } else {
        OTHER
    };
    let proxy = Proxy::start(deployment.addrs()[broker]).await;
    let cli = Cli::at(proxy.addr());
    let lock = format!("job-{index}");
    let file = cli.home.path().join("written");
    // Every other one does not end when it is asked to, and has a descendant that went away.
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

/// The next in line, once it is there; it tells what was alive when it got the lock.
async fn wait(other: &Sdk, observer: &Client, lock: &str) -> AbortOnDropHandle<(Guard, Duration)> {
    let next = other.lock(lock).ttl(TTL).wait(WAIT).acquire();
    let next = tokio::spawn(async move {
        let guard = next.await.expect("its turn");
        (guard, boottime())
    });
    observer.queued_at(0, lock, 1).await;
    AbortOnDropHandle::new(next)
}

async fn go_wrong(mut job: Job, next: AbortOnDropHandle<(Guard, Duration)>) -> Outcome {
    let id = job.process.id().and_then(|id| i32::try_from(id).ok());
    let pid = id.and_then(Pid::from_raw).expect("it runs");
    let signal = |signal| kill_process(pid, signal).expect("a process of this test");
    match job.fault {
        Fault::BrokerKilled => {}
        Fault::NetworkCut => job.proxy.set_mode(Mode::Swallow(Way::Both)),
        Fault::Stopped => signal(Signal::STOP),
        Fault::Killed => signal(Signal::KILL),
    }
    let faulted = boottime();
    let (guard, granted) = timeout(GIVE_UP, next)
        .await
        .expect("its turn comes")
        .expect("no panic");
    let alive = pids(&read(&job.file))
        .into_iter()
        .filter(|pid| lives(*pid))
        .collect();
    sleep(BESIDE).await;
    if job.fault == Fault::Stopped {
        signal(Signal::CONT);
    }
    let code = timeout(GIVE_UP, job.process.wait()).await.expect("it ends");
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

    /// Shows the referee who was at work when.
    fn record(&self, witness: &Witness, lock: usize) {
        let first = self.lines.first().expect("it has written");
        for line in &self.lines {
            witness.write(lock, line.token, 1);
        }
        let visit = |token, entered, ended| Visit {
            lock,
            share: Share::ALL,
            token,
            entered,
            ended,
        };
        witness.record(visit(first.token, first.at, self.last()));
        witness.record(visit(self.next_token, self.granted, self.granted + BESIDE));
    }
}

fn judge(outcomes: &[Outcome], witness: &Witness) {
    let verdict = witness.verdict();
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
            spread(lived)
        )
    });
    figures(&format!(
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
        shown(outcomes)
    );
    assert_eq!(left, 0, "left behind");
    for outcome in outcomes {
        assert!(
            outcome.alive.is_empty(),
            "alive at the grant: {}",
            shown(outcomes)
        );
        let expected = match outcome.fault {
            Fault::BrokerKilled | Fault::NetworkCut | Fault::Stopped => Some(123),
            Fault::Killed => None,
        };
        assert_eq!(outcome.code, expected, "{:?}", outcome.fault);
    }
}

/// Ends what is left of a job; how many that was.
fn end(lines: &[Line]) -> usize {
    let left: Vec<_> = pids(lines).into_iter().filter(|pid| lives(*pid)).collect();
    for pid in left.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        // It may end by itself at this moment.
        let _ = kill_process(pid, Signal::KILL);
    }
    left.len()
}

fn shown(outcomes: &[Outcome]) -> String {
    let lines = outcomes.iter().map(|outcome| {
        let late = outcome.last().saturating_sub(outcome.granted);
        format!(
            "{:?}: {late:?} too late, alive {:?}",
            outcome.fault, outcome.alive
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn read(file: &Path) -> Vec<Line> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(line).collect()
}

fn line(text: &str) -> Line {
    let words: Vec<_> = text.split(' ').collect();
    let [token, at, pid] = words.as_slice() else {
        panic!("not a job's line: {text:?}")
    };
    Line {
        token: token.parse().expect("a token"),
        at: Duration::from_nanos(at.parse().expect("a time")),
        pid: pid.parse().expect("a process id"),
    }
}

/// Who has written.
fn pids(lines: &[Line]) -> Vec<i32> {
    let mut pids: Vec<_> = lines.iter().map(|line| line.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}
