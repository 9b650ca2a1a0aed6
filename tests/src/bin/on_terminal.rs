//! Makes the terminal on stdin the controlling terminal of a new session, then executes a command,
//! as a terminal emulator does with a shell.

use std::{io::stdin, os::unix::process::CommandExt as _, process::Command};

use rustix::process::{ioctl_tiocsctty, setsid};

fn main() {
    let mut args = std::env::args_os().skip(1);
    let command = args.next().expect("a command to become");
    setsid().expect("it leads no group yet");
    ioctl_tiocsctty(stdin()).expect("a terminal that controls no session");
    let error = Command::new(command).args(args).exec();
    panic!("cannot become the command: {error}");
}
