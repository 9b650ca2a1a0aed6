//! Processes that are measured.

use std::net::SocketAddr;

use leasehold_tests::broker::process::{BrokerOptions, BrokerProcess};
use leasehold_tests::process::binaries::leasehold_server;
use leasehold_tests::process::child::TestProcess;
use leasehold_tests::process::temp_dir::TempDir;
use leasehold_tests::redis::server::RedisServer;
use tokio::process::Command;

use crate::echo;
use crate::scripts::Scripts;

/// Text that a broker prints before its admin address.
const ADMIN: &str = "admin listening on ";

/// Processes that are measured, killed when dropped.
pub(crate) struct Targets {
    memory: Served,
    echo: Served,
    redis: [BrokerProcess; 2],
    scripts: Scripts,
    _server: RedisServer,
}

/// A process that printed its listening address. Killed when dropped.
pub(crate) struct Served {
    process: TestProcess,
    addr: SocketAddr,
    _dir: TempDir,
}

impl Targets {
    pub(crate) async fn start() -> Self {
        let server = RedisServer::start().await;
        let options = BrokerOptions::for_store(server.url());
        options.init_store().await;
        let redis = [
            BrokerProcess::start(&options).await,
            BrokerProcess::start(&options).await,
        ];
        let scripts = Scripts::connect(server.addr()).await;
        let memory = Served::memory_broker(&[]).await;
        let mut echo = Command::new(std::env::current_exe().expect("a program knows its path"));
        echo.arg(echo::ARGUMENT);
        let echo = Served::start(echo, &[echo::LISTENING]).await;
        Self {
            memory,
            echo,
            redis,
            scripts,
            _server: server,
        }
    }

    pub(crate) fn memory(&self) -> SocketAddr {
        self.memory.addr
    }

    pub(crate) fn redis(&self) -> SocketAddr {
        self.redis[0].addr()
    }

    pub(crate) fn second_redis(&self) -> SocketAddr {
        self.redis[1].addr()
    }

    pub(crate) fn echo(&self) -> SocketAddr {
        self.echo.addr
    }

    pub(crate) fn memory_pid(&self) -> u32 {
        self.memory.pid()
    }

    pub(crate) fn echo_pid(&self) -> u32 {
        self.echo.pid()
    }

    pub(crate) fn scripts(&self) -> &Scripts {
        &self.scripts
    }
}

impl Served {
    /// Starts a broker on the embedded store, with settings as environment variables.
    pub(crate) async fn memory_broker(env: &[(String, String)]) -> Self {
        let mut broker = Command::new(leasehold_server());
        broker.args([
            "dev",
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "127.0.0.1:0",
        ]);
        broker.envs(env.iter().map(|(key, value)| (key, value)));
        Self::start(broker, &[ADMIN, echo::LISTENING]).await
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Starts a process. The last of `marks` precedes the address.
    async fn start(command: Command, marks: &[&str]) -> Self {
        let dir = TempDir::new("bench");
        let log = dir.path().join("stderr.log");
        let (process, lines) = TestProcess::start(command, &log, marks).await;
        let line = lines.last().expect("a line for each mark");
        let (_, addr) = line
            .split_once(echo::LISTENING)
            .expect("the line holds its mark");
        Self {
            process,
            addr: addr.trim().parse().expect("an address"),
            _dir: dir,
        }
    }
}
