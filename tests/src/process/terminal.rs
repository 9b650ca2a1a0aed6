//! A real pseudo-terminal with simulated keyboard input.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    path::Path,
    process::Stdio,
    sync::mpsc,
    time::Duration,
};

use rustix::{
    process::Pid,
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcgetpgrp, tcsetwinsize},
};
use tokio::{
    process::{Child, Command},
    sync::watch,
    time::timeout,
};

const TIMEOUT: Duration = Duration::from_secs(20);
const ROWS: u16 = 24;

/// A terminal in which a program runs.
#[derive(Debug)]
pub struct Terminal {
    keyboard: mpsc::Sender<Vec<u8>>,
    screen: watch::Receiver<String>,
    keys: File,
    child: Child,
}

impl Terminal {
    /// Starts a program in a new terminal with this number of columns. `leader` is the test program
    /// `on_terminal`.
    #[must_use]
    pub fn start(leader: &Path, program: &Command, columns: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let keyboard = openpt(flags).expect("a pseudo-terminal");
        grantpt(&keyboard).expect("it is ours");
        unlockpt(&keyboard).expect("it is ours");
        let line = ioctl_tiocgptpeer(&keyboard, flags).expect("its other end");
        let size = Winsize {
            ws_row: ROWS,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&line, size).expect("a size");
        let stdio = || Stdio::from(line.try_clone().expect("a descriptor is left"));
        let program = program.as_std();
        let mut command = Command::new(leader);
        command.arg(program.get_program()).args(program.get_args());
        command.env_clear().kill_on_drop(true);
        for (name, value) in program.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let child = command.spawn().expect("it starts");
        let keys: File = keyboard.try_clone().expect("a descriptor is left").into();
        let (keyboard, screen) = start_threads(keyboard);
        Self {
            keyboard,
            screen,
            keys,
            child,
        }
    }

    /// Types text. `\x03` is Ctrl-C, `\x1a` is Ctrl-Z.
    pub fn type_text(&self, text: &str) {
        let sent = self.keyboard.send(text.as_bytes().to_vec());
        sent.expect("the terminal is open");
    }

    /// Waits until the output satisfies `is_so` and returns all output so far.
    pub async fn wait_for_output(&mut self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let shown = self.screen.wait_for(|screen| is_so(screen));
        let shown = timeout(TIMEOUT, shown)
            .await
            .map(|shown| shown.map(|text| text.clone()));
        match shown {
            Ok(Ok(text)) => text,
            _ => panic!(
                "not shown: {what}; but:\n{}",
                self.screen.borrow().escape_debug()
            ),
        }
    }

    /// Waits until the output contains `text` and returns all output so far.
    pub async fn wait_for_text(&mut self, text: &str) -> String {
        self.wait_for_output(text, |screen| screen.contains(text))
            .await
    }

    /// Returns the foreground process group. It is read at the master side, because the slave side
    /// permits this only to its own session.
    #[must_use]
    pub fn foreground_group(&self) -> Option<Pid> {
        tcgetpgrp(&self.keys).ok()
    }

    /// Returns the process id of `leader`.
    #[must_use]
    pub fn pid(&self) -> Pid {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        id.and_then(Pid::from_raw).expect("it runs")
    }

    /// Waits until the program has exited and returns its exit code.
    pub async fn wait_for_exit(&mut self) -> Option<i32> {
        let ended = timeout(TIMEOUT, self.child.wait()).await;
        ended.expect("it ends in time").expect("its status").code()
    }
}

/// Starts two threads, because the master side blocks. The threads end with the terminal.
fn start_threads(keyboard: OwnedFd) -> (mpsc::Sender<Vec<u8>>, watch::Receiver<String>) {
    let mut input: File = keyboard.into();
    let mut output = input.try_clone().expect("a descriptor is left");
    let (keys, typed) = mpsc::channel::<Vec<u8>>();
    let (screen, seen) = watch::channel(String::new());
    std::thread::spawn(move || {
        for text in typed {
            output.write_all(&text).expect("the terminal takes keys");
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        // An error means that the slave side was closed.
        while let Ok(count @ 1..) = input.read(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
            screen.send_modify(|screen| screen.push_str(&text));
        }
    });
    (keys, seen)
}
