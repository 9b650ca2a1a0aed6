//! A command to run under a lock: writes its fencing token, the time and its process id into a file
//! every ten milliseconds, until it is killed.
//!
//! `leasehold run a -- fenced_job FILE`

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use clap::Parser;
use leasehold_tests::clock::boottime;
use rustix::process::setsid;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

const WRITE_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug, Parser)]
struct Args {
    /// Ignore SIGTERM and SIGHUP
    #[arg(long)]
    stubborn: bool,
    /// Start a second job, which moves to another session
    #[arg(long)]
    family: bool,
    /// Move to another session first
    #[arg(long)]
    astray: bool,
    /// File to write to
    file: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args = Args::parse();
    if args.astray {
        setsid().expect("it leads no group yet");
    }
    let _deaf = args.stubborn.then(|| {
        let kinds = [SignalKind::terminate(), SignalKind::hangup()];
        kinds.map(|kind| signal(kind).expect("a signal that can be caught"))
    });
    if args.family {
        let this = std::env::current_exe().expect("its own path");
        let mut child = Command::new(this);
        child.args(["--astray"]).arg(&args.file);
        child.args(args.stubborn.then_some("--stubborn"));
        let child = child.spawn().expect("another one");
        // The child outlives this process, unless another process ends it.
        drop(child);
    }
    let token = std::env::var_os("LEASEHOLD_FENCING_TOKEN").expect("it runs under a lock");
    let token = token.to_string_lossy();
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&args.file);
    let mut file = file.expect("a file to write to");
    loop {
        write(&mut file, &token);
        sleep(WRITE_INTERVAL).await;
    }
}

fn write(file: &mut File, token: &str) {
    let line = format!("{token} {} {}\n", boottime().as_nanos(), std::process::id());
    file.write_all(line.as_bytes()).expect("it can be written");
}
