//! One Sentinel process, and what it knows.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use tokio::process::Command;

use super::{MASTER, SentinelOptions};
use crate::{
    binary::store_command,
    port::free_port,
    process::TestProcess,
    redis_connection::{RedisConnection, Reply},
    temp_dir::TempDir,
};

const READY: &str = "+monitor master";
const SWITCHED: &str = "+switch-master";
/// Sentinels meet by what they publish, and look after replicas by what INFO says; a pause of this
/// machine is not to make them lie low for half a minute. A Sentinel whose connection was cut comes
/// back after `ping-period`: with its usual second it finds a master that was just promoted down
/// after a second, and replaces that too.
const PERIODS: [&str; 8] = [
    "info-period",
    "1000",
    "publish-period",
    "500",
    "ping-period",
    "500",
    "tilt-period",
    "1000",
];

/// Ends when dropped.
#[derive(Debug)]
pub struct Sentinel {
    process: TestProcess,
    runs: bool,
    port: u16,
    tls: Option<u16>,
    dir: TempDir,
}

impl Sentinel {
    /// One that connects to others from `source`.
    pub(super) async fn start(
        source: IpAddr,
        master: SocketAddr,
        options: &SentinelOptions,
    ) -> Self {
        let dir = TempDir::new("sentinel");
        let port = free_port();
        let tls = (!options.tls.is_empty()).then(free_port);
        let mut text = vec![
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("bind-source-addr {source}"),
            format!("dir {}", dir.path().display()),
            "sentinel resolve-hostnames yes".to_owned(),
            "sentinel announce-hostnames yes".to_owned(),
            "sentinel announce-ip 127.0.0.1".to_owned(),
            format!("sentinel announce-port {}", tls.unwrap_or(port)),
            format!(
                "sentinel monitor {MASTER} {} {} {}",
                options.host,
                master.port(),
                (options.sentinels * 2).div_ceil(3)
            ),
            format!(
                "sentinel down-after-milliseconds {MASTER} {}",
                options.down_after.as_millis()
            ),
            format!(
                "sentinel failover-timeout {MASTER} {}",
                options.failover_timeout.as_millis()
            ),
            format!("sentinel parallel-syncs {MASTER} 2\n"),
        ];
        if let Some(port) = tls {
            let of_tls = options.tls.chunks(2);
            let of_tls = of_tls.map(|option| option.join(" ").replace("--", ""));
            let ports = [format!("tls-port {port}"), "tls-replication yes".to_owned()];
            text.splice(0..0, ports.into_iter().chain(of_tls));
        }
        std::fs::write(file(&dir), text.join("\n")).expect("write a file");
        let process = launch(&dir).await;
        let sentinel = Self {
            process,
            runs: true,
            port,
            tls,
            dir,
        };
        sentinel.hasten().await;
        sentinel
    }

    /// Where it listens, for TLS if there is TLS.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.tls.unwrap_or(self.port)))
    }

    /// Whether it runs and is not paused.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.runs && self.process.state() != 'T'
    }

    /// The process, to pause and resume it.
    #[must_use]
    pub fn process(&self) -> &TestProcess {
        &self.process
    }

    /// SIGKILL; returns once it is gone.
    pub async fn kill(&mut self) {
        self.process.kill().await;
        self.runs = false;
    }

    /// Starts it again with what it knew.
    pub async fn restart(&mut self) {
        self.kill().await;
        self.process = launch(&self.dir).await;
        self.runs = true;
        self.hasten().await;
    }

    /// A connection for raw commands.
    pub async fn connect(&self) -> RedisConnection {
        let addr = SocketAddr::from(([127, 0, 0, 1], self.port));
        let connection = RedisConnection::open(addr).await;
        connection.expect("connect to a Sentinel of this test")
    }

    /// Whom it names as the master.
    pub async fn master(&self) -> SocketAddr {
        named(&mut self.connect().await).await
    }

    /// Whom it names as soon as that is no longer `former`.
    pub async fn master_after(&self, former: SocketAddr) -> SocketAddr {
        let mut events = self.connect().await;
        events.must(&["SUBSCRIBE", SWITCHED]).await;
        let mut raw = self.connect().await;
        loop {
            let master = named(&mut raw).await;
            if master != former {
                return master;
            }
            events.message().await.expect("the Sentinel lives");
        }
    }

    /// Whether it can reach so many Sentinels, itself among them, and these replicas are in order.
    pub(super) async fn sees(&self, replicas: &[u16], sentinels: usize) -> bool {
        let mut raw = self.connect().await;
        let usable = format!("OK {sentinels} usable Sentinels");
        let quorum = raw.command(&["SENTINEL", "CKQUORUM", MASTER]).await;
        let agree = matches!(quorum, Ok(Reply::Simple(text)) if text.starts_with(&usable));
        let seen = raw.must(&["SENTINEL", "REPLICAS", MASTER]).await;
        let seen: Vec<_> = seen.array().iter().map(fields).collect();
        let follows = |port: &u16| {
            seen.iter().any(|replica| {
                replica["port"] == port.to_string()
                    && replica["flags"] == "slave"
                    && replica["master-link-status"] == "ok"
            })
        };
        agree && replicas.iter().all(follows)
    }

    async fn hasten(&self) {
        let mut raw = self.connect().await;
        raw.must(&[&["SENTINEL", "DEBUG"][..], &PERIODS].concat())
            .await;
    }
}

async fn launch(dir: &TempDir) -> TestProcess {
    let mut command = Command::from(store_command());
    command.arg(file(dir)).arg("--sentinel");
    let log = dir.path().join("stderr.log");
    TestProcess::start(command, &log, &[READY]).await.0
}

/// It reads this file, and writes into it what it learns.
fn file(dir: &TempDir) -> PathBuf {
    dir.path().join("sentinel.conf")
}

async fn named(raw: &mut RedisConnection) -> SocketAddr {
    let reply = raw
        .must(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER])
        .await;
    let [_host, port] = reply.array() else {
        panic!("not an address: {reply:?}")
    };
    let port = port.text().parse().expect("a port of this machine");
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn fields(reply: &Reply) -> HashMap<&str, &str> {
    let pairs = reply.array().chunks_exact(2);
    pairs.map(|pair| (pair[0].text(), pair[1].text())).collect()
}
