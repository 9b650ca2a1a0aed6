//! The command `run`: runs a command under a lock, and ends the command before the lock can be
//! lost.

mod exec_child;
mod ipc;
mod process_tree;
mod signals;
mod supervised;
mod supervisor;
mod terminal;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold::Guard;
use leasehold_proto::text::plain;
use tokio::time::{MissedTickBehavior, interval};

pub(crate) use self::{exec_child::exec_child, signals::Signals, supervisor::supervise};
use self::{
    ipc::{CommandExit, Report, SupervisorCommand},
    supervised::{CommandParams, SupervisedCommand},
};
use crate::{
    acquire::{AcquiredLock, acquire_lock},
    args::{ConnectionArgs, Run},
    clock,
    commands::release_guard,
    exit::{self, Failure, GENERAL_FAILURE, LOST},
    output,
    settings::Settings,
};

/// Interval at which the validity of the lock is sent to the supervisor process of the command.
const TICK: Duration = Duration::from_millis(50);
/// Minimum ratio of the TTL to the time for ending a command. Heartbeats are a third of the TTL
/// apart, and between two of them there must be time to detect a loss and to end the command.
const TTL_TO_KILL_TIME_MIN: u32 = 3;

pub(crate) async fn run(mut args: Run, connection: &ConnectionArgs) -> Result<u8, Failure> {
    let settings = Settings::read(connection)?;
    if let Some(problem) = ttl_problem(args.lock.ttl, args.kill_after) {
        return Err(Failure::general(format!("--ttl {problem}")));
    }
    if args.lock.reason.is_none() {
        args.lock.reason = program_name(&args.command);
    }
    let mut signals = Signals::catch()?;
    let AcquiredLock { client, guard } =
        acquire_lock(&args.lock, &settings, &mut signals, "run").await?;
    let name = args.lock.name.clone();
    let result = run_under_lock(&args, &settings, &guard, &mut signals).await;
    // The command has ended, so a later loss of the lock is irrelevant.
    let released = release_guard(guard, &name).await;
    client.shutdown().await;
    let code = result?;
    if let (Err(failure), false) = (released, code == LOST) {
        output::print_message(&failure.text);
    }
    Ok(code)
}

/// Returns the reason for which a TTL is too short for ending a command in time, if it is.
fn ttl_problem(ttl: Duration, kill_after: Duration) -> Option<String> {
    let (ttl_min, kill_after_max) = (
        kill_after.saturating_mul(TTL_TO_KILL_TIME_MIN),
        ttl / TTL_TO_KILL_TIME_MIN,
    );
    if ttl_min <= ttl {
        return None;
    }
    Some(format!(
        "{} is too short for --kill-after {}: the command could not be ended before another caller \
         gets the lock. Use --ttl {} or more, or --kill-after {} or less",
        output::format_exact(ttl),
        output::format_exact(kill_after),
        output::format_exact(ttl_min),
        output::format_exact(kill_after_max)
    ))
}

/// Runs the command under the lock and returns the exit code.
async fn run_under_lock(
    args: &Run,
    settings: &Settings,
    guard: &Guard,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    if let Some(problem) = ttl_problem(guard.ttl(), args.kill_after) {
        return Err(Failure::general(format!(
            "the broker granted a shorter ttl: {problem}"
        )));
    }
    let job = CommandParams {
        name: &args.lock.name,
        namespace: &settings.namespace,
        command: &args.command,
        kill_after: args.kill_after,
    };
    let mut supervised = SupervisedCommand::start(&job, guard).await?;
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lost_reason = None;
    let mut is_lost = false;
    let command_exit = loop {
        tokio::select! {
            report = supervised.recv() => match report {
                Some(Report::Ended(command_exit)) => break Some(command_exit),
                Some(Report::Lost) => {
                    is_lost = true;
                    report_loss(args, guard);
                }
                Some(Report::Stopped) => supervised.on_stopped(),
                Some(Report::Ready | Report::Started) => {}
                None => break None,
            },
            signal = signals.next() => supervised.forward_signal(signal),
            reason = guard.lost(), if lost_reason.is_none() => {
                lost_reason = Some(reason);
                supervised.send(SupervisorCommand::Lost);
            }
            _ = tick.tick() => supervised.tick(guard),
        }
    };
    let is_supervised = command_exit.is_some();
    supervised.wait_or_kill(is_supervised).await;
    match command_exit {
        None if is_lost || lost_reason.is_some() => Ok(LOST),
        None => Err(Failure::new(
            GENERAL_FAILURE,
            "the guard of the command was killed, and the command with it",
        )),
        Some(_) if is_lost => Ok(LOST),
        Some(CommandExit::Code(code)) => Ok(u8::try_from(code).unwrap_or(GENERAL_FAILURE)),
        Some(CommandExit::Signal(signal)) => Ok(exit::code_of_signal(signal)),
    }
}

fn report_loss(args: &Run, guard: &Guard) {
    let reason = guard.lost_reason();
    let reason = reason.map_or("no renewal was confirmed in time".to_owned(), |reason| {
        plain(&reason.to_string())
    });
    output::print_message(&format!(
        "the lock {:?} is lost: {reason}. The command gets SIGTERM, and SIGKILL {} later",
        args.lock.name,
        output::format_exact(args.kill_after)
    ));
}

/// Returns the file name of the command's program. The folder and the arguments may contain
/// secrets, and every caller that may observe the lock can read its reason.
fn program_name(command: &[OsString]) -> Option<String> {
    let name = Path::new(command.first()?).file_name()?;
    Some(name.to_string_lossy().into_owned())
}

/// Returns a path that starts this program again, even if its file was replaced since.
fn this_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe()
}

/// Returns the end of the lock's validity on the clock of `clock::now`, or `None` if it has ended.
fn valid_until(guard: &Guard) -> Option<Duration> {
    // The clock is read first, because a deadline that is too late would be unsafe.
    let now = clock::now();
    let remaining = guard.remaining();
    (!remaining.is_zero()).then(|| now + remaining)
}
