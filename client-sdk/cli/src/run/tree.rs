//! Every process that came of the command, however far it went away: found and ended.

#[cfg(target_os = "linux")]
use rustix::process::Pid;
use rustix::process::Signal;

#[cfg(not(target_os = "linux"))]
pub(super) use self::elsewhere::{adopt, die_with_parent, signal_all, signal_strays};
#[cfg(target_os = "linux")]
pub(super) use self::linux::{adopt, die_with_parent, signal_all, signal_strays};

#[cfg(target_os = "linux")]
mod linux {
    use std::{collections::HashMap, fs, io};

    use rustix::{
        io::Errno,
        process::{
            PidfdFlags, getpgrp, getpid, kill_process, pidfd_open, pidfd_send_signal,
            set_child_subreaper, set_parent_process_death_signal,
        },
    };

    use super::{Pid, Signal};

    /// What is known of a process.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Process {
        parent: i32,
        group: i32,
        /// When it began: tells it from a later one with its id.
        began: u64,
    }

    /// From now on an orphan among the descendants becomes a child of this process.
    pub(in crate::run) fn adopt() -> io::Result<()> {
        Ok(set_child_subreaper(Some(getpid()))?)
    }

    /// This process is killed when the thread that started it ends.
    pub(in crate::run) fn die_with_parent() -> io::Result<()> {
        Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
    }

    /// Signals every descendant.
    pub(in crate::run) fn signal_all(signal: Signal) {
        each(signal, |_| true);
    }

    /// Signals every descendant that has left the group of this process.
    pub(in crate::run) fn signal_strays(signal: Signal) {
        let group = getpgrp().as_raw_nonzero().get();
        each(signal, |process| process.group != group);
    }

    fn each(signal: Signal, is_meant: impl Fn(&Process) -> bool) {
        let me = getpid().as_raw_nonzero().get();
        let all = all();
        for (pid, process) in &all {
            if descends(*pid, me, &all) && is_meant(process) {
                send(*pid, *process, signal);
            }
        }
    }

    /// Signals exactly this process: its id may be another's by now.
    fn send(pid: i32, process: Process, signal: Signal) {
        let Some(id) = Pid::from_raw(pid) else { return };
        let sent = match pidfd_open(id, PidfdFlags::empty()) {
            Ok(fd) => match read(pid) {
                Some(now) if now.began == process.began => pidfd_send_signal(fd, signal),
                Some(_) | None => Ok(()),
            },
            Err(Errno::NOSYS | Errno::PERM) => kill_process(id, signal),
            Err(error) => Err(error),
        };
        // One that has ended meanwhile is as it should be, and what may not be signalled stays.
        let _ = sent;
    }

    fn descends(pid: i32, from: i32, all: &HashMap<i32, Process>) -> bool {
        let mut at = pid;
        // A table that was read while it changed may have a ring in it.
        for _ in 0..all.len() {
            match all.get(&at) {
                Some(process) if process.parent == from => return true,
                Some(process) => at = process.parent,
                None => return false,
            }
        }
        false
    }

    fn all() -> HashMap<i32, Process> {
        let Ok(folder) = fs::read_dir("/proc") else {
            return HashMap::new();
        };
        let ids = folder
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter_map(|pid: i32| Some((pid, read(pid)?))).collect()
    }

    fn read(pid: i32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in brackets may have brackets in it.
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<_> = rest.split(' ').collect();
        Some(Process {
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            began: fields.get(19)?.parse().ok()?,
        })
    }
}

/// Where descendants cannot be found the group is all that is ended, this process included.
#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::io;

    use rustix::process::kill_current_process_group;

    use super::Signal;

    #[expect(clippy::unnecessary_wraps, reason = "fails elsewhere")]
    pub(in crate::run) fn adopt() -> io::Result<()> {
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, reason = "fails elsewhere")]
    pub(in crate::run) fn die_with_parent() -> io::Result<()> {
        Ok(())
    }

    pub(in crate::run) fn signal_all(signal: Signal) {
        // A group without other members needs no signal.
        let _ = kill_current_process_group(signal);
    }

    pub(in crate::run) fn signal_strays(_: Signal) {}
}
