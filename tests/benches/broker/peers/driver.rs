//! Runs the driver program of a system (a peer) and measures its CPU time and memory.

use std::{path::PathBuf, time::Duration};

use leasehold_tests::process::{child::TestProcess, temp_dir::TempDir};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{ChildStdout, Command},
    time::{Instant, sleep_until, timeout},
};

use crate::streams::usage::{cpu_time, resident_bytes};

/// Time limit for the start. Some systems need long to start ten thousand callers or a hundred
/// thousand locks.
const BEGIN_LIMIT: Duration = Duration::from_secs(240);
/// Time limit for the report, after the measured time.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Output of a peer, as described in `tests/peers/README.md`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) done: usize,
    pub(crate) latencies_us: Vec<u64>,
    pub(crate) counts: Vec<u64>,
    pub(crate) longest_wait_us: u64,
}

/// Arguments of a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    pub(crate) scenario: &'static str,
    pub(crate) count: usize,
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
}

/// Results of one run, and the resources used between its start and its end.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) output: Measured,
    pub(crate) window: Duration,
    /// CPU time of the peer and of each of its servers.
    pub(crate) cpu: Vec<Duration>,
    /// Memory of the peer and of each of its servers at the end.
    pub(crate) bytes: Vec<u64>,
    /// Number of commands that a broker sent to Redis.
    pub(crate) commands: u64,
}

/// A peer process with line output. Killed when dropped.
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
        let (process, _, stdout) = TestProcess::start_with_pipes(command, &dir.path().join("log"));
        let lines = BufReader::new(stdout).lines();
        Self {
            process,
            lines,
            dir,
        }
    }

    /// Returns the next line, or the reason for which there is none.
    pub(crate) async fn line(&mut self, limit: Duration) -> Result<String, String> {
        match timeout(limit, self.lines.next_line()).await {
            Ok(Ok(Some(line))) => Ok(line),
            Ok(_) => Err(self.error_line()),
            Err(_) => Err(format!("said nothing for {limit:?}")),
        }
    }

    /// Returns the first non-empty line of its log.
    fn error_line(&self) -> String {
        let log: PathBuf = self.dir.path().join("log");
        let log = std::fs::read_to_string(log).unwrap_or_default();
        let output = log.lines().find(|line| !line.trim().is_empty());
        output.unwrap_or("ended without a word").trim().to_owned()
    }

    pub(crate) async fn kill(&mut self) {
        self.process.kill().await;
    }
}

/// Runs a peer with its `servers`. `commands` returns the number of commands sent.
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
    // Measured at the end of the window. Until its report the peer goes on and its callers leave
    // the queue.
    sleep_until(began + task.measured).await;
    let commands = commands().await - sent;
    let window = began.elapsed();
    // The /proc entry of an exited peer exists until its exit status is read.
    let after = all.iter().map(|pid| cpu_time(*pid));
    let cpu = after
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    let bytes = servers.iter().map(|pid| resident_bytes(*pid));
    let bytes = [own_bytes].into_iter().chain(bytes).collect();
    let output = peer.line(END_LIMIT).await?;
    let output = serde_json::from_str(&output).map_err(|error| format!("no JSON: {error}"))?;
    Ok(Run {
        output,
        window,
        cpu,
        bytes,
        commands,
    })
}

pub(crate) fn expect(line: &str, wanted: &str) -> Result<(), String> {
    match line == wanted {
        true => Ok(()),
        false => Err(format!("wrote {line} instead of {wanted}")),
    }
}

impl Run {
    /// Returns a quantile of the latencies, in microseconds.
    pub(crate) fn quantile_us(&self, percent: usize) -> u64 {
        let mut all = self.output.latencies_us.clone();
        all.sort_unstable();
        let last = all.len().saturating_sub(1);
        all.get(last * percent / 100).copied().unwrap_or_default()
    }

    /// Returns the CPU time of the peer and its servers for each operation, in microseconds.
    pub(crate) fn cpu_us_each(&self) -> f64 {
        let all: Duration = self.cpu.iter().sum();
        all.as_secs_f64() * 1e6 / self.output.done.max(1) as f64
    }

    /// Returns the number of commands that a broker sent for each operation.
    pub(crate) fn commands_each(&self) -> f64 {
        self.commands as f64 / self.output.done.max(1) as f64
    }

    /// Returns Jain's fairness index: 1 if all callers had equally many grants, 1/n if one had all.
    pub(crate) fn jain(&self) -> f64 {
        let counts = self.output.counts.iter().map(|count| *count as f64);
        let (sum, squares) = counts.fold((0.0, 0.0), |(sum, squares), count| {
            (sum + count, count.mul_add(count, squares))
        });
        sum * sum / (self.output.counts.len() as f64 * squares).max(1.0)
    }
}
