//! A wall clock of its own for one process: too fast, too slow or stepped, while all others go on.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use tokio::process::Command;

use crate::{shim::compile, temp_dir::TempDir};

/// What the shim reads.
const VARIABLE: &str = "LEASEHOLD_TEST_WALL_CLOCK";
const MILLION: i128 = 1_000_000;
const MILLISECOND_NS: i128 = 1_000_000;
const NUMBER_BYTES: u64 = 8;

/// A library to be loaded before all others, and what it reads.
#[derive(Debug)]
pub struct StoreClock {
    shim: PathBuf,
    page: File,
    shown: Mutex<Shown>,
    dir: TempDir,
}

/// At the real time `real_ns` it showed `shown_ns`, and goes on from there.
#[derive(Debug, Clone, Copy)]
struct Shown {
    writes: u64,
    real_ns: i128,
    shown_ns: i128,
    gain_ppm: i128,
}

impl StoreClock {
    /// Compiles it; it shows the real time.
    pub async fn build() -> Self {
        let dir = TempDir::new("clock");
        let mut page = OpenOptions::new();
        let page = page.create_new(true).write(true);
        let page = page.open(dir.path().join("page")).expect("create a file");
        let now = real_ns();
        let shown = Shown {
            writes: 0,
            real_ns: now,
            shown_ns: now,
            gain_ppm: 0,
        };
        shown.write(&page);
        Self {
            shim: compile("wall_clock.c", dir.path()).await,
            page,
            shown: Mutex::new(shown),
            dir,
        }
    }

    /// Has a process live under this clock.
    pub fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.shim);
        command.env(VARIABLE, self.dir.path().join("page"));
    }

    /// How many millionths of the time it gains from now on: 80,000 is 8 % fast.
    pub fn set_gain(&self, ppm: i32) {
        self.change(|shown| shown.gain_ppm = ppm.into());
    }

    /// Sets it so far ahead, or back.
    pub fn step(&self, ms: i64) {
        self.change(|shown| shown.shown_ns += i128::from(ms) * MILLISECOND_NS);
    }

    fn change(&self, what: impl FnOnce(&mut Shown)) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.go_on_to(real_ns());
        what(&mut shown);
        shown.write(&self.page);
    }
}

impl Shown {
    fn go_on_to(&mut self, now_ns: i128) {
        let elapsed = now_ns - self.real_ns;
        self.shown_ns += elapsed + elapsed * self.gain_ppm / MILLION;
        self.real_ns = now_ns;
        self.writes += 1;
    }

    /// The page's first number is odd while the others change, so that nobody reads half of them.
    fn write(&self, page: &File) {
        let put = |at: u64, number: i128| {
            let number = i64::try_from(number).expect("nanoseconds of this century");
            let written = page.write_all_at(&number.to_ne_bytes(), at * NUMBER_BYTES);
            written.expect("write eight bytes");
        };
        let even = i128::from(self.writes) * 2;
        put(0, even + 1);
        put(1, self.real_ns);
        put(2, self.shown_ns);
        put(3, self.gain_ppm);
        put(0, even + 2);
    }
}

fn real_ns() -> i128 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.expect("it is later than 1970").as_nanos();
    i128::try_from(now).expect("nanoseconds of this century")
}
