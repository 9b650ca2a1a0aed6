//! A process whose CLOCK_BOOTTIME is set ahead, as by a suspend, while its other clocks are
//! unchanged.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::PathBuf,
    time::Duration,
};

use tokio::process::Command;

use crate::process::{preload_shim::compile_shim, temp_dir::TempDir};

/// Environment variable with the path of the file that the shim reads.
const VARIABLE: &str = "LEASEHOLD_TEST_BOOTTIME_AHEAD";

/// The shim library (`LD_PRELOAD`), and the file with the seconds that it adds.
#[derive(Debug)]
pub struct BoottimeShim {
    shim: PathBuf,
    offset_file: File,
    dir: TempDir,
}

impl BoottimeShim {
    /// Compiles the shim, with 0 s ahead.
    pub async fn build() -> Self {
        let dir = TempDir::new("ahead");
        let shim = compile_shim("boottime.c", dir.path()).await;
        let mut seconds = OpenOptions::new();
        let seconds = seconds.create_new(true).write(true);
        let seconds = seconds.open(dir.path().join("seconds"));
        let ahead = Self {
            shim,
            offset_file: seconds.expect("create a file"),
            dir,
        };
        ahead.set_offset(Duration::ZERO);
        ahead
    }

    /// Makes a command run with this clock.
    pub fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.shim);
        command.env(VARIABLE, self.dir.path().join("seconds"));
    }

    /// Sets the clock ahead by whole seconds.
    pub fn set_offset(&self, ahead: Duration) {
        let seconds = i64::try_from(ahead.as_secs()).expect("a short time");
        let written = self.offset_file.write_all_at(&seconds.to_ne_bytes(), 0);
        written.expect("write eight bytes");
    }
}
