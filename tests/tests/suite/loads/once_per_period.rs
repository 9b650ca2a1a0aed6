//! A job that runs once a period on many hosts: processes of all languages and of the command line
//! call for its lock at the same time. One of them runs the job, and nobody runs it again within
//! the period, whatever is killed or restarted.

use std::{net::SocketAddr, time::Duration};

use futures::{StreamExt as _, future::join_all, stream};
use leasehold_proto::v1::{LockRef, OpenLockRequest, admin_service_client::AdminServiceClient};
use leasehold_tests::{
    broker::{deployment::Deployment, process::BrokerOptions},
    client::unary::{AcquireCall, Client, channel},
    process::leasehold_command::Cli,
    redis::server::{RedisServer, RestartData},
    scale::{print_figures, scaled_count},
    suite::{language::Language, messages::ProbeAcquire, probe::Probe},
    until::until,
};
use rand::Rng as _;
use tokio::time::sleep;

const BROKERS: usize = 2;
/// Number of processes of each language, and of the command line.
const PROCESSES: usize = 20;
const ROUNDS: usize = 50;
/// Time within which all processes call for the lock.
const FIRE_WITHIN_MS: u64 = 500;
const JOB: &str = "job";
/// Runs a job if its lock is free. A command must be ended well within the ttl.
const RUN: [&str; 5] = ["run", "-n", "--skip", "--ttl=2s", "--kill-after=500ms"];
/// Programs of the commands: the job ends, or its `leasehold run` is killed.
const PRINT_TOKEN: &str = "echo $LEASEHOLD_FENCING_TOKEN";
const PRINT_TOKEN_AND_KILL: &str = "echo $LEASEHOLD_FENCING_TOKEN; kill -9 $PPID";
const TTL: Duration = Duration::from_secs(2);
/// A period that no firing outlasts, and one that is waited for.
const LONG_PERIOD: Duration = Duration::from_secs(600);
const SHORT_PERIOD: Duration = Duration::from_secs(4);
/// Number of probes that start at the same time.
const STARTING: usize = 5;

/// Event between two firings of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RoundKind {
    HolderKilled,
    BrokerKilled,
    RedisRestarted,
    OpenedByOperator,
    PeriodPasses,
}

const ROUND_KINDS: [RoundKind; 5] = [
    RoundKind::HolderKilled,
    RoundKind::BrokerKilled,
    RoundKind::RedisRestarted,
    RoundKind::OpenedByOperator,
    RoundKind::PeriodPasses,
];

impl RoundKind {
    fn period(self) -> Duration {
        if self == Self::PeriodPasses {
            SHORT_PERIOD
        } else {
            LONG_PERIOD
        }
    }

    fn program(self) -> &'static str {
        if self == Self::HolderKilled {
            PRINT_TOKEN_AND_KILL
        } else {
            PRINT_TOKEN
        }
    }
}

/// A run of the job. The fencing token is the time of the grant, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Run {
    token: u64,
    /// Index of the probe; `None` for a command, which has ended.
    probe: Option<usize>,
}

/// The outcome of one call for the lock.
#[derive(Debug)]
enum CallOutcome {
    Ran(Run),
    Refused,
    Failed(String),
}

/// The processes that run the job.
struct Crew {
    probes: Vec<Probe>,
    endpoints: Vec<SocketAddr>,
    cli: Cli,
    commands: usize,
}

#[derive(Debug, Default)]
struct Counts {
    firings: usize,
    runs: usize,
    refused: usize,
    failed: usize,
}

/// Verifies that two runs are at least a period apart, unless an operator opened the lock between.
#[derive(Debug, Default)]
struct PeriodOracle {
    /// Token of the last run, and the first token that may follow it.
    last: Option<(u64, u64)>,
}

impl Crew {
    async fn start(endpoints: Vec<SocketAddr>) -> Self {
        let each = scaled_count(PROCESSES, 2);
        let probes = stream::iter(0..each * Language::ALL.len());
        let probes = probes.map(|index| start_probe(index, &endpoints));
        let urls: Vec<_> = endpoints.iter().map(SocketAddr::to_string).collect();
        Self {
            probes: probes.buffered(STARTING).collect().await,
            cli: Cli::for_broker(urls.join(",http://")),
            commands: each,
            endpoints,
        }
    }

    /// Calls for the lock with every process, and returns the runs of the job in the order of their
    /// grants.
    async fn fire(&self, kind: RoundKind, counts: &mut Counts) -> Vec<Run> {
        let (period, program) = (kind.period(), kind.program());
        let probes = (0..self.probes.len()).map(|index| self.call_with_probe(index, period));
        let commands = (0..self.commands).map(|_| self.run_command(period, program));
        let (probes, commands) = futures::join!(join_all(probes), join_all(commands));
        counts.firings += 1;
        let mut runs = Vec::new();
        for outcome in probes.into_iter().chain(commands) {
            match outcome {
                CallOutcome::Ran(run) => runs.push(run),
                CallOutcome::Refused => counts.refused += 1,
                CallOutcome::Failed(error) => {
                    counts.failed += 1;
                    print_figures(&format!("once_per_period: failed: {error}"));
                }
            }
        }
        counts.runs += runs.len();
        runs.sort_by_key(|run| run.token);
        runs
    }

    async fn call_with_probe(&self, index: usize, period: Duration) -> CallOutcome {
        sleep(random_delay()).await;
        let acquire = ProbeAcquire::exclusive(JOB)
            .with_ttl(TTL)
            .with_duration("at_least_ms", period);
        match self.probes[index].try_acquire(&acquire).await {
            Ok(None) => CallOutcome::Refused,
            Ok(Some(lease)) => CallOutcome::Ran(Run {
                token: u64::try_from(lease.token()).expect("a token"),
                probe: Some(index),
            }),
            Err(failure) => CallOutcome::Failed(format!("{failure:?}")),
        }
    }

    async fn run_command(&self, period: Duration, program: &str) -> CallOutcome {
        sleep(random_delay()).await;
        let at_least = format!("--at-least={}s", period.as_secs());
        let job = [JOB, "--", "sh", "-c", program];
        let args = [&RUN[..], &[&*at_least], &job[..]].concat();
        let ended = self.cli.run(&args).await;
        match (ended.code, ended.stdout.trim().parse()) {
            (_, Ok(token)) => CallOutcome::Ran(Run { token, probe: None }),
            (Some(0), Err(_)) => CallOutcome::Refused,
            (_, Err(_)) => CallOutcome::Failed(format!("{ended:?}")),
        }
    }

    async fn release(&self, run: Run) {
        if let Some(index) = run.probe {
            self.probes[index].expect_released(JOB).await;
        }
    }

    /// Kills the process that holds the lock, and starts another one in its place.
    async fn kill(&mut self, run: Run) {
        if let Some(index) = run.probe {
            self.probes[index].kill().await;
            self.probes[index] = start_probe(index, &self.endpoints).await;
        }
    }
}

async fn start_probe(index: usize, endpoints: &[SocketAddr]) -> Probe {
    let language = Language::ALL[index % Language::ALL.len()];
    let mut endpoints = endpoints.to_vec();
    endpoints.rotate_left(index % BROKERS);
    Probe::start(language, &format!("{language:?}-{index}"), &endpoints).await
}

fn random_delay() -> Duration {
    Duration::from_millis(rand::thread_rng().gen_range(0..FIRE_WITHIN_MS))
}

impl PeriodOracle {
    fn check(&mut self, runs: &[Run], period: Duration) {
        let period_us = u64::try_from(period.as_micros()).expect("a short period");
        for run in runs {
            if let Some((last, next)) = self.last {
                assert!(
                    run.token >= next,
                    "again {} µs after a run",
                    run.token - last
                );
            }
            self.last = Some((run.token, run.token + period_us));
        }
    }

    fn record_opening(&mut self) {
        self.last = None;
    }
}

async fn start_deployment() -> Deployment {
    let redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let mut options = BrokerOptions::for_store(redis.url());
    let bounds = [
        ("LIMITS__TTL_MAX", "2s"),
        ("LIMITS__LOCK_DELAY_MAX", "0s"),
        ("STORE__FORMER_MASTER_MAX", "1s"),
    ];
    let settings = bounds.map(|(key, value)| (format!("LEASEHOLD__{key}"), value.to_owned()));
    options.env = settings.to_vec();
    Deployment::start_on(redis, &options, BROKERS).await
}

async fn open(deployment: &Deployment) {
    let mut admin = AdminServiceClient::new(channel(deployment.brokers[0].admin()));
    let lock = Some(LockRef {
        name: JOB.to_owned(),
        ..LockRef::default()
    });
    let opened = admin.open_lock(OpenLockRequest { lock }).await;
    let closure = opened.expect("it opens").into_inner().closure;
    assert!(
        closure.is_some(),
        "the lock was closed to the end of the round"
    );
}

/// Waits until the lock has no holder.
async fn wait_until_vacant(observer: &Client) {
    until("the lease of the killed process expires", async || {
        let state = observer.get_lock(JOB).await.ok()?;
        (state.is_none_or(|lock| lock.holder_count == 0)).then_some(())
    })
    .await;
}

async fn wait_until_granting(observer: &Client) {
    until("grants after the restart", async || {
        let call = AcquireCall::new("another", TTL, Duration::ZERO);
        let held = observer.acquire(&call).await.ok()?;
        observer.release(&held).await.ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_once_a_period() {
    let mut deployment = start_deployment().await;
    let mut crew = Crew::start(deployment.addrs()).await;
    let observer = Client::new("observer", &crew.endpoints, 0);
    let (mut counts, mut oracle) = (Counts::default(), PeriodOracle::default());
    let rounds = scaled_count(ROUNDS, ROUND_KINDS.len());
    for kind in ROUND_KINDS.into_iter().cycle().take(rounds) {
        let period = kind.period();
        let first = crew.fire(kind, &mut counts).await;
        oracle.check(&first, period);
        assert_eq!(first.len(), 1, "{kind:?}: {first:?}");
        match kind {
            RoundKind::HolderKilled => {
                crew.kill(first[0]).await;
                wait_until_vacant(&observer).await;
            }
            RoundKind::BrokerKilled => {
                crew.release(first[0]).await;
                deployment.brokers[0].kill().await;
                let meanwhile = crew.fire(kind, &mut counts).await;
                oracle.check(&meanwhile, period);
                deployment.brokers[0].restart().await;
            }
            RoundKind::RedisRestarted => {
                crew.release(first[0]).await;
                deployment.redis.restart_with(RestartData::Kept, &[]).await;
                wait_until_granting(&observer).await;
            }
            RoundKind::OpenedByOperator | RoundKind::PeriodPasses => {
                crew.release(first[0]).await;
            }
        }
        let again = crew.fire(kind, &mut counts).await;
        oracle.check(&again, period);
        if kind == RoundKind::PeriodPasses {
            for run in again {
                crew.release(run).await;
            }
            until("the period passes", async || {
                let state = observer.get_lock(JOB).await.expect("GetLock works");
                state
                    .is_none_or(|lock| lock.closure.is_none())
                    .then_some(())
            })
            .await;
        } else {
            open(&deployment).await;
            oracle.record_opening();
        }
    }
    let Counts {
        firings,
        runs,
        refused,
        failed,
    } = counts;
    print_figures(&format!(
        "once_per_period: rounds={rounds} firings={firings} processes={} runs={runs} \
         refused={refused} failed={failed}",
        crew.probes.len() + crew.commands
    ));
    assert!(failed * 10 <= refused, "too few calls were answered");
}

/// Without `at_least` the lock is free as soon as the first process has released it, and the next one
/// runs the job as well.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_period_a_job_runs_again() {
    let deployment = start_deployment().await;
    let cli = Cli::for_broker(deployment.addrs()[0]);
    for _ in 0..2 {
        let args = [&RUN[..], &[JOB, "--", "echo", "ran"]].concat();
        let ended = cli.run(&args).await;
        assert_eq!(ended.stdout, "ran\n", "{ended:?}");
    }
}
