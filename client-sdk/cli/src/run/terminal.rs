//! The controlling terminal of a job, which the command gets while it runs.

use std::{
    fs::File,
    io::{IsTerminal as _, stderr, stdin, stdout},
};

use rustix::{
    process::{Pid, getpgrp},
    termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp},
};

/// The terminal that controls this process.
pub(super) struct Terminal {
    file: File,
    modes: Option<Termios>,
}

impl Terminal {
    /// Opens the controlling terminal. Returns `None` if there is none.
    pub(super) fn open() -> Option<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        let modes = tcgetattr(&file).ok();
        Some(Self { file, modes })
    }

    /// Opens the controlling terminal if a standard stream of this job is a terminal. A job whose
    /// streams are redirected may belong to a background task, which must not claim the terminal.
    pub(super) fn open_for_job() -> Option<Self> {
        let is_job = stdin().is_terminal() || stdout().is_terminal() || stderr().is_terminal();
        is_job.then(Self::open).flatten()
    }

    /// Returns true if the process group of this process is in the foreground. Only then may this
    /// process change the foreground group, because the system would stop it otherwise.
    pub(super) fn is_foreground(&self) -> bool {
        tcgetpgrp(&self.file).is_ok_and(|group| group == getpgrp())
    }

    /// Puts another group into the foreground, if the group of this process is there.
    pub(super) fn set_foreground(&self, group: Pid) -> bool {
        // Fails if the group does not exist.
        self.is_foreground() && tcsetpgrp(&self.file, group).is_ok()
    }

    /// Restores the modes that were set when the terminal was opened, if this group is in the
    /// foreground.
    pub(super) fn restore(&self) {
        if let Some(modes) = self.modes.as_ref().filter(|_| self.is_foreground()) {
            // The terminal may be closed.
            let _ = tcsetattr(&self.file, OptionalActions::Drain, modes);
        }
    }
}
