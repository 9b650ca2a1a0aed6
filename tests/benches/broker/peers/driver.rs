//! A peer at work: started, watched while it counts, and what it told.

use std::{path::PathBuf, time::Duration};

use leasehold_tests::{process::TestProcess, temp_dir::TempDir};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{ChildStdout, Command},
    time::{Instant, sleep_until, timeout},
};

use crate::streams::usage::{cpu_time, resident_bytes};

/// Some take long to open ten thousand callers, or a hundred thousand locks.
const BEGIN_LIMIT: Duration = Duration::from_secs(240);
/// Beyond what is measured.
const END_LIMIT: Duration = Duration::from_secs(60);

/// As peers print it: `tests/peers/README.md`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) done: usize,
    pub(crate) latencies_us: Vec<u64>,
    pub(crate) counts: Vec<u64>,
    pub(crate) longest_wait_us: u64,
}

/// What a peer is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    pub(crate) scenario: &'static str,
    pub(crate) count: usize,
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
}

/// What one run told, and what was used from its beginning to its end.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) told: Measured,
    pub(crate) window: Duration,
    /// CPU time of the peer and of its servers, in their order.
    pub(crate) cpu: Vec<Duration>,
    /// Memory in the end, of the same.
    pub(crate) bytes: Vec<u64>,
    /// What a broker sent to Redis.
    pub(crate) commands: u64,
}

/// A process that says something line by line. Killed when dropped.
pub(crate) struct Peer {
    process: TestProcess,
    lines: Lines<BufReader<ChildStdout>>,
    dir: TempDir,
}

impl Peer {
    pub(crate) fn start(mut command: Command, task: Task) -> Self {
        let dir = TempDir::new("peer");
        command.args([task.scenario, &task.count.to_string()]);
        let millis = [task.warm_up, task.measured].map(|time| time.as_millis().to_string());
        command.args(millis);
        let (process, _, stdout) = TestProcess::start_talking(command, &dir.path().join("log"));
        let lines = BufReader::new(stdout).lines();
        Self {
            process,
            lines,
            dir,
        }
    }

    /// The next line, or why there is none.
    pub(crate) async fn line(&mut self, limit: Duration) -> Result<String, String> {
        match timeout(limit, self.lines.next_line()).await {
            Ok(Ok(Some(line))) => Ok(line),
            Ok(_) => Err(self.last_words()),
            Err(_) => Err(format!("said nothing for {limit:?}")),
        }
    }

    /// The first line of its log that is no frame of a stack.
    fn last_words(&self) -> String {
        let log: PathBuf = self.dir.path().join("log");
        let log = std::fs::read_to_string(log).unwrap_or_default();
        let said = log.lines().find(|line| !line.trim().is_empty());
        said.unwrap_or("ended without a word").trim().to_owned()
    }

    pub(crate) async fn kill(&mut self) {
        self.process.kill().await;
    }
}

/// Has a peer do its task while `servers` serve it. `commands` tells how many have been sent.
pub(crate) async fn run(
    command: Command,
    task: Task,
    servers: &[u32],
    commands: impl AsyncFn() -> u64,
) -> Result<Run, String> {
    let mut peer = Peer::start(command, task);
    expect(&peer.line(BEGIN_LIMIT).await?, "begin")?;
    let began = Instant::now();
    let all: Vec<u32> = [peer.process.pid()]
        .into_iter()
        .chain(servers.iter().copied())
        .collect();
    let before: Vec<_> = all.iter().map(|pid| cpu_time(*pid)).collect();
    let sent = commands().await;
    let own_bytes = resident_bytes(all[0]);
    // Not when it has told: until then it goes on, and its callers leave the line.
    sleep_until(began + task.measured).await;
    let commands = commands().await - sent;
    let window = began.elapsed();
    // The entry of a peer that has ended is there until somebody asks how it did.
    let after = all.iter().map(|pid| cpu_time(*pid));
    let cpu = after
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    let bytes = servers.iter().map(|pid| resident_bytes(*pid));
    let bytes = [own_bytes].into_iter().chain(bytes).collect();
    let told = peer.line(END_LIMIT).await?;
    let told = serde_json::from_str(&told).map_err(|error| format!("told no JSON: {error}"))?;
    Ok(Run {
        told,
        window,
        cpu,
        bytes,
        commands,
    })
}

pub(crate) fn expect(line: &str, wanted: &str) -> Result<(), String> {
    match line == wanted {
        true => Ok(()),
        false => Err(format!("said {line} instead of {wanted}")),
    }
}

impl Run {
    /// Of the latencies, in microseconds.
    pub(crate) fn quantile_us(&self, percent: usize) -> u64 {
        let mut all = self.told.latencies_us.clone();
        all.sort_unstable();
        let last = all.len().saturating_sub(1);
        all.get(last * percent / 100).copied().unwrap_or_default()
    }

    /// CPU time of all of them for each thing done, in microseconds.
    pub(crate) fn cpu_us_each(&self) -> f64 {
        let all: Duration = self.cpu.iter().sum();
        all.as_secs_f64() * 1e6 / self.told.done.max(1) as f64
    }

    /// What a broker sent for each thing done.
    pub(crate) fn commands_each(&self) -> f64 {
        self.commands as f64 / self.told.done.max(1) as f64
    }

    /// Jain's index: 1 if all callers had as many grants, 1/n if one had all.
    pub(crate) fn jain(&self) -> f64 {
        let counts = self.told.counts.iter().map(|count| *count as f64);
        let (sum, squares) = counts.fold((0.0, 0.0), |(sum, squares), count| {
            (sum + count, count.mul_add(count, squares))
        });
        sum * sum / (self.told.counts.len() as f64 * squares).max(1.0)
    }
}
