//! The command line `leasehold` under test: started as from a shell, without the test's environment.

use std::{ffi::OsStr, fmt, path::Path, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::{binary::leasehold, temp_dir::TempDir, until::until};

const LIMIT: Duration = Duration::from_secs(30);

/// A place to call it from: a home of its own, and a broker.
#[derive(Debug)]
pub struct Cli {
    /// `LEASEHOLD_ENDPOINT`.
    pub endpoint: String,
    /// Its home.
    pub home: TempDir,
}

/// What a call came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// The exit code; `None`: a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it said.
    pub stderr: String,
}

/// A call that goes on.
pub struct Running {
    child: Child,
    /// What it reads, until dropped.
    pub stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Cli {
    /// With a broker there.
    #[must_use]
    pub fn at(broker: impl fmt::Display) -> Self {
        Self {
            endpoint: format!("http://{broker}"),
            home: TempDir::new("cli"),
        }
    }

    /// The program with these arguments; killed when dropped.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        self.called_by(attentive(leasehold()), args)
    }

    /// The same by another program, which gets the arguments behind its own.
    #[must_use]
    pub fn called_by(&self, mut command: Command, args: &[&str]) -> Command {
        command.args(args).env_clear().kill_on_drop(true);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home.path()).env("USER", "tester");
        command.env("LEASEHOLD_ENDPOINT", &self.endpoint);
        command.stdin(Stdio::null());
        command
    }

    /// Calls it with nothing to read.
    pub async fn run(&self, args: &[&str]) -> Ran {
        ran(self.command(args)).await
    }

    /// Calls it with something to read.
    pub async fn run_with(&self, args: &[&str], stdin: &str) -> Ran {
        let mut running = Running::start(self.command(args));
        let mut input = running.stdin.take().expect("stdin is piped");
        input.write_all(stdin.as_bytes()).await.expect("it reads");
        drop(input);
        running.ended().await
    }

    /// Starts it.
    #[must_use]
    pub fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args))
    }

    /// Writes a file into its home; its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        let folder = path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(folder).expect("a folder in a home");
        std::fs::write(&path, text).expect("a file in a home");
        path.to_str().expect("a path of plain text").to_owned()
    }
}

/// A program that ignores no signal, though whoever runs the tests may: `nohup`, or a shell in the background.
#[must_use]
pub fn attentive(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(program);
    command
}

/// Runs a command to its end.
pub async fn ran(mut command: Command) -> Ran {
    let output = timeout(LIMIT, command.output()).await;
    let output = output.expect("it ends in time").expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("plain text");
    Ran {
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

impl Running {
    /// Starts a command, to be read from and written to.
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

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        id.and_then(Pid::from_raw).expect("it runs")
    }

    /// Signals it, and nobody else.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a process of this test");
    }

    /// Its next line on stdout.
    pub async fn line(&mut self) -> String {
        let line = timeout(LIMIT, self.stdout.next_line()).await;
        let line = line.expect("it prints in time").expect("plain text");
        line.expect("another line")
    }

    /// Its next line on stderr.
    pub async fn said(&mut self) -> String {
        let line = timeout(LIMIT, self.stderr.next_line()).await;
        let line = line.expect("it speaks in time").expect("plain text");
        line.expect("another line")
    }

    /// Its end, with what it had not said before.
    pub async fn ended(mut self) -> Ran {
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
        let status = timeout(LIMIT, ended).await.expect("it ends in time");
        Ran {
            code: status.code(),
            stdout,
            stderr,
        }
    }
}

/// Whether a process is there, and no zombie.
#[must_use]
pub fn lives(pid: i32) -> bool {
    let stat = stat(&format!("{pid}"));
    stat.is_some_and(|stat| !stat.starts_with(['Z', 'X']))
}

/// The guard of a command.
#[must_use]
pub fn guard_of(command: i32) -> Pid {
    let stat = stat(&format!("{command}")).expect("it runs");
    let parent = stat
        .split(' ')
        .nth(1)
        .and_then(|parent| parent.parse().ok());
    parent.and_then(Pid::from_raw).expect("a process id")
}

/// Returns once a guard has heard every signal that was sent to it: none is pending, and it sleeps, which
/// it does not before it has looked at all of them.
pub async fn has_heard(guard: Pid) {
    let pid = guard.as_raw_nonzero();
    until("the guard has heard", async || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let none = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.is_some_and(|line| line.trim_start_matches(name).trim() == "0".repeat(16))
        };
        let sleeps = stat(&format!("{pid}"))?.starts_with('S');
        (none("SigPnd:") && none("ShdPnd:") && sleeps).then_some(())
    })
    .await;
}

/// What follows the name: the state, the parent...
fn stat(pid: &str) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.to_owned())
}
