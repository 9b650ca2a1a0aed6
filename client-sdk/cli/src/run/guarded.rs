//! A command and its guard, as `run` sees them.

use std::{
    ffi::OsString,
    io,
    os::{fd::AsFd as _, unix::process::CommandExt as _},
    process::{Child, Command, Stdio},
    time::Duration,
};

use leasehold::Guard;
use rustix::process::{Pid, Signal, WaitOptions, getpgrp, kill_process_group, wait};
use tokio::time::{Instant, sleep};

use super::{
    channel::{Channel, Order, Report},
    terminal::Terminal,
    this_program, tree, trusted_until,
};
use crate::{clock, exit::Failure};

/// Deadlines that differ by less are the same.
const SAME: Duration = Duration::from_millis(10);
/// By then a shell has stopped this job, if it is one of a shell.
const STOP_LIMIT: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How much of the ttl passes after the end of trust until this process kills what the guard should
/// have killed: half of the margin that the client keeps at least.
const RESERVE: u32 = 20;

/// What is to run.
pub(super) struct Job<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) command: &'a [OsString],
    pub(super) kill_after: Duration,
}

/// A command that runs, with its guard.
pub(super) struct Guarded {
    channel: Channel,
    process: Child,
    /// Of the guard, the command, and what it started.
    group: Pid,
    terminal: Option<Terminal>,
    /// What the guard was told last.
    until: Duration,
    reserve: Duration,
    /// When this process has stopped itself.
    stopped: Option<Instant>,
}

impl Guarded {
    /// Starts both.
    pub(super) async fn start(job: &Job<'_>, guard: &Guard) -> Result<Self, Failure> {
        let started = Self::try_start(job, guard).await;
        started.map_err(|error| Failure::own(format!("cannot start the command: {error}")))
    }

    async fn try_start(job: &Job<'_>, guard: &Guard) -> io::Result<Self> {
        tree::adopt()?;
        let (channel, theirs) = Channel::pair()?;
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
            .stdin(Stdio::from(theirs))
            .process_group(0)
            .spawn()?;
        let group = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or_else(|| io::Error::other("a process without an id"))?;
        let mut guarded = Self {
            channel,
            process,
            group,
            terminal: Terminal::of_job(),
            until: Duration::ZERO,
            reserve: ttl / RESERVE,
            stopped: None,
        };
        let begun = guarded.begin(guard).await;
        if begun.is_err() {
            guarded.end(false).await;
        }
        begun.map(|()| guarded)
    }

    async fn begin(&mut self, guard: &Guard) -> io::Result<()> {
        let gone = || io::Error::other("its guard did not start");
        self.expect(Report::Ready).await.ok_or_else(gone)?;
        self.lend_terminal();
        let lost = || io::Error::other("the lock was lost before it began");
        self.until = trusted_until(guard).ok_or_else(lost)?;
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        self.channel.begin(self.until, stdin).await?;
        self.expect(Report::Started).await.ok_or_else(gone)
    }

    async fn expect(&mut self, expected: Report) -> Option<()> {
        (self.hear().await? == expected).then_some(())
    }

    /// What the guard says next; `None`: it is gone. Cancel safe.
    pub(super) async fn hear(&mut self) -> Option<Report> {
        self.channel.hear().await
    }

    /// Tells the guard.
    pub(super) fn order(&self, order: Order) {
        self.channel.mention(order);
    }

    /// Passes the deadline on, and sees to it that a guard which stands still does not matter.
    pub(super) fn tick(&mut self, guard: &Guard) {
        match trusted_until(guard) {
            Some(until) if until > self.until + SAME => {
                self.until = until;
                self.order(Order::Until(until));
            }
            Some(_) => {}
            None if clock::now() >= self.until + self.reserve => self.signal(Signal::KILL),
            None => {}
        }
        // A shell would have stopped this process, and taken the terminal.
        if self.stopped.is_some_and(|at| at.elapsed() > STOP_LIMIT) {
            self.go_on();
        }
    }

    /// Passes a signal on to the command and all in its group.
    pub(super) fn pass_on(&mut self, signal: Signal) {
        if signal == Signal::CONT {
            return self.go_on();
        }
        self.signal(signal);
    }

    /// The command was stopped at the terminal, so this job stops, too.
    pub(super) fn stopped(&mut self) {
        self.stopped = Some(Instant::now());
        // Its own group is there.
        let _ = kill_process_group(getpgrp(), Signal::TSTP);
    }

    fn go_on(&mut self) {
        self.stopped = None;
        self.lend_terminal();
        self.signal(Signal::CONT);
    }

    fn lend_terminal(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.lend(self.group);
        }
    }

    fn signal(&self, signal: Signal) {
        // Nobody may be left in it.
        let _ = kill_process_group(self.group, signal);
    }

    /// Returns once the guard is gone, and without an orderly end all that it guarded.
    pub(super) async fn end(&mut self, is_orderly: bool) {
        if is_orderly {
            // It has nothing left to do.
            let _ = self.process.wait();
            return;
        }
        loop {
            self.signal(Signal::KILL);
            tree::signal_all(Signal::KILL);
            // Every orphan is a child of this process.
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            if wait(WaitOptions::NOHANG).is_err() {
                return;
            }
            sleep(LOOK_EVERY).await;
        }
    }
}
