//! A real broker process on a real store.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::process::Command;

use crate::process::binaries::leasehold_server;
use crate::process::child::TestProcess;
use crate::process::ports::free_port;
use crate::process::temp_dir::TempDir;
use crate::until::until;

pub const KEY_PREFIX: &str = "lh:";

const API_LINE: &str = "listening on ";
const ADMIN_LINE: &str = "admin listening on ";
/// Texts of the line that reports serving, in a text log and in a JSON log.
const SERVING_LINES: [&str; 2] = ["leasehold_server::serve: serving", "\"serving\""];
const RUN_TIMEOUT: Duration = Duration::from_secs(30);

/// Options of brokers: their store, and the settings that differ from the defaults.
#[derive(Debug, Clone, Default)]
pub struct BrokerOptions {
    /// Value of `--store`.
    pub store: String,
    /// Settings as environment variables, also passed to `init-store`.
    pub env: Vec<(String, String)>,
    /// Path of the binary. `None` selects the binary of this build.
    pub binary: Option<PathBuf>,
}

impl BrokerOptions {
    /// Returns the default options on this store.
    #[must_use]
    pub fn for_store(store: String) -> Self {
        Self {
            store,
            ..Self::default()
        }
    }

    /// Writes the first era into the store, as in an installation.
    pub async fn init_store(&self) {
        let (succeeded, printed) = self.run("init-store", &[]).await;
        assert!(succeeded, "init-store: {printed}");
    }

    /// Returns the output of a broker that must fail to start.
    pub async fn failed_start_output(&self) -> String {
        let anywhere = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
        let (succeeded, output) = self.run("serve", &anywhere).await;
        assert!(!succeeded, "it ended well: {output}");
        output
    }

    /// Runs a command to its end. Returns true if it succeeded, and its output.
    pub async fn run(&self, verb: &str, args: &[&str]) -> (bool, String) {
        let mut command = self.command(verb);
        let output = command.args(args).kill_on_drop(true).output();
        let output = tokio::time::timeout(RUN_TIMEOUT, output).await;
        let output = output.expect("it ends by itself").expect("it runs");
        let [printed, stderr] = [&output.stdout, &output.stderr].map(|text| text.as_slice());
        let text = String::from_utf8_lossy(&[printed, stderr].concat()).into_owned();
        (output.status.success(), text)
    }

    fn command(&self, verb: &str) -> Command {
        let binary = self.binary.clone();
        let mut command = Command::new(binary.unwrap_or_else(leasehold_server));
        command.args([verb, "--store", &self.store, "--key-prefix", KEY_PREFIX]);
        // All clients of a test have one address.
        command.env("LEASEHOLD__SERVER__MAX_CONNECTIONS_PER_ADDRESS", "20000");
        // Tests read the text log.
        command.env("LEASEHOLD__LOG__FORMAT", "text");
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        command
    }
}

/// A running `leasehold-server serve`.
#[derive(Debug)]
pub struct BrokerProcess {
    process: TestProcess,
    options: BrokerOptions,
    addr: SocketAddr,
    admin: SocketAddr,
    dir: TempDir,
}

impl BrokerProcess {
    /// Starts a broker on a free port, and waits until it serves.
    pub async fn start(options: &BrokerOptions) -> Self {
        let mut one = Self::start_many(options, 1).await;
        one.pop().expect("one was started")
    }

    /// Starts `count` brokers, and waits until all of them serve. On a busy machine the store may
    /// respond late at first, so the brokers wait for the store.
    pub async fn start_many(options: &BrokerOptions, count: usize) -> Vec<Self> {
        let mut options = options.clone();
        let waits = ("LEASEHOLD__STORE__WAIT_FOR_STORE", "true");
        options.env.push((waits.0.to_owned(), waits.1.to_owned()));
        let mut brokers = Vec::new();
        for _ in 0..count {
            brokers.push(Self::launch(&options).await);
        }
        for broker in &brokers {
            until("it logs that it serves", async || {
                let log = broker.log();
                let serves = SERVING_LINES.iter().any(|line| log.contains(line));
                assert!(serves || broker.process.state() != 'Z', "it ended: {log}");
                serves.then_some(())
            })
            .await;
        }
        brokers
    }

    /// Starts a broker on a free port, and waits until it listens. It may not have connected to its
    /// store yet.
    pub async fn launch(options: &BrokerOptions) -> Self {
        let dir = TempDir::new("broker");
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (process, admin) = launch(options, addr, &dir).await;
        Self {
            process,
            options: options.clone(),
            addr,
            admin,
            dir,
        }
    }

    /// Returns the address of the API.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the address of health checks and the admin service.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Returns the process, which tests pause and resume.
    #[must_use]
    pub fn process(&self) -> &TestProcess {
        &self.process
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.process.terminate();
    }

    /// Waits until the broker has ended, and returns its exit code.
    pub async fn wait_for_exit(&mut self) -> Option<i32> {
        self.process.wait_for_exit().await
    }

    /// Sends SIGKILL. Returns once the process has ended.
    pub async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Kills the broker, and starts it again on the same port.
    pub async fn restart(&mut self) {
        self.process.kill().await;
        (self.process, self.admin) = launch(&self.options, self.addr, &self.dir).await;
    }

    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stderr.log")).unwrap_or_default()
    }
}

async fn launch(
    options: &BrokerOptions,
    addr: SocketAddr,
    dir: &TempDir,
) -> (TestProcess, SocketAddr) {
    let mut command = options.command("serve");
    command.args([
        "--listen",
        &addr.to_string(),
        "--admin-listen",
        "127.0.0.1:0",
    ]);
    let log = dir.path().join("stderr.log");
    let (process, lines) = TestProcess::start(command, &log, &[ADMIN_LINE, API_LINE]).await;
    let [admin, api] = lines.as_slice() else {
        panic!("two marks, two lines: {lines:?}")
    };
    assert!(
        api.ends_with(&addr.to_string()),
        "asked for {addr}, got: {api}"
    );
    let admin = admin
        .strip_prefix(ADMIN_LINE)
        .and_then(|admin| admin.parse().ok());
    (process, admin.expect("an address after the mark"))
}
