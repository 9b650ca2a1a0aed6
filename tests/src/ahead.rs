//! A process whose CLOCK_BOOTTIME can be set ahead, as a suspend does, while its other clocks go on.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::PathBuf,
    time::Duration,
};

use tokio::process::Command;

use crate::{shim::compile, temp_dir::TempDir};

/// What the shim reads.
const VARIABLE: &str = "LEASEHOLD_TEST_BOOTTIME_AHEAD";

/// A library to be loaded before all others, and the number that it adds.
#[derive(Debug)]
pub struct Ahead {
    shim: PathBuf,
    seconds: File,
    dir: TempDir,
}

impl Ahead {
    /// Compiles it; 0 s ahead.
    pub async fn build() -> Self {
        let dir = TempDir::new("ahead");
        let shim = compile("boottime.c", dir.path()).await;
        let mut seconds = OpenOptions::new();
        let seconds = seconds.create_new(true).write(true);
        let seconds = seconds.open(dir.path().join("seconds"));
        let ahead = Self {
            shim,
            seconds: seconds.expect("create a file"),
            dir,
        };
        ahead.set(Duration::ZERO);
        ahead
    }

    /// Has a process live under this clock.
    pub fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.shim);
        command.env(VARIABLE, self.dir.path().join("seconds"));
    }

    /// How far ahead the clock is from now on; whole seconds.
    pub fn set(&self, ahead: Duration) {
        let seconds = i64::try_from(ahead.as_secs()).expect("a short time");
        let written = self.seconds.write_all_at(&seconds.to_ne_bytes(), 0);
        written.expect("write eight bytes");
    }
}
