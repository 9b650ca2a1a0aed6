//! A real Redis of its own: free port, own directory, killed when dropped.

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::io::Result;
use tokio::process::Command;

use crate::binary::store_command;
use crate::certificates::{Authority, Signed};
use crate::port::free_port;
use crate::process::TestProcess;
use crate::redis_connection::RedisConnection;
use crate::store_clock::StoreClock;
use crate::temp_dir::TempDir;

const READY: &str = "Ready to accept connections";
const LOADING: &str = "Loading RDB produced by";
/// Where a server with this option keeps every write: a kill loses none that it has answered.
const APPEND_ONLY_DIR: &str = "appendonlydir";

/// How to start a server, and start it again.
#[derive(Debug, Default)]
pub struct RedisOptions {
    /// Where it listens; `None`: on a free port.
    pub port: Option<u16>,
    /// Further options, as on redis-server's command line.
    pub options: Vec<String>,
    /// A wall clock of its own.
    pub clock: Option<StoreClock>,
}

/// What a server finds when it starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// What its directory holds.
    Kept,
    /// No keys. A node of a cluster still knows which node it is.
    Lost,
}

/// Which process a server is, and which line of data it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// New at every start.
    pub run_id: String,
    /// The replication id.
    pub replid: String,
    /// The one before the last promotion; zeros if there was none.
    pub replid2: String,
}

/// One redis-server process and its data directory.
#[derive(Debug)]
pub struct RedisServer {
    process: TestProcess,
    runs: bool,
    launch: Launch,
}

#[derive(Debug)]
struct Launch {
    port: u16,
    scheme: &'static str,
    options: Vec<String>,
    clock: Option<StoreClock>,
    dir: TempDir,
}

impl RedisServer {
    /// Starts an empty server without persistence.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts an empty server with further options, as on redis-server's command line.
    pub async fn start_with(options: &[&str]) -> Self {
        Self::start_as(RedisOptions {
            options: words(options),
            ..RedisOptions::default()
        })
        .await
    }

    /// Starts an empty server.
    pub async fn start_as(options: RedisOptions) -> Self {
        let launch = Launch {
            port: options.port.unwrap_or_else(free_port),
            scheme: "redis",
            options: options.options,
            clock: options.clock,
            dir: TempDir::new("redis"),
        };
        Self::launch(launch).await
    }

    /// Starts an empty server that speaks TLS only, with this certificate; clients need one by
    /// `clients`, if given.
    pub async fn start_tls(server: &Signed, clients: Option<&Authority>, options: &[&str]) -> Self {
        let dir = TempDir::new("redis");
        let port = free_port();
        let file = |name: &str, text: String| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("write a file");
            path.to_str().expect("a plain path").to_owned()
        };
        let certificate = file("server.pem", server.pem());
        let key = file("server.key", server.key_pem());
        let mut all = words(&["--port", "0", "--tls-port", &port.to_string()]);
        all.extend(words(&["--tls-cert-file", &certificate]));
        all.extend(words(&["--tls-key-file", &key, "--tls-auth-clients"]));
        match clients {
            None => all.push("no".to_owned()),
            Some(clients) => {
                let authority = file("clients.pem", clients.pem());
                all.extend(words(&["yes", "--tls-ca-cert-file", &authority]));
            }
        }
        all.extend(words(options));
        Self::launch(Launch {
            port,
            scheme: "rediss",
            options: all,
            clock: None,
            dir,
        })
        .await
    }

    async fn launch(launch: Launch) -> Self {
        Self {
            process: launch.run(&[], READY).await,
            runs: true,
            launch,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.launch.port))
    }

    /// What `--store` takes.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}/0", self.launch.scheme, self.addr())
    }

    /// The file that SAVE writes and a start reads.
    #[must_use]
    pub fn snapshot(&self) -> PathBuf {
        self.launch.dir.path().join("dump.rdb")
    }

    /// The process, to pause and resume it.
    #[must_use]
    pub fn process(&self) -> &TestProcess {
        &self.process
    }

    /// The wall clock that it was started with.
    #[must_use]
    pub fn clock(&self) -> &StoreClock {
        let clock = self.launch.clock.as_ref();
        clock.expect("a server that was started with a clock")
    }

    /// Whether it runs and is not paused.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.runs && self.process.state() != 'T'
    }

    /// SIGKILL; returns once it is gone.
    pub async fn kill(&mut self) {
        self.process.kill().await;
        self.runs = false;
    }

    /// Starts it again on the same port with what its directory holds.
    pub async fn restart(&mut self) {
        self.restart_with(Data::Kept, &[]).await;
    }

    /// Starts it again on the same port, this time with further options.
    pub async fn restart_with(&mut self, data: Data, options: &[&str]) {
        self.kill().await;
        if data == Data::Lost {
            self.launch.forget();
        }
        self.process = self.launch.run(options, READY).await;
        self.runs = true;
    }

    /// Starts it again with what its directory holds; returns while it still loads that.
    pub async fn restart_loading(&mut self) {
        self.kill().await;
        self.process = self.launch.run(&[], LOADING).await;
        self.runs = true;
    }

    /// A connection for raw commands.
    pub async fn connect(&self) -> RedisConnection {
        RedisConnection::open(self.addr())
            .await
            .expect("connect to the Redis of this test")
    }

    /// Which process it is, and which line of data it serves.
    pub async fn identity(&self) -> Identity {
        let mut raw = self.connect().await;
        let text = raw.must(&["INFO"]).await.text().to_owned();
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            value.expect("INFO says so").trim_end().to_owned()
        };
        Identity {
            run_id: field("run_id:"),
            replid: field("master_replid:"),
            replid2: field("master_replid2:"),
        }
    }

    /// A connection by TLS, to a server whose certificate is by `authority`.
    pub async fn connect_tls(
        &self,
        authority: &Authority,
        client: Option<&Signed>,
    ) -> Result<RedisConnection> {
        RedisConnection::open_tls(self.addr(), authority, client).await
    }
}

impl Launch {
    async fn run(&self, further: &[&str], mark: &str) -> TestProcess {
        let mut command = Command::from(store_command());
        command.args([
            "--port",
            &self.port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
        ]);
        let dir = self.dir.path();
        command.args(["--appendonly", "no", "--dir"]).arg(dir);
        command.args(&self.options).args(further);
        if let Some(clock) = &self.clock {
            clock.apply(&mut command);
        }
        let (process, _) = TestProcess::start(command, &dir.join("stderr.log"), &[mark]).await;
        process
    }

    fn forget(&self) {
        let dir = self.dir.path();
        // What was never written need not be removed.
        let _ = std::fs::remove_file(dir.join("dump.rdb"));
        let _ = std::fs::remove_dir_all(dir.join(APPEND_ONLY_DIR));
    }
}

impl Identity {
    /// Whether it was never promoted.
    #[must_use]
    pub fn was_never_promoted(&self) -> bool {
        self.replid2.bytes().all(|byte| byte == b'0')
    }
}

/// Options as they are kept.
fn words(options: &[&str]) -> Vec<String> {
    options.iter().map(|&option| option.to_owned()).collect()
}
