//! `run`: a command that lives no longer than the lock that it runs under.

mod channel;
mod exec_child;
mod guard;
mod guarded;
mod signals;
mod terminal;
mod tree;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold::Guard;
use leasehold_proto::text::plain;
use tokio::time::{MissedTickBehavior, interval};

use self::{
    channel::{Ending, Order, Report},
    guarded::{Guarded, Job},
};
pub(crate) use self::{exec_child::exec_child, guard::guard, signals::Signals};
use crate::{
    args::{Reach, Run},
    clock,
    commands::give_back,
    exit::{self, Failure, LOST, OWN_FAILURE},
    obtain::{Obtained, obtain},
    settings::Settings,
    show,
};

/// How often the guard of the command is told until when the lock can be trusted.
const TICK: Duration = Duration::from_millis(50);
/// The ttl must be so many times the time that ending a command takes: between two heartbeats, a third
/// of the ttl apart, there must be time to hear of a loss and time to end.
const PARTS: u32 = 3;

pub(crate) async fn run(mut args: Run, reach: &Reach) -> Result<u8, Failure> {
    let settings = Settings::read(reach)?;
    if let Some(why) = too_short(args.take.ttl, args.kill_after) {
        return Err(Failure::own(format!("--ttl {why}")));
    }
    if args.take.reason.is_none() {
        args.take.reason = program_name(&args.command);
    }
    let mut signals = Signals::catch()?;
    let Obtained { client, guard } = obtain(&args.take, &settings, &mut signals, "run").await?;
    let name = args.take.name.clone();
    let done = under(&args, &settings, &guard, &mut signals).await;
    // The command has ended: whether the lock lived on after that is of no account.
    let released = give_back(guard, &name).await;
    client.shutdown().await;
    let code = done?;
    if let (Err(failure), false) = (released, code == LOST) {
        show::say(&failure.text);
    }
    Ok(code)
}

/// Why a ttl is too short for ending a command in time.
fn too_short(ttl: Duration, kill_after: Duration) -> Option<String> {
    let (least, most) = (kill_after.saturating_mul(PARTS), ttl / PARTS);
    if least <= ttl {
        return None;
    }
    Some(format!(
        "{} is too short for --kill-after {}: the command could not be ended before somebody else gets \
         the lock. Give --ttl {} or more, or --kill-after {} or less",
        show::exact(ttl),
        show::exact(kill_after),
        show::exact(least),
        show::exact(most)
    ))
}

/// Runs the command under the lock; the code to exit with.
async fn under(
    args: &Run,
    settings: &Settings,
    guard: &Guard,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    if let Some(why) = too_short(guard.ttl(), args.kill_after) {
        return Err(Failure::own(format!(
            "the broker grants no longer ttl, and {why}"
        )));
    }
    let job = Job {
        name: &args.take.name,
        namespace: &settings.namespace,
        command: &args.command,
        kill_after: args.kill_after,
    };
    let mut guarded = Guarded::start(&job, guard).await?;
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut why = None;
    let mut is_lost = false;
    let ending = loop {
        tokio::select! {
            report = guarded.hear() => match report {
                Some(Report::Ended(ending)) => break Some(ending),
                Some(Report::Lost) => {
                    is_lost = true;
                    tell_of_loss(args, guard);
                }
                Some(Report::Stopped) => guarded.stopped(),
                Some(Report::Ready | Report::Started) => {}
                None => break None,
            },
            signal = signals.next() => guarded.pass_on(signal),
            reason = guard.lost(), if why.is_none() => {
                why = Some(reason);
                guarded.order(Order::Lost);
            }
            _ = tick.tick() => guarded.tick(guard),
        }
    };
    let is_guarded = ending.is_some();
    guarded.end(is_guarded).await;
    match ending {
        None if is_lost || why.is_some() => Ok(LOST),
        None => Err(Failure::new(
            OWN_FAILURE,
            "the guard of the command was killed, and the command with it",
        )),
        Some(_) if is_lost => Ok(LOST),
        Some(Ending::Code(code)) => Ok(u8::try_from(code).unwrap_or(OWN_FAILURE)),
        Some(Ending::Signal(signal)) => Ok(exit::of_signal(signal)),
    }
}

fn tell_of_loss(args: &Run, guard: &Guard) {
    let why = guard.lost_reason();
    let why = why.map_or("no renewal was confirmed in time".to_owned(), |why| {
        plain(&why.to_string())
    });
    show::say(&format!(
        "the lock {:?} is lost: {why}. The command is told to end, and killed {} later",
        args.take.name,
        show::exact(args.kill_after)
    ));
}

/// Returns the file name of the command's program. Its folder and the arguments may hold secrets, and
/// everybody who may observe the lock can read its reason.
fn program_name(command: &[OsString]) -> Option<String> {
    let name = Path::new(command.first()?).file_name()?;
    Some(name.to_string_lossy().into_owned())
}

/// What starts this program again, though its file may have been replaced since.
fn this_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe()
}

/// Until when a lock can be trusted, on the clock of deadlines; `None`: no more.
fn trusted_until(guard: &Guard) -> Option<Duration> {
    // Read before: late is not on the safe side.
    let now = clock::now();
    let left = guard.remaining();
    (!left.is_zero()).then(|| now + left)
}
