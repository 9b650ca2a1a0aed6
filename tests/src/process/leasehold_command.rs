//! Runs of the command line `leasehold`, started as from a shell, without the test's environment.

use std::{ffi::OsStr, fmt, path::Path, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::{
    process::{binaries::leasehold, temp_dir::TempDir},
    until::until,
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// An environment of the command line: a home directory and the address of a broker.
#[derive(Debug)]
pub struct Cli {
    /// Value of `LEASEHOLD_ENDPOINT`.
    pub endpoint: String,
    pub home: TempDir,
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// The exit code, or `None` if a signal ended the process.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub struct RunningCommand {
    child: Child,
    /// Pipe to the stdin of the command, which is closed when this is dropped.
    pub stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Cli {
    /// Creates an environment with this broker.
    #[must_use]
    pub fn for_broker(broker: impl fmt::Display) -> Self {
        Self {
            endpoint: format!("http://{broker}"),
            home: TempDir::new("cli"),
        }
    }

    /// Returns the command with these arguments. The process is killed when it is dropped.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        self.in_environment(with_default_signals(leasehold()), args)
    }

    /// Returns another command in this environment. `args` follow the arguments that it already
    /// has.
    #[must_use]
    pub fn in_environment(&self, mut command: Command, args: &[&str]) -> Command {
        command.args(args).env_clear().kill_on_drop(true);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home.path()).env("USER", "tester");
        command.env("LEASEHOLD_ENDPOINT", &self.endpoint);
        command.stdin(Stdio::null());
        command
    }

    /// Runs the command with an empty stdin.
    pub async fn run(&self, args: &[&str]) -> CommandOutput {
        run_command(self.command(args)).await
    }

    /// Runs the command with this stdin.
    pub async fn run_with(&self, args: &[&str], stdin: &str) -> CommandOutput {
        let mut running = RunningCommand::start(self.command(args));
        let mut input = running.stdin.take().expect("stdin is piped");
        input.write_all(stdin.as_bytes()).await.expect("it reads");
        drop(input);
        running.wait_for_exit().await
    }

    #[must_use]
    pub fn start(&self, args: &[&str]) -> RunningCommand {
        RunningCommand::start(self.command(args))
    }

    /// Writes a file into the home directory, and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        let folder = path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(folder).expect("a folder in a home");
        std::fs::write(&path, text).expect("a file in a home");
        path.to_str().expect("a path of plain text").to_owned()
    }
}

/// Returns a command that resets all signals to their default actions, because the process that
/// runs the tests may ignore some (`nohup`, or a shell in the background).
#[must_use]
pub fn with_default_signals(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(program);
    command
}

/// Runs a command to its end.
pub async fn run_command(mut command: Command) -> CommandOutput {
    let output = timeout(TIMEOUT, command.output()).await;
    let output = output.expect("it ends in time").expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("plain text");
    CommandOutput {
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

impl RunningCommand {
    /// Starts a command with pipes for stdin, stdout and stderr.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        Self {
            stdin: child.stdin.take(),
            stdout: BufReader::new(stdout).lines(),
            stderr: BufReader::new(stderr).lines(),
            child,
        }
    }

    #[must_use]
    pub fn pid(&self) -> Pid {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        id.and_then(Pid::from_raw).expect("it runs")
    }

    /// Sends a signal to this process only.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a process of this test");
    }

    /// Returns the next line from stdout.
    pub async fn next_stdout_line(&mut self) -> String {
        let line = timeout(TIMEOUT, self.stdout.next_line()).await;
        let line = line.expect("it prints in time").expect("plain text");
        line.expect("another line")
    }

    /// Returns the next line from stderr.
    pub async fn next_stderr_line(&mut self) -> String {
        let line = timeout(TIMEOUT, self.stderr.next_line()).await;
        let line = line.expect("it speaks in time").expect("plain text");
        line.expect("another line")
    }

    /// Closes stdin, waits for the end of the process, and returns its result with the remaining
    /// output.
    pub async fn wait_for_exit(mut self) -> CommandOutput {
        drop(self.stdin.take());
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let ended = async {
            let (mut out, mut err) = (self.stdout.into_inner(), self.stderr.into_inner());
            let read = (
                out.read_to_string(&mut stdout),
                err.read_to_string(&mut stderr),
            );
            let (out, err) = futures::future::join(read.0, read.1).await;
            out.and(err).expect("plain text");
            self.child.wait().await.expect("its status")
        };
        let status = timeout(TIMEOUT, ended).await.expect("it ends in time");
        CommandOutput {
            code: status.code(),
            stdout,
            stderr,
        }
    }
}

/// Returns true if a process exists and is no zombie.
#[must_use]
pub fn is_alive(pid: i32) -> bool {
    let stat = process_stat(&format!("{pid}"));
    stat.is_some_and(|stat| !stat.starts_with(['Z', 'X']))
}

/// Returns the supervisor process of a command, which is its parent.
#[must_use]
pub fn supervisor_of(command: i32) -> Pid {
    let stat = process_stat(&format!("{command}")).expect("it runs");
    let parent = stat
        .split(' ')
        .nth(1)
        .and_then(|parent| parent.parse().ok());
    parent.and_then(Pid::from_raw).expect("a process id")
}

/// Waits until a supervisor has handled all signals that were sent to it: none is pending, and it
/// sleeps, which it does only after handling all of them.
pub async fn wait_until_signals_handled(guard: Pid) {
    let pid = guard.as_raw_nonzero();
    until("the guard has heard", async || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let none = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.is_some_and(|line| line.trim_start_matches(name).trim() == "0".repeat(16))
        };
        let sleeps = process_stat(&format!("{pid}"))?.starts_with('S');
        (none("SigPnd:") && none("ShdPnd:") && sleeps).then_some(())
    })
    .await;
}

/// Returns the fields of `/proc/PID/stat` after the name: the state, the parent...
fn process_stat(pid: &str) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.to_owned())
}
