//! A private wall clock of one process, which can run fast or slow, or be stepped, without an
//! effect on other processes.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use tokio::process::Command;

use crate::process::{preload_shim::compile_shim, temp_dir::TempDir};

/// Environment variable with the path of the file that the shim reads.
const VARIABLE: &str = "LEASEHOLD_TEST_WALL_CLOCK";
const MILLION: i128 = 1_000_000;
const MILLISECOND_NS: i128 = 1_000_000;
const NUMBER_BYTES: u64 = 8;

/// A shim library for `LD_PRELOAD`, and the file from which it reads the time.
#[derive(Debug)]
pub struct PrivateWallClock {
    shim: PathBuf,
    state_file: File,
    state: Mutex<ClockState>,
    dir: TempDir,
}

/// State of the clock: at the real time `real_ns` it displayed `shown_ns`, and it continues from
/// there.
#[derive(Debug, Clone, Copy)]
struct ClockState {
    writes: u64,
    real_ns: i128,
    displayed_ns: i128,
    gain_ppm: i128,
}

impl PrivateWallClock {
    /// Compiles the shim. The clock starts at the real time.
    pub async fn build() -> Self {
        let dir = TempDir::new("clock");
        let mut page = OpenOptions::new();
        let page = page.create_new(true).write(true);
        let page = page.open(dir.path().join("page")).expect("create a file");
        let now = real_ns();
        let shown = ClockState {
            writes: 0,
            real_ns: now,
            displayed_ns: now,
            gain_ppm: 0,
        };
        shown.write(&page);
        Self {
            shim: compile_shim("wall_clock.c", dir.path()).await,
            state_file: page,
            state: Mutex::new(shown),
            dir,
        }
    }

    /// Runs a command with this clock.
    pub fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.shim);
        command.env(VARIABLE, self.dir.path().join("page"));
    }

    /// Sets the gain of the clock in parts per million. A gain of 80,000 is 8 % fast.
    pub fn set_gain(&self, ppm: i32) {
        self.update_state(|shown| shown.gain_ppm = ppm.into());
    }

    /// Steps the clock forward, or backward if `ms` is negative.
    pub fn step(&self, ms: i64) {
        self.update_state(|shown| shown.displayed_ns += i128::from(ms) * MILLISECOND_NS);
    }

    fn update_state(&self, what: impl FnOnce(&mut ClockState)) {
        let mut shown = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        shown.advance_to(real_ns());
        what(&mut shown);
        shown.write(&self.state_file);
    }
}

impl ClockState {
    fn advance_to(&mut self, now_ns: i128) {
        let elapsed = now_ns - self.real_ns;
        self.displayed_ns += elapsed + elapsed * self.gain_ppm / MILLION;
        self.real_ns = now_ns;
        self.writes += 1;
    }

    /// Writes the state to the file. The first number is odd during the write, so that readers
    /// detect an incomplete state.
    fn write(&self, page: &File) {
        let put = |at: u64, number: i128| {
            let number = i64::try_from(number).expect("nanoseconds of this century");
            let written = page.write_all_at(&number.to_ne_bytes(), at * NUMBER_BYTES);
            written.expect("write eight bytes");
        };
        let even = i128::from(self.writes) * 2;
        put(0, even + 1);
        put(1, self.real_ns);
        put(2, self.displayed_ns);
        put(3, self.gain_ppm);
        put(0, even + 2);
    }
}

fn real_ns() -> i128 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.expect("it is later than 1970").as_nanos();
    i128::try_from(now).expect("nanoseconds of this century")
}
