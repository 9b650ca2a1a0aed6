//! Comparison of Leasehold with other lock systems and with the limits of its parts: the same
//! scenarios, one after the other, on one machine.

mod driver;
mod ours;
mod pages;
mod plot;
mod summary;
mod systems;
mod table;

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

pub(crate) use self::ours::{ARGUMENT, run};
use self::{
    driver::{Peer, Run, Task, expect},
    systems::{ALL, PeerFixture, System},
};
use crate::pages::is_writing;

/// Time after which an expected event is considered missing.
const GRANT_LIMIT: Duration = Duration::from_secs(60);

/// Measures the systems and returns the sentences and the tables.
pub(crate) async fn part(is_quick: bool) -> String {
    let peers = measure(if is_quick { &QUICK } else { &FULL }).await;
    if is_writing() {
        peers.write().expect("write the page");
    }
    format!("{}\n{peers}", peers.summary())
}

/// Number and length of the measurements.
struct Extent {
    rounds: usize,
    callers: &'static [usize],
    waiters: &'static [usize],
    /// Numbers of locks that are held and renewed.
    kept: &'static [usize],
    measured: Duration,
}

/// Extent for the tables of the docs, which takes most of an hour.
const FULL: Extent = Extent {
    rounds: 3,
    callers: &[1, 64, 256],
    waiters: &[2, 64, 1_000, 10_000],
    kept: &[1_000, 10_000, 100_000],
    measured: Duration::from_secs(3),
};

/// Extent that tests within minutes that all systems work. The figures mean little.
const QUICK: Extent = Extent {
    rounds: 1,
    callers: &[64],
    waiters: &[64],
    kept: &[1_000],
    measured: Duration::from_secs(1),
};

/// Warm-up time. JIT compilers need some time, and many callers need longer until all of them wait.
const WARM_UP: Duration = Duration::from_secs(3);
const WARM_UP_MANY: Duration = Duration::from_secs(10);
const MANY: usize = 10_000;
const KEPT_FOR: Duration = Duration::from_secs(20);

/// Result of a run, or the reason for its failure.
type RunResult = Result<Run, String>;
/// Results by number of callers and by system.
type Rounds = BTreeMap<(usize, System), Vec<RunResult>>;

/// Results of the rounds, displayed as tables.
pub(crate) struct Peers {
    rounds: usize,
    measured: Duration,
    versions: Vec<(String, String)>,
    pairs: Rounds,
    hot: Rounds,
    /// Times from the death of the holder to the next grant.
    crash: BTreeMap<System, Vec<Result<Duration, String>>>,
    idle: BTreeMap<(usize, System), RunResult>,
    /// Pairs while the given number of locks is held and renewed.
    beside: BTreeMap<usize, RunResult>,
}

/// Measures in interleaved rounds, so that a slow period of the machine affects every system
/// equally.
async fn measure(extent: &Extent) -> Peers {
    let mut sites = PeerFixture::start().await;
    let mut peers = Peers {
        rounds: extent.rounds,
        measured: extent.measured,
        versions: sites.versions(),
        pairs: BTreeMap::new(),
        hot: BTreeMap::new(),
        crash: BTreeMap::new(),
        idle: BTreeMap::new(),
        beside: BTreeMap::new(),
    };
    for round in 1..=extent.rounds {
        for &count in extent.callers {
            for system in ALL {
                let ran = sites.ran(system, extent.task("pairs", count)).await;
                progress(round, "pairs", count, system, &ran);
                peers.pairs.entry((count, system)).or_default().push(ran);
            }
        }
        for &count in extent.waiters {
            for system in ALL.into_iter().filter(|system| system.waits()) {
                let ran = sites.ran(system, extent.task("hot", count)).await;
                progress(round, "hot", count, system, &ran);
                peers.hot.entry((count, system)).or_default().push(ran);
            }
        }
        for system in ALL.into_iter().filter(|system| system.dies()) {
            let took = sites.crash(system).await;
            eprintln!("round {round}: crash, {}: {took:?}", system.name());
            peers.crash.entry(system).or_default().push(took);
        }
    }
    for &kept in extent.kept {
        let task = |scenario| Task {
            measured: KEPT_FOR,
            ..extent.task(scenario, kept)
        };
        for system in ALL.into_iter().filter(|system| system.keeps()) {
            let ran = sites.ran(system, task("idle")).await;
            progress(1, "idle", kept, system, &ran);
            peers.idle.insert((kept, system), ran);
        }
        let ran = sites.ran(System::Client, task("beside")).await;
        progress(1, "beside", kept, System::Client, &ran);
        peers.beside.insert(kept, ran);
    }
    peers
}

impl Extent {
    fn task(&self, scenario: &'static str, count: usize) -> Task {
        Task {
            scenario,
            count,
            warm_up: if count >= MANY { WARM_UP_MANY } else { WARM_UP },
            measured: self.measured,
        }
    }
}

fn progress(round: usize, scenario: &str, count: usize, system: System, ran: &RunResult) {
    let result = match ran {
        Ok(run) => format!("{} in {:?}", run.output.done, run.window),
        Err(reason) => reason.clone(),
    };
    eprintln!(
        "round {round}: {scenario} of {count}, {}: {result}",
        system.name()
    );
}

impl PeerFixture {
    async fn ran(&mut self, system: System, task: Task) -> RunResult {
        let (peer, servers) = (self.peer(system), self.servers(system));
        let ran = driver::run(peer, task, &servers, async || self.scripts(system).await).await;
        self.clear(system).await;
        ran
    }

    /// Returns the number of commands that a broker has sent. Each command is a script.
    async fn scripts(&self, system: System) -> u64 {
        if !system.is_broker() {
            return 0;
        }
        let result = self
            .brokers_redis()
            .await
            .info("commandstats", "cmdstat_evalsha")
            .await;
        let result = result.unwrap_or_default();
        let calls = result
            .split(',')
            .find_map(|field| field.strip_prefix("calls="));
        calls
            .and_then(|calls| calls.parse().ok())
            .unwrap_or_default()
    }

    /// Kills the holder and returns the time until the waiter is granted the lock.
    async fn crash(&mut self, system: System) -> Result<Duration, String> {
        let took = self.took_after_crash(system).await;
        self.clear(system).await;
        took
    }

    async fn took_after_crash(&self, system: System) -> Result<Duration, String> {
        let task = |scenario| Task {
            scenario,
            count: 1,
            warm_up: Duration::ZERO,
            measured: Duration::ZERO,
        };
        let mut holder = Peer::start(self.peer(system), task("hold"));
        expect(&holder.line(GRANT_LIMIT).await?, "held")?;
        let mut waiter = Peer::start(self.peer(system), task("wait"));
        expect(&waiter.line(GRANT_LIMIT).await?, "waiting")?;
        // The waiter sends its request in this time, which it does not report.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let killed = Instant::now();
        holder.kill().await;
        expect(&waiter.line(GRANT_LIMIT).await?, "granted")?;
        Ok(killed.elapsed())
    }
}
