//! The guard of a command: a process of its own that starts the command, and ends it when nobody has
//! vouched for the lock for too long, whatever became of the process that should.
//!
//! It leads the command's process group: so it hears what is typed at the terminal, and may give that
//! back. What the command starts and leaves behind becomes its child.

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
    channel::{Channel, Ending, Order, Report},
    signals::Signals,
    terminal::Terminal,
    tree,
};
use crate::{args, clock, exit::Failure};

/// How often the time is looked at: no timer runs through a suspend.
const TICK: Duration = Duration::from_millis(50);
/// How often those that must die are looked for.
const KILLING: Duration = Duration::from_millis(5);
/// Two Ctrl-C within this time kill.
const TWICE: Duration = Duration::from_secs(2);

/// What is sent to the group is meant for the command. Whoever leads it must not die of it.
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

/// How far the command is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It may run.
    Trusted,
    /// It was asked to end, and has until then.
    Asked(Duration),
    /// It is being killed.
    Killing,
}

struct Guarding {
    channel: Channel,
    terminal: Option<Terminal>,
    /// The group that the terminal goes back to.
    home: Option<Pid>,
    child: Pid,
    kill_after: Duration,
    /// Until when the lock can be trusted.
    until: Duration,
    stage: Stage,
    is_lost: bool,
    ending: Option<Ending>,
    interrupted: Option<Instant>,
    /// Whether anybody is there to vouch.
    is_vouched: bool,
}

pub(crate) async fn guard(args: args::Guard) -> Result<u8, Failure> {
    let failed = |error: io::Error| Failure::own(format!("the guard of the command: {error}"));
    let mut signals = Signals::of(&CAUGHT).map_err(failed)?;
    tree::adopt().map_err(failed)?;
    let control = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let mut channel = Channel::of(StdStream::from(control)).map_err(failed)?;
    channel.say(Report::Ready).await.map_err(failed)?;
    let (until, stdin) = channel.begun().await.map_err(failed)?;
    let home = getppid().and_then(|parent| getpgid(Some(parent)).ok());
    let terminal = Terminal::open();
    let child = spawn(&args, stdin).map_err(failed)?;
    channel.say(Report::Started).await.map_err(failed)?;
    let guarding = Guarding {
        channel,
        terminal,
        home,
        child,
        kill_after: Duration::from_millis(args.kill_after_ms),
        until,
        stage: Stage::Trusted,
        is_lost: false,
        ending: None,
        interrupted: None,
        is_vouched: true,
    };
    guarding.run(&mut signals).await;
    Ok(0)
}

/// Starts the command, which dies with this process.
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

impl Guarding {
    async fn run(mut self, signals: &mut Signals) {
        while !self.reap().await {
            let pause = match self.stage {
                Stage::Trusted | Stage::Asked(_) => TICK,
                Stage::Killing => KILLING,
            };
            tokio::select! {
                order = self.channel.hear(), if self.is_vouched => self.obey(order).await,
                signal = signals.next() => self.signalled(signal),
                () = sleep(pause) => {}
            }
            self.look().await;
        }
        let ending = self.ending.unwrap_or(Ending::Signal(Signal::KILL.as_raw()));
        if let Some(terminal) = &self.terminal {
            if matches!(ending, Ending::Signal(_)) {
                terminal.restore();
            }
            self.give_terminal_back(terminal);
        }
        // Without anybody to hear it nobody needs to know.
        let _ = self.channel.say(Report::Ended(ending)).await;
    }

    async fn obey(&mut self, order: Option<Order>) {
        match order {
            Some(Order::Until(until)) => self.until = self.until.max(until),
            Some(Order::Lost) => self.ask_to_end().await,
            // Whoever vouched for the lock is gone.
            None => {
                self.is_vouched = false;
                self.ask_to_end().await;
            }
        }
    }

    fn signalled(&mut self, signal: Signal) {
        if signal != Signal::INT {
            return;
        }
        let now = Instant::now();
        let last = self.interrupted.replace(now);
        if last.is_some_and(|last| now.duration_since(last) < TWICE) {
            self.stage = Stage::Killing;
        }
    }

    /// Looks at the time.
    async fn look(&mut self) {
        let now = clock::now();
        match self.stage {
            Stage::Trusted if now + self.kill_after >= self.until => self.ask_to_end().await,
            Stage::Asked(kill_at) if now >= kill_at => self.stage = Stage::Killing,
            Stage::Trusted | Stage::Asked(_) | Stage::Killing => {}
        }
        if self.stage == Stage::Killing {
            tree::signal_all(Signal::KILL);
        }
    }

    async fn ask_to_end(&mut self) {
        self.is_lost = true;
        if self.stage != Stage::Trusted {
            return;
        }
        self.stage = Stage::Asked(self.until.min(clock::now() + self.kill_after));
        for signal in [Signal::TERM, Signal::CONT] {
            // This process is in it, so it is there.
            let _ = kill_current_process_group(signal);
            tree::signal_strays(signal);
        }
        // Whoever should hear it may be gone.
        let _ = self.channel.say(Report::Lost).await;
    }

    /// Collects children. Whether this is the end: of the command, or once the lock is lost of all that
    /// came of it.
    async fn reap(&mut self) -> bool {
        loop {
            let (pid, status) = match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some(changed)) => changed,
                Ok(None) => return self.ending.is_some() && self.stage == Stage::Trusted,
                Err(Errno::INTR) => continue,
                // There is no child left.
                Err(_) => return true,
            };
            if pid != self.child {
                continue;
            }
            if status.stopped() {
                self.stopped().await;
            } else if let Some(code) = status.exit_status() {
                self.ending = Some(Ending::Code(code));
            } else if let Some(signal) = status.terminating_signal() {
                self.ending = Some(Ending::Signal(signal));
            }
        }
    }

    /// The command was stopped. With the terminal it is a job, and whoever started it decides.
    async fn stopped(&mut self) {
        let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_mine()) else {
            return;
        };
        self.give_terminal_back(terminal);
        // Whoever should hear it may be gone.
        let _ = self.channel.say(Report::Stopped).await;
    }

    fn give_terminal_back(&self, terminal: &Terminal) {
        if let Some(home) = self.home {
            terminal.lend(home);
        }
    }
}
