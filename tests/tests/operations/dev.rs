//! `leasehold-server dev` as its user meets it: the banner, the command in it, and Ctrl-C.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold_tests::{
    binary::{leasehold, leasehold_server},
    cli::{Cli, Running, attentive},
};
use rustix::process::Signal;
use tokio::{
    io::AsyncWriteExt as _,
    process::Command,
    time::{Instant, timeout},
};

/// A drain with a holder that stays takes `server.drain_timeout`, ten times as long.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A broker, and what its banner says.
struct Dev {
    process: Running,
    api: String,
    banner: Vec<String>,
}

impl Dev {
    async fn start(folder: &Path) -> Self {
        let mut command = attentive(leasehold_server());
        command.args(["dev", "--listen", "127.0.0.1:0"]);
        command.args(["--admin-listen", "127.0.0.1:0"]);
        command.current_dir(folder).kill_on_drop(true);
        let mut process = Running::start(command);
        let line = process.line().await;
        let api = line.strip_prefix("listening on ").expect("an address");
        let api = api.to_owned();
        let mut banner = Vec::new();
        for _ in 0..7 {
            banner.push(process.line().await);
        }
        Self {
            process,
            api,
            banner,
        }
    }

    /// The command of the banner, which runs something else.
    fn command(&self, runs: &str) -> String {
        let line = self.banner.last().expect("lines");
        let prefix = line.strip_suffix("sleep 10").expect("a command");
        format!("{}{runs}", prefix.trim_start())
    }
}

/// The folder of the project, as seen from `target/debug`.
fn above_target() -> PathBuf {
    let folder = leasehold();
    let folder = folder.ancestors().nth(3).expect("target and a profile");
    folder.to_owned()
}

/// Returns once the command of a `leasehold run` answers, which it does only under the lock.
async fn echoes(running: &mut Running) {
    let stdin = running.stdin.as_mut().expect("stdin is piped");
    stdin.write_all(b"under the lock\n").await.expect("it runs");
    assert_eq!(running.line().await, "under the lock");
}

#[tokio::test]
async fn the_banner_shows_addresses_and_a_command() {
    let dev = Dev::start(&above_target()).await;
    let (api, version) = (&dev.api, env!("CARGO_PKG_VERSION"));
    let [admin, gap, title, api_line, page, hint, command] = dev.banner.as_slice() else {
        panic!("{:?}", dev.banner);
    };
    let admin = admin
        .strip_prefix("admin listening on ")
        .expect("an address");
    assert_eq!(gap, "");
    let expected = format!("Leasehold {version}, in memory: locks do not outlive this process.");
    assert_eq!(*title, expected);
    assert_eq!(*api_line, format!("  API     http://{api}"));
    assert_eq!(*page, format!("  Page    http://{admin}/"));
    assert!(hint.starts_with("Try it in a second terminal"), "{hint}");
    let below = leasehold();
    let below = below.strip_prefix(above_target()).expect("below it");
    let expected = format!(
        "  {} run --endpoint http://{api} demo -- sleep 10",
        below.display()
    );
    assert_eq!(*command, expected);
}

#[tokio::test]
async fn the_command_of_the_banner_takes_the_lock_twice_in_turn() {
    let (here, elsewhere) = (above_target(), std::env::temp_dir());
    for folder in [here, elsewhere] {
        let dev = Dev::start(&folder).await;
        let line = dev.command("cat");
        // The endpoint of the environment has no broker: that of the banner is what counts.
        let cli = Cli::at("127.0.0.1:1");
        let paste = || {
            let mut shell = cli.called_by(Command::new("sh"), &["-c", &line]);
            shell.current_dir(&folder);
            Running::start(shell)
        };
        let mut first = paste();
        echoes(&mut first).await;
        let mut second = paste();
        let said = second.said().await;
        assert!(said.starts_with("leasehold: waiting for demo"), "{said}");
        let ended = first.ended().await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        echoes(&mut second).await;
        let ended = second.ended().await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[tokio::test]
async fn ctrl_c_ends_dev_at_once_with_a_holder_and_a_waiter() {
    let dev = Dev::start(&above_target()).await;
    let cli = Cli::at(&dev.api);
    let mut holder = cli.start(&["run", "demo", "--", "cat"]);
    echoes(&mut holder).await;
    let mut waiter = cli.start(&["run", "demo", "--", "true"]);
    let said = waiter.said().await;
    assert!(said.starts_with("leasehold: waiting for demo"), "{said}");
    let started = Instant::now();
    dev.process.signal(Signal::INT);
    let ended = timeout(AT_ONCE, dev.process.ended()).await;
    let ended = ended.unwrap_or_else(|_| panic!("it runs after {:?}", started.elapsed()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stderr.contains("draining"), "{}", ended.stderr);
}
