//! A child process under test, which is signalled only by its pid.

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

/// A child process, which is killed when dropped. The end of its log is printed if the test fails.
#[derive(Debug)]
pub struct TestProcess {
    child: Child,
    pid: Pid,
    log: PathBuf,
}

impl TestProcess {
    /// Starts `command`, waits until stdout contains a line for each of `marks`, and returns these
    /// lines. A line counts for the first missing mark that it contains. Stderr is appended to the
    /// file `log`, and so is the rest of stdout.
    pub async fn start(mut command: Command, log: &Path, marks: &[&str]) -> (Self, Vec<String>) {
        let command_text = format!("{:?}", command.as_std());
        command.stdin(Stdio::null());
        let mut process = Self::spawn(command, log);
        let stdout = process.child.stdout.take().expect("stdout is piped");
        let mut lines = BufReader::new(stdout).lines();
        let mut printed = Vec::new();
        let found = find_marks(&mut lines, marks, &mut printed);
        let found = tokio::time::timeout(START_LIMIT, found).await;
        let Ok(Some(found)) = found else {
            panic!("{command_text} did not print {marks:?} but {printed:#?}");
        };
        drain_to_log(lines, open_log(log));
        (process, found)
    }

    /// Starts `command` with pipes to its stdin and stdout. Stderr is appended to the file `log`.
    #[must_use]
    pub fn start_with_pipes(mut command: Command, log: &Path) -> (Self, ChildStdin, ChildStdout) {
        command.stdin(Stdio::piped());
        let mut process = Self::spawn(command, log);
        let stdin = process.child.stdin.take().expect("stdin is piped");
        let stdout = process.child.stdout.take().expect("stdout is piped");
        (process, stdin, stdout)
    }

    fn spawn(mut command: Command, log: &Path) -> Self {
        let child = command
            .stdout(Stdio::piped())
            .stderr(open_log(log))
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

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Sends SIGSTOP and waits until the kernel reports the process as stopped.
    pub async fn pause(&self) {
        self.signal(Signal::STOP);
        while self.state() != 'T' {
            tokio::task::yield_now().await;
        }
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGHUP.
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// Waits until the process exits and returns its exit code, or `None` if a signal terminated
    /// the process.
    pub async fn wait_for_exit(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(END_LIMIT, self.child.wait()).await;
        ended.expect("it ends in time").expect("its status").code()
    }

    /// Sends SIGKILL, unless the process has exited already, and waits until it has exited.
    pub async fn kill(&mut self) {
        self.child
            .kill()
            .await
            .expect("kill a process of this test");
    }

    /// Returns the state letter in `/proc/PID/stat`. `T` is a stopped process.
    #[must_use]
    pub fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))
            .expect("the process is there");
        let (_, rest) = stat
            .rsplit_once(") ")
            .expect("stat holds a command in brackets");
        rest.chars().next().expect("stat holds a state")
    }

    /// Returns the resident memory in KiB.
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

fn open_log(log: &Path) -> File {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .expect("open the log file")
}

async fn find_marks(
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

fn drain_to_log(mut lines: Lines<BufReader<ChildStdout>>, mut log: File) {
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            // The log serves only to diagnose failures, so write errors are ignored.
            let _ = writeln!(log, "{line}");
        }
    });
}
