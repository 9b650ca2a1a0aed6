//! `leasehold-server dev` from its user's view: the banner, the command in it, and Ctrl-C.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold_tests::process::{
    binaries::{leasehold, leasehold_server},
    leasehold_command::{Cli, RunningCommand, with_default_signals},
};
use rustix::process::Signal;
use tokio::{
    io::AsyncWriteExt as _,
    process::Command,
    time::{Instant, timeout},
};

/// Time limit, a tenth of `server.drain_timeout`, which a drain takes while a holder stays.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A broker and the lines of its banner.
struct Dev {
    process: RunningCommand,
    api: String,
    banner: Vec<String>,
}

impl Dev {
    async fn start(folder: &Path) -> Self {
        let mut command = with_default_signals(leasehold_server());
        command.args(["dev", "--listen", "127.0.0.1:0"]);
        command.args(["--admin-listen", "127.0.0.1:0"]);
        command.current_dir(folder).kill_on_drop(true);
        let mut process = RunningCommand::start(command);
        let line = process.next_stdout_line().await;
        let api = line.strip_prefix("listening on ").expect("an address");
        let api = api.to_owned();
        let mut banner = Vec::new();
        for _ in 0..7 {
            banner.push(process.next_stdout_line().await);
        }
        Self {
            process,
            api,
            banner,
        }
    }

    /// Returns the command of the banner, with another program to run.
    fn command(&self, runs: &str) -> String {
        let line = self.banner.last().expect("lines");
        let prefix = line.strip_suffix("sleep 10").expect("a command");
        format!("{}{runs}", prefix.trim_start())
    }
}

/// Returns the root folder of the project, found from `target/debug`.
fn project_root() -> PathBuf {
    let folder = leasehold();
    let folder = folder.ancestors().nth(3).expect("target and a profile");
    folder.to_owned()
}

/// Waits until the command of a `leasehold run` echoes a line, which it does only while it holds
/// the lock.
async fn wait_for_echo(running: &mut RunningCommand) {
    let stdin = running.stdin.as_mut().expect("stdin is piped");
    stdin.write_all(b"under the lock\n").await.expect("it runs");
    assert_eq!(running.next_stdout_line().await, "under the lock");
}

#[tokio::test]
async fn the_banner_shows_addresses_and_a_command() {
    let dev = Dev::start(&project_root()).await;
    let (api, version) = (&dev.api, env!("CARGO_PKG_VERSION"));
    let [admin, gap, title, api_line, console, hint, command] = dev.banner.as_slice() else {
        panic!("{:?}", dev.banner);
    };
    let admin = admin
        .strip_prefix("admin listening on ")
        .expect("an address");
    assert_eq!(gap, "");
    let expected = format!("Leasehold {version}, in memory: locks do not outlive this process.");
    assert_eq!(*title, expected);
    assert_eq!(*api_line, format!("  API     http://{api}"));
    assert_eq!(*console, format!("  Console http://{admin}/"));
    assert!(hint.starts_with("Try it in a second terminal"), "{hint}");
    let below = leasehold();
    let below = below.strip_prefix(project_root()).expect("below it");
    let expected = format!(
        "  {} run --endpoint http://{api} demo -- sleep 10",
        below.display()
    );
    assert_eq!(*command, expected);
}

#[tokio::test]
async fn the_command_of_the_banner_takes_the_lock_twice_in_turn() {
    let (here, elsewhere) = (project_root(), std::env::temp_dir());
    for folder in [here, elsewhere] {
        let dev = Dev::start(&folder).await;
        let line = dev.command("cat");
        // The endpoint in the environment has no broker, so the command must use the banner's
        // endpoint.
        let cli = Cli::for_broker("127.0.0.1:1");
        let paste = || {
            let mut shell = cli.in_environment(Command::new("sh"), &["-c", &line]);
            shell.current_dir(&folder);
            RunningCommand::start(shell)
        };
        let mut first = paste();
        wait_for_echo(&mut first).await;
        let mut second = paste();
        let output = second.next_stderr_line().await;
        assert!(
            output.starts_with("leasehold: waiting for demo"),
            "{output}"
        );
        let ended = first.wait_for_exit().await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        wait_for_echo(&mut second).await;
        let ended = second.wait_for_exit().await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[tokio::test]
async fn ctrl_c_ends_dev_at_once_with_a_holder_and_a_waiter() {
    let dev = Dev::start(&project_root()).await;
    let cli = Cli::for_broker(&dev.api);
    let mut holder = cli.start(&["run", "demo", "--", "cat"]);
    wait_for_echo(&mut holder).await;
    let mut waiter = cli.start(&["run", "demo", "--", "true"]);
    let output = waiter.next_stderr_line().await;
    assert!(
        output.starts_with("leasehold: waiting for demo"),
        "{output}"
    );
    let started = Instant::now();
    dev.process.signal(Signal::INT);
    let ended = timeout(AT_ONCE, dev.process.wait_for_exit()).await;
    let ended = ended.unwrap_or_else(|_| panic!("it runs after {:?}", started.elapsed()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stderr.contains("draining"), "{}", ended.stderr);
}
