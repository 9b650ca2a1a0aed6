//! A Redis server process with its own port and directory, killed when dropped.

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::io::Result;
use tokio::process::Command;

use crate::net::certificates::{Authority, SignedCertificate};
use crate::process::binaries::store_command_in;
use crate::process::child::TestProcess;
use crate::process::ports::free_port;
use crate::process::private_wall_clock::PrivateWallClock;
use crate::process::temp_dir::TempDir;
use crate::redis::connection::RedisConnection;

const READY: &str = "Ready to accept connections";
const LOADING: &str = "Loading RDB produced by";
/// Directory of the append-only file. A server with this option loses no acknowledged write when it
/// is killed.
const APPEND_ONLY_DIR: &str = "appendonlydir";

/// Options of a server, which also apply to restarts.
#[derive(Debug, Default)]
pub struct RedisOptions {
    /// Port to listen on, or `None` for a free port.
    pub port: Option<u16>,
    /// Further options, as on the command line of `redis-server`.
    pub options: Vec<String>,
    /// A private wall clock.
    pub clock: Option<PrivateWallClock>,
    /// Command line of a program that runs the server, such as valgrind.
    pub wrapper: Vec<String>,
}

/// Data of a server after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartData {
    /// Data in its directory.
    Kept,
    /// No keys. A cluster node keeps its node id.
    Deleted,
}

/// Identity of the process and of its replication history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Run id, which changes at every start.
    pub run_id: String,
    pub replid: String,
    /// Replication id before the last promotion, or zeros without a promotion.
    pub replid2: String,
}

/// A `redis-server` process and its data directory.
#[derive(Debug)]
pub struct RedisServer {
    process: TestProcess,
    is_running: bool,
    options: LaunchOptions,
}

#[derive(Debug)]
struct LaunchOptions {
    port: u16,
    scheme: &'static str,
    options: Vec<String>,
    clock: Option<PrivateWallClock>,
    wrapper: Vec<String>,
    dir: TempDir,
}

impl RedisServer {
    /// Starts an empty server without persistence.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts an empty server with further options, as on the command line of `redis-server`.
    pub async fn start_with(options: &[&str]) -> Self {
        Self::start_with_options(RedisOptions {
            options: owned_strings(options),
            ..RedisOptions::default()
        })
        .await
    }

    pub async fn start_with_options(options: RedisOptions) -> Self {
        let launch = LaunchOptions {
            port: options.port.unwrap_or_else(free_port),
            scheme: "redis",
            options: options.options,
            clock: options.clock,
            wrapper: options.wrapper,
            dir: TempDir::new("redis"),
        };
        Self::launch(launch).await
    }

    /// Starts an empty server that accepts TLS only. Clients need a certificate of `clients`, if
    /// given.
    pub async fn start_tls(
        server: &SignedCertificate,
        clients: Option<&Authority>,
        options: &[&str],
    ) -> Self {
        let dir = TempDir::new("redis");
        let port = free_port();
        let file = |name: &str, text: String| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("write a file");
            path.to_str().expect("a plain path").to_owned()
        };
        let certificate = file("server.pem", server.pem());
        let key = file("server.key", server.key_pem());
        let mut all = owned_strings(&["--port", "0", "--tls-port", &port.to_string()]);
        all.extend(owned_strings(&["--tls-cert-file", &certificate]));
        all.extend(owned_strings(&[
            "--tls-key-file",
            &key,
            "--tls-auth-clients",
        ]));
        match clients {
            None => all.push("no".to_owned()),
            Some(clients) => {
                let authority = file("clients.pem", clients.pem());
                all.extend(owned_strings(&["yes", "--tls-ca-cert-file", &authority]));
            }
        }
        all.extend(owned_strings(options));
        Self::launch(LaunchOptions {
            port,
            scheme: "rediss",
            options: all,
            clock: None,
            wrapper: Vec::new(),
            dir,
        })
        .await
    }

    async fn launch(launch: LaunchOptions) -> Self {
        Self {
            process: launch.spawn(&[], READY).await,
            is_running: true,
            options: launch,
        }
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.options.port))
    }

    /// Returns the URL for `--store`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}/0", self.options.scheme, self.addr())
    }

    /// Returns the path of the file that `SAVE` writes and a start reads.
    #[must_use]
    pub fn snapshot_path(&self) -> PathBuf {
        self.options.dir.path().join("dump.rdb")
    }

    /// Returns the process, which tests pause and resume.
    #[must_use]
    pub fn process(&self) -> &TestProcess {
        &self.process
    }

    /// Returns the wall clock with which the server was started.
    #[must_use]
    pub fn clock(&self) -> &PrivateWallClock {
        let clock = self.options.clock.as_ref();
        clock.expect("a server that was started with a clock")
    }

    /// Returns true if the server runs and is not paused.
    #[must_use]
    pub fn is_responsive(&self) -> bool {
        self.is_running && self.process.state() != 'T'
    }

    /// Sends SIGKILL and waits until the process has exited.
    pub async fn kill(&mut self) {
        self.process.kill().await;
        self.is_running = false;
    }

    /// Restarts the server on its port with the data in its directory.
    pub async fn restart(&mut self) {
        self.restart_with(RestartData::Kept, &[]).await;
    }

    /// Restarts the server on its port with `data`, and with further options for this start only.
    pub async fn restart_with(&mut self, data: RestartData, options: &[&str]) {
        self.kill().await;
        if data == RestartData::Deleted {
            self.options.delete_data();
        }
        self.process = self.options.spawn(options, READY).await;
        self.is_running = true;
    }

    /// Restarts the server with the data in its directory. Returns while the server is still
    /// loading the data.
    pub async fn restart_loading(&mut self) {
        self.kill().await;
        self.process = self.options.spawn(&[], LOADING).await;
        self.is_running = true;
    }

    /// Opens a connection for raw commands.
    pub async fn connect(&self) -> RedisConnection {
        RedisConnection::open(self.addr())
            .await
            .expect("connect to the Redis of this test")
    }

    /// Returns the identity of the process and of its replication history.
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

    /// Opens a TLS connection to a server with a certificate of `authority`.
    pub async fn connect_tls(
        &self,
        authority: &Authority,
        client: Option<&SignedCertificate>,
    ) -> Result<RedisConnection> {
        RedisConnection::open_tls(self.addr(), authority, client).await
    }
}

impl LaunchOptions {
    async fn spawn(&self, further: &[&str], mark: &str) -> TestProcess {
        let mut command = Command::from(store_command_in(&self.wrapper));
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

    fn delete_data(&self) {
        let dir = self.dir.path();
        // The files may not exist.
        let _ = std::fs::remove_file(dir.join("dump.rdb"));
        let _ = std::fs::remove_dir_all(dir.join(APPEND_ONLY_DIR));
    }
}

impl Identity {
    /// Returns true if the server was never promoted.
    #[must_use]
    pub fn was_never_promoted(&self) -> bool {
        self.replid2.bytes().all(|byte| byte == b'0')
    }
}

fn owned_strings(options: &[&str]) -> Vec<String> {
    options.iter().map(|&option| option.to_owned()).collect()
}
