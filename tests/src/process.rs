//! A real process under test: started, watched, paused, killed, always by its pid.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const START_LIMIT: Duration = Duration::from_secs(30);
const END_LIMIT: Duration = Duration::from_secs(30);
const LOG_TAIL_LINES: usize = 60;

/// Killed when dropped; its log is shown when the test fails.
#[derive(Debug)]
pub struct TestProcess {
    child: Child,
    pid: Pid,
    log: PathBuf,
}

impl TestProcess {
    /// Starts `command` and waits until stdout showed a line for each of `marks` (a line counts for
    /// the first mark that it contains); returns those lines. stderr goes to the file `log`, as does
    /// stdout from then on.
    pub async fn start(mut command: Command, log: &Path, marks: &[&str]) -> (Self, Vec<String>) {
        let shown = format!("{:?}", command.as_std());
        command.stdin(Stdio::null());
        let mut process = Self::spawn(command, log);
        let stdout = process.child.stdout.take().expect("stdout is piped");
        let mut lines = BufReader::new(stdout).lines();
        let mut printed = Vec::new();
        let found = find(&mut lines, marks, &mut printed);
        let found = tokio::time::timeout(START_LIMIT, found).await;
        let Ok(Some(found)) = found else {
            panic!("{shown} did not print {marks:?} but {printed:#?}");
        };
        drain(lines, append(log));
        (process, found)
    }

    /// Starts a `command` that is talked with. stderr goes to the file `log`.
    #[must_use]
    pub fn start_talking(mut command: Command, log: &Path) -> (Self, ChildStdin, ChildStdout) {
        command.stdin(Stdio::piped());
        let mut process = Self::spawn(command, log);
        let stdin = process.child.stdin.take().expect("stdin is piped");
        let stdout = process.child.stdout.take().expect("stdout is piped");
        (process, stdin, stdout)
    }

    fn spawn(mut command: Command, log: &Path) -> Self {
        let child = command
            .stdout(Stdio::piped())
            .stderr(append(log))
            .kill_on_drop(true)
            .spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("start {:?}: {error}", command.as_std());
        });
        let id = child.id().expect("a started process has a pid");
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        Self {
            child,
            pid: pid.expect("a pid is positive"),
            log: log.to_owned(),
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// SIGSTOP; returns once the kernel shows the process as stopped.
    pub async fn pause(&self) {
        self.signal(Signal::STOP);
        while self.state() != 'T' {
            tokio::task::yield_now().await;
        }
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGHUP.
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// Its exit code, once it has ended by itself; `None` if a signal ended it.
    pub async fn ended(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(END_LIMIT, self.child.wait()).await;
        ended.expect("it ends in time").expect("its status").code()
    }

    /// SIGKILL, unless it is gone already; returns once it is.
    pub async fn kill(&mut self) {
        self.child
            .kill()
            .await
            .expect("kill a process of this test");
    }

    /// The state letter in /proc: 'T' is stopped.
    #[must_use]
    pub fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))
            .expect("the process is there");
        let (_, rest) = stat
            .rsplit_once(") ")
            .expect("stat holds a command in brackets");
        rest.chars().next().expect("stat holds a state")
    }

    /// Its memory that is in use, in KiB.
    #[must_use]
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("the process is there");
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        kib.expect("status holds a size")
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("signal a process of this test");
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n");
            eprintln!(
                "--- end of {} (pid {})\n{tail}\n---",
                self.log.display(),
                self.pid()
            );
        }
    }
}

fn append(log: &Path) -> File {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .expect("open the log file")
}

async fn find(
    lines: &mut Lines<BufReader<ChildStdout>>,
    marks: &[&str],
    printed: &mut Vec<String>,
) -> Option<Vec<String>> {
    let mut found = vec![None; marks.len()];
    while found.iter().any(Option::is_none) {
        let line = lines.next_line().await.ok()??;
        printed.push(line.clone());
        let mut open = marks
            .iter()
            .zip(&mut found)
            .filter(|(_, slot)| slot.is_none());
        if let Some((_, slot)) = open.find(|(mark, _)| line.contains(**mark)) {
            *slot = Some(line);
        }
    }
    found.into_iter().collect()
}

fn drain(mut lines: Lines<BufReader<ChildStdout>>, mut log: File) {
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            // Only for whoever looks for the reason of a failure.
            let _ = writeln!(log, "{line}");
        }
    });
}
