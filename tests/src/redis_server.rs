//! A real Redis of its own: free port, own directory, killed when dropped.

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::process::Command;

use crate::port::free_port;
use crate::process::TestProcess;
use crate::redis_connection::RedisConnection;
use crate::temp_dir::TempDir;

const READY: &str = "Ready to accept connections";

/// One redis-server process and its data directory.
#[derive(Debug)]
pub struct RedisServer {
    process: TestProcess,
    port: u16,
    options: Vec<String>,
    dir: TempDir,
}

impl RedisServer {
    /// Starts an empty server without persistence.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts an empty server with further options, as on redis-server's command line.
    pub async fn start_with(options: &[&str]) -> Self {
        let dir = TempDir::new("redis");
        let port = free_port();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let process = launch(port, &dir, &options).await;
        Self {
            process,
            port,
            options,
            dir,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// What `--store` takes.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}/0", self.addr())
    }

    /// The file that SAVE writes and a start reads.
    #[must_use]
    pub fn snapshot(&self) -> PathBuf {
        self.dir.path().join("dump.rdb")
    }

    /// The process, to pause and resume it.
    #[must_use]
    pub fn process(&self) -> &TestProcess {
        &self.process
    }

    /// SIGKILL; returns once it is gone.
    pub async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Starts it again on the same port with what its directory holds.
    pub async fn restart(&mut self) {
        self.process.kill().await;
        self.process = launch(self.port, &self.dir, &self.options).await;
    }

    /// A connection for raw commands.
    pub async fn connect(&self) -> RedisConnection {
        RedisConnection::open(self.addr())
            .await
            .expect("connect to the Redis of this test")
    }
}

async fn launch(port: u16, dir: &TempDir, options: &[String]) -> TestProcess {
    let mut command = Command::new("redis-server");
    command.args([
        "--port",
        &port.to_string(),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
    ]);
    command
        .args(["--appendonly", "no", "--dir"])
        .arg(dir.path())
        .args(options);
    TestProcess::start(command, &dir.path().join("stderr.log"), &[READY])
        .await
        .0
}
