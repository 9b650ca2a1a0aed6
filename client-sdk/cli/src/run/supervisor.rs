//! The supervisor of a command: a separate process that starts the command. It ends the command
//! when the validity of the lock is not extended in time, even if the process of `run` hangs or
//! dies.
//!
//! The supervisor leads the command's process group, so that it receives the signals of the
//! terminal and may return the terminal. Orphaned descendants of the command become its children.

use std::{
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream as StdStream, process::CommandExt as _},
    },
    process::{Command, Stdio},
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitOptions, getpgid, getpid, getppid, kill_current_process_group, wait,
    },
};
use tokio::time::{Instant, sleep};

use super::{
    ipc::{Channel, CommandExit, Report, SupervisorCommand},
    process_tree,
    signals::Signals,
    terminal::Terminal,
};
use crate::{args, clock, exit::Failure};

/// Interval at which deadlines are checked. No timer runs through a suspend.
const TICK: Duration = Duration::from_millis(50);
/// Interval at which remaining processes are searched and killed.
const KILL_INTERVAL: Duration = Duration::from_millis(5);
/// Time within which a second Ctrl-C kills the command.
const SECOND_INTERRUPT_WINDOW: Duration = Duration::from_secs(2);

/// Signals that the process group may receive. They are meant for the command and must not
/// terminate its supervisor.
const CAUGHT: [Signal; 14] = [
    Signal::INT,
    Signal::CHILD,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::CONT,
    Signal::ALARM,
    Signal::PIPE,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
];

/// Progress of ending the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The lock is valid, and the command may run.
    Valid,
    /// SIGTERM was sent, and SIGKILL follows at this time.
    Terminating(Duration),
    /// SIGKILL is being sent.
    Killing,
}

struct Supervisor {
    channel: Channel,
    terminal: Option<Terminal>,
    /// Process group to which the terminal is returned.
    parent_group: Option<Pid>,
    child: Pid,
    kill_after: Duration,
    /// End of the validity of the lock.
    valid_until: Duration,
    stage: Stage,
    is_lost: bool,
    command_exit: Option<CommandExit>,
    last_interrupt_at: Option<Instant>,
    /// True until the socket to `run` is closed.
    is_connected: bool,
}

pub(crate) async fn supervise(args: args::Guard) -> Result<u8, Failure> {
    let failed =
        |error: io::Error| Failure::general(format!("the guard of the command failed: {error}"));
    let mut signals = Signals::catch_all_of(&CAUGHT).map_err(failed)?;
    process_tree::adopt().map_err(failed)?;
    let control = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let mut channel = Channel::from_stream(StdStream::from(control)).map_err(failed)?;
    channel.send(Report::Ready).await.map_err(failed)?;
    let (valid_until, stdin) = channel.recv_start().await.map_err(failed)?;
    let parent_group = getppid().and_then(|parent| getpgid(Some(parent)).ok());
    let terminal = Terminal::open();
    let child = spawn(&args, stdin).map_err(failed)?;
    channel.send(Report::Started).await.map_err(failed)?;
    let supervisor = Supervisor {
        channel,
        terminal,
        parent_group,
        child,
        kill_after: Duration::from_millis(args.kill_after_ms),
        valid_until,
        stage: Stage::Valid,
        is_lost: false,
        command_exit: None,
        last_interrupt_at: None,
        is_connected: true,
    };
    supervisor.run(&mut signals).await;
    Ok(0)
}

/// Starts the command, which is killed when this process dies.
fn spawn(args: &args::Guard, stdin: OwnedFd) -> io::Result<Pid> {
    let child = Command::new(super::this_program()?)
        .arg0("leasehold")
        .args(["exec-child", "--guard", &getpid().to_string(), "--"])
        .args(&args.command)
        .stdin(Stdio::from(stdin))
        .spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("a process without an id"))
}

impl Supervisor {
    async fn run(mut self, signals: &mut Signals) {
        while !self.reap().await {
            let pause = match self.stage {
                Stage::Valid | Stage::Terminating(_) => TICK,
                Stage::Killing => KILL_INTERVAL,
            };
            tokio::select! {
                command = self.channel.recv(), if self.is_connected => self.on_command(command).await,
                signal = signals.next() => self.on_signal(signal),
                () = sleep(pause) => {}
            }
            self.check_deadline().await;
        }
        let command_exit = self
            .command_exit
            .unwrap_or(CommandExit::Signal(Signal::KILL.as_raw()));
        if let Some(terminal) = &self.terminal {
            if matches!(command_exit, CommandExit::Signal(_)) {
                terminal.restore();
            }
            self.return_terminal(terminal);
        }
        // The process of `run` may have exited.
        let _ = self.channel.send(Report::Ended(command_exit)).await;
    }

    async fn on_command(&mut self, command: Option<SupervisorCommand>) {
        match command {
            Some(SupervisorCommand::ValidUntil(valid_until)) => {
                self.valid_until = self.valid_until.max(valid_until)
            }
            Some(SupervisorCommand::Lost) => self.terminate().await,
            // The process of `run` has exited.
            None => {
                self.is_connected = false;
                self.terminate().await;
            }
        }
    }

    fn on_signal(&mut self, signal: Signal) {
        if signal != Signal::INT {
            return;
        }
        let now = Instant::now();
        let last = self.last_interrupt_at.replace(now);
        if last.is_some_and(|last| now.duration_since(last) < SECOND_INTERRUPT_WINDOW) {
            self.stage = Stage::Killing;
        }
    }

    /// Ends or kills the command if its deadline has passed.
    async fn check_deadline(&mut self) {
        let now = clock::now();
        match self.stage {
            Stage::Valid if now + self.kill_after >= self.valid_until => self.terminate().await,
            Stage::Terminating(kill_at) if now >= kill_at => self.stage = Stage::Killing,
            Stage::Valid | Stage::Terminating(_) | Stage::Killing => {}
        }
        if self.stage == Stage::Killing {
            process_tree::signal_all(Signal::KILL);
        }
    }

    async fn terminate(&mut self) {
        self.is_lost = true;
        if self.stage != Stage::Valid {
            return;
        }
        self.stage = Stage::Terminating(self.valid_until.min(clock::now() + self.kill_after));
        for signal in [Signal::TERM, Signal::CONT] {
            // The group exists, because this process belongs to it.
            let _ = kill_current_process_group(signal);
            process_tree::signal_strays(signal);
        }
        // The process of `run` may have exited.
        let _ = self.channel.send(Report::Lost).await;
    }

    /// Collects exited children. Returns true after the end of the command. Once the lock is lost,
    /// returns true only after the end of all descendants.
    async fn reap(&mut self) -> bool {
        loop {
            let (pid, status) = match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some(changed)) => changed,
                Ok(None) => return self.command_exit.is_some() && self.stage == Stage::Valid,
                Err(Errno::INTR) => continue,
                // No child is left.
                Err(_) => return true,
            };
            if pid != self.child {
                continue;
            }
            if status.stopped() {
                self.on_stopped().await;
            } else if let Some(code) = status.exit_status() {
                self.command_exit = Some(CommandExit::Code(code));
            } else if let Some(signal) = status.terminating_signal() {
                self.command_exit = Some(CommandExit::Signal(signal));
            }
        }
    }

    /// Handles a stop of the command. With a terminal the command is a job, which its shell
    /// controls.
    async fn on_stopped(&mut self) {
        let Some(terminal) = self
            .terminal
            .as_ref()
            .filter(|terminal| terminal.is_foreground())
        else {
            return;
        };
        self.return_terminal(terminal);
        // The process of `run` may have exited.
        let _ = self.channel.send(Report::Stopped).await;
    }

    fn return_terminal(&self, terminal: &Terminal) {
        if let Some(parent_group) = self.parent_group {
            terminal.set_foreground(parent_group);
        }
    }
}
