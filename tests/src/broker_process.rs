//! A real broker process on a real store.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::process::Command;

use crate::binary::leasehold_server;
use crate::port::free_port;
use crate::process::TestProcess;
use crate::temp_dir::TempDir;
use crate::until::until;

/// The prefix of every key of the brokers under test.
pub const KEY_PREFIX: &str = "lh:";

const API: &str = "listening on ";
const ADMIN: &str = "admin listening on ";
/// In a log of text, and of JSON.
const SERVES: [&str; 2] = ["leasehold_server::serve: serving", "\"serving\""];
const RUN_LIMIT: Duration = Duration::from_secs(30);

/// How to start brokers: on which store, and what differs from the defaults.
#[derive(Debug, Clone, Default)]
pub struct BrokerOptions {
    /// What `--store` takes.
    pub store: String,
    /// Settings, as environment variables; `init-store` gets them too.
    pub env: Vec<(String, String)>,
    /// Which broker; `None`: the one of this build.
    pub binary: Option<PathBuf>,
}

impl BrokerOptions {
    /// Defaults on this store.
    #[must_use]
    pub fn on(store: String) -> Self {
        Self {
            store,
            ..Self::default()
        }
    }

    /// Writes the first era into the store, as an installation does.
    pub async fn init_store(&self) {
        let (done, told) = self.run("init-store", &[]).await;
        assert!(done, "init-store: {told}");
    }

    /// What a broker says that does not start.
    pub async fn refused(&self) -> String {
        let anywhere = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
        let (done, said) = self.run("serve", &anywhere).await;
        assert!(!done, "it ended well: {said}");
        said
    }

    /// Runs a command that ends by itself; whether it succeeded, and all that it printed.
    pub async fn run(&self, verb: &str, args: &[&str]) -> (bool, String) {
        let mut command = self.command(verb);
        let output = command.args(args).kill_on_drop(true).output();
        let output = tokio::time::timeout(RUN_LIMIT, output).await;
        let output = output.expect("it ends by itself").expect("it runs");
        let [told, complained] = [&output.stdout, &output.stderr].map(|text| text.as_slice());
        let text = String::from_utf8_lossy(&[told, complained].concat()).into_owned();
        (output.status.success(), text)
    }

    fn command(&self, verb: &str) -> Command {
        let binary = self.binary.clone();
        let mut command = Command::new(binary.unwrap_or_else(leasehold_server));
        command.args([verb, "--store", &self.store, "--key-prefix", KEY_PREFIX]);
        // All clients of a test come from one address.
        command.env("LEASEHOLD__SERVER__MAX_CONNECTIONS_PER_ADDRESS", "20000");
        // Tests read its log as people do.
        command.env("LEASEHOLD__LOG__FORMAT", "text");
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        command
    }
}

/// One `leasehold-server serve`.
#[derive(Debug)]
pub struct BrokerProcess {
    process: TestProcess,
    options: BrokerOptions,
    addr: SocketAddr,
    admin: SocketAddr,
    dir: TempDir,
}

impl BrokerProcess {
    /// Starts one on a free port, and waits until it serves.
    pub async fn start(options: &BrokerOptions) -> Self {
        let mut one = Self::start_many(options, 1).await;
        one.pop().expect("one was started")
    }

    /// Starts `count` and waits until all of them serve. On a busy machine their store may not answer in
    /// time at first, for which they wait, too.
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
                let serves = SERVES.iter().any(|line| log.contains(line));
                assert!(serves || broker.process.state() != 'Z', "it ended: {log}");
                serves.then_some(())
            })
            .await;
        }
        brokers
    }

    /// Starts one on a free port, and waits until it listens: it may not have reached its store.
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

    /// Where its API listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where health and the admin service listen.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The process, to pause and resume it.
    #[must_use]
    pub fn process(&self) -> &TestProcess {
        &self.process
    }

    /// Asks it to stop.
    pub fn terminate(&self) {
        self.process.terminate();
    }

    /// Its exit code, once it has ended by itself.
    pub async fn ended(&mut self) -> Option<i32> {
        self.process.ended().await
    }

    /// SIGKILL; returns once it is gone.
    pub async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Starts it again on the same port.
    pub async fn restart(&mut self) {
        self.process.kill().await;
        (self.process, self.admin) = launch(&self.options, self.addr, &self.dir).await;
    }

    /// What it has logged so far.
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
    let (process, lines) = TestProcess::start(command, &log, &[ADMIN, API]).await;
    let [admin, api] = lines.as_slice() else {
        panic!("two marks, two lines: {lines:?}")
    };
    assert!(
        api.ends_with(&addr.to_string()),
        "asked for {addr}, got: {api}"
    );
    let admin = admin
        .strip_prefix(ADMIN)
        .and_then(|admin| admin.parse().ok());
    (process, admin.expect("an address after the mark"))
}
