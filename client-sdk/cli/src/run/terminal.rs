//! The terminal of a job: lent to the command while it runs, and taken back.

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
    /// `None`: there is none.
    pub(super) fn open() -> Option<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        let modes = tcgetattr(&file).ok();
        Some(Self { file, modes })
    }

    /// The same for a job whose streams have to do with it: one in the background of something else must
    /// not take it.
    pub(super) fn of_job() -> Option<Self> {
        let is_job = stdin().is_terminal() || stdout().is_terminal() || stderr().is_terminal();
        is_job.then(Self::open).flatten()
    }

    /// Whether the group of this process is in the foreground. Only then may it change that: from
    /// the background the system would stop it.
    pub(super) fn is_mine(&self) -> bool {
        tcgetpgrp(&self.file).is_ok_and(|group| group == getpgrp())
    }

    /// Puts another group into the foreground, if this one is there.
    pub(super) fn lend(&self, group: Pid) -> bool {
        // A group that is gone cannot be put there.
        self.is_mine() && tcsetpgrp(&self.file, group).is_ok()
    }

    /// Sets the modes that were found at first. For the group in the foreground.
    pub(super) fn restore(&self) {
        if let Some(modes) = self.modes.as_ref().filter(|_| self.is_mine()) {
            // The terminal may be gone by now.
            let _ = tcsetattr(&self.file, OptionalActions::Drain, modes);
        }
    }
}
