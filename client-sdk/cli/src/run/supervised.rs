//! A command and its supervisor process, as `run` controls them.

use std::{
    ffi::OsString,
    io,
    os::{fd::AsFd as _, unix::process::CommandExt as _},
    process::{Child, Command, Stdio},
    time::Duration,
};

use leasehold::Guard;
use leasehold_proto::text::plain;
use rustix::process::{Pid, Signal, WaitOptions, getpgrp, kill_process_group, wait};
use tokio::time::{Instant, sleep};

use super::{
    ipc::{Channel, Report, SupervisorCommand},
    process_tree,
    terminal::Terminal,
    this_program, valid_until,
};
use crate::{
    clock,
    exit::{Failure, LOST},
};

/// Deadlines that differ by less are considered equal.
const DEADLINE_TOLERANCE: Duration = Duration::from_millis(10);
/// Time within which a shell stops this job, if the job belongs to a shell.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Divisor of the TTL. After the end of the validity this process waits a twentieth of the TTL
/// before it kills what the supervisor should have killed: half of the smallest safety margin of
/// the client.
const RESERVE_DIVISOR: u32 = 20;

/// Parameters of the command to run.
pub(super) struct CommandParams<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) command: &'a [OsString],
    pub(super) kill_after: Duration,
}

/// A running command, with its supervisor.
pub(super) struct SupervisedCommand {
    channel: Channel,
    process: Child,
    /// Process group of the supervisor, the command and its children.
    group: Pid,
    terminal: Option<Terminal>,
    /// Deadline that was sent to the supervisor last.
    sent_deadline: Duration,
    reserve: Duration,
    /// Time at which this process stopped itself.
    stopped_at: Option<Instant>,
}

impl SupervisedCommand {
    /// Starts the supervisor and the command.
    pub(super) async fn start(job: &CommandParams<'_>, guard: &Guard) -> Result<Self, Failure> {
        let started = Self::try_start(job, guard).await;
        started.map_err(|error| match guard.lost_reason() {
            Some(reason) => Failure::new(
                LOST,
                format!(
                    "the lock {:?} was lost before the command started: {}",
                    job.name,
                    plain(&reason.to_string())
                ),
            ),
            None => Failure::general(format!("cannot start the command: {error}")),
        })
    }

    async fn try_start(job: &CommandParams<'_>, guard: &Guard) -> io::Result<Self> {
        process_tree::adopt()?;
        let (channel, remote) = Channel::pair()?;
        let ttl = guard.ttl();
        let process = Command::new(this_program()?)
            .arg0("leasehold")
            .args([
                "guard",
                "--kill-after-ms",
                &job.kill_after.as_millis().to_string(),
                "--",
            ])
            .args(job.command)
            .env("LEASEHOLD_NAME", job.name)
            .env("LEASEHOLD_NAMESPACE", job.namespace)
            .env("LEASEHOLD_LEASE_ID", guard.lease_id())
            .env("LEASEHOLD_FENCING_TOKEN", guard.fencing_token().to_string())
            .env("LEASEHOLD_TTL_MS", ttl.as_millis().to_string())
            .stdin(Stdio::from(remote))
            .process_group(0)
            .spawn()?;
        let group = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or_else(|| io::Error::other("a process without an id"))?;
        let mut supervised = Self {
            channel,
            process,
            group,
            terminal: Terminal::open_for_job(),
            sent_deadline: Duration::ZERO,
            reserve: ttl / RESERVE_DIVISOR,
            stopped_at: None,
        };
        let started = supervised.start_command(guard).await;
        if started.is_err() {
            supervised.wait_or_kill(false).await;
        }
        started.map(|()| supervised)
    }

    async fn start_command(&mut self, guard: &Guard) -> io::Result<()> {
        let not_started = || io::Error::other("its guard did not start");
        self.expect(Report::Ready).await.ok_or_else(not_started)?;
        self.lend_terminal();
        let lost = || io::Error::other("the lock was lost before the command started");
        self.sent_deadline = valid_until(guard).ok_or_else(lost)?;
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        self.channel.send_start(self.sent_deadline, stdin).await?;
        self.expect(Report::Started).await.ok_or_else(not_started)
    }

    async fn expect(&mut self, expected: Report) -> Option<()> {
        (self.recv().await? == expected).then_some(())
    }

    /// Receives the next message of the supervisor, or `None` after its exit. Cancel safe.
    pub(super) async fn recv(&mut self) -> Option<Report> {
        self.channel.recv().await
    }

    pub(super) fn send(&self, command: SupervisorCommand) {
        self.channel.try_send(command);
    }

    /// Sends the deadline to the supervisor, and kills the process group if the supervisor fails to
    /// do so.
    pub(super) fn tick(&mut self, guard: &Guard) {
        match valid_until(guard) {
            Some(until) if until > self.sent_deadline + DEADLINE_TOLERANCE => {
                self.sent_deadline = until;
                self.send(SupervisorCommand::ValidUntil(until));
            }
            Some(_) => {}
            None if clock::now() >= self.sent_deadline + self.reserve => self.signal(Signal::KILL),
            None => {}
        }
        // A shell would have stopped this process by now, and would have claimed the terminal.
        if self
            .stopped_at
            .is_some_and(|at| at.elapsed() > STOP_TIMEOUT)
        {
            self.resume();
        }
    }

    /// Sends a signal to the command and its process group.
    pub(super) fn forward_signal(&mut self, signal: Signal) {
        if signal == Signal::CONT {
            return self.resume();
        }
        self.signal(signal);
    }

    /// Stops this job, because the command was stopped at the terminal.
    pub(super) fn on_stopped(&mut self) {
        self.stopped_at = Some(Instant::now());
        // The process group of this process always exists.
        let _ = kill_process_group(getpgrp(), Signal::TSTP);
    }

    fn resume(&mut self) {
        self.stopped_at = None;
        self.lend_terminal();
        self.signal(Signal::CONT);
    }

    fn lend_terminal(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.set_foreground(self.group);
        }
    }

    fn signal(&self, signal: Signal) {
        // The process group may be empty.
        let _ = kill_process_group(self.group, signal);
    }

    /// Waits for the exit of the supervisor. If the end is not orderly, also kills all its
    /// descendants.
    pub(super) async fn wait_or_kill(&mut self, is_orderly: bool) {
        if is_orderly {
            // The supervisor exits at once after its last message.
            let _ = self.process.wait();
            return;
        }
        loop {
            self.signal(Signal::KILL);
            process_tree::signal_all(Signal::KILL);
            // Orphans are children of this process.
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            if wait(WaitOptions::NOHANG).is_err() {
                return;
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}
