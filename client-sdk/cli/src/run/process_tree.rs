//! Descendants of the command: finds and signals them, even if they left its process group.

#[cfg(target_os = "linux")]
use rustix::process::Pid;
use rustix::process::Signal;

#[cfg(target_os = "linux")]
pub(super) use self::linux::{adopt, die_with_parent, signal_all, signal_strays};
#[cfg(not(target_os = "linux"))]
pub(super) use self::other_platforms::{adopt, die_with_parent, signal_all, signal_strays};

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

    /// Properties of a process.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Process {
        parent: i32,
        group: i32,
        /// Start time, which distinguishes the process from a later one with the same id.
        started_at: u64,
    }

    /// Makes orphaned descendants children of this process.
    pub(in crate::run) fn adopt() -> io::Result<()> {
        Ok(set_child_subreaper(Some(getpid()))?)
    }

    /// Requests SIGKILL for this process when the thread that started it ends.
    pub(in crate::run) fn die_with_parent() -> io::Result<()> {
        Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
    }

    pub(in crate::run) fn signal_all(signal: Signal) {
        signal_matching(signal, |_| true);
    }

    /// Signals every descendant that has left the process group of this process.
    pub(in crate::run) fn signal_strays(signal: Signal) {
        let group = getpgrp().as_raw_nonzero().get();
        signal_matching(signal, |process| process.group != group);
    }

    fn signal_matching(signal: Signal, is_target: impl Fn(&Process) -> bool) {
        let me = getpid().as_raw_nonzero().get();
        let all = read_processes();
        for (pid, process) in &all {
            if is_descendant(*pid, me, &all) && is_target(process) {
                signal_process(*pid, *process, signal);
            }
        }
    }

    /// Signals exactly this process, because its id may have been reused.
    fn signal_process(pid: i32, process: Process, signal: Signal) {
        let Some(id) = Pid::from_raw(pid) else { return };
        let sent = match pidfd_open(id, PidfdFlags::empty()) {
            Ok(fd) => match read_process(pid) {
                Some(now) if now.started_at == process.started_at => pidfd_send_signal(fd, signal),
                Some(_) | None => Ok(()),
            },
            Err(Errno::NOSYS | Errno::PERM) => kill_process(id, signal),
            Err(error) => Err(error),
        };
        // A process that has ended needs no signal, and a process that may not be signalled is
        // left.
        let _ = sent;
    }

    fn is_descendant(pid: i32, from: i32, all: &HashMap<i32, Process>) -> bool {
        let mut at = pid;
        // A table that was read during changes may contain a cycle.
        for _ in 0..all.len() {
            match all.get(&at) {
                Some(process) if process.parent == from => return true,
                Some(process) => at = process.parent,
                None => return false,
            }
        }
        false
    }

    fn read_processes() -> HashMap<i32, Process> {
        let Ok(folder) = fs::read_dir("/proc") else {
            return HashMap::new();
        };
        let ids = folder
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter_map(|pid: i32| Some((pid, read_process(pid)?)))
            .collect()
    }

    fn read_process(pid: i32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The process name in parentheses may contain parentheses.
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<_> = rest.split(' ').collect();
        Some(Process {
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            started_at: fields.get(19)?.parse().ok()?,
        })
    }
}

/// Fallback where descendants cannot be found: signals only the process group, including this
/// process.
#[cfg(not(target_os = "linux"))]
mod other_platforms {
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
