//! A Sentinel process: start, restart, and queries for its state.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use tokio::process::Command;

use super::{MASTER, SentinelOptions};
use crate::{
    process::{binaries::store_command, child::TestProcess, ports::free_port, temp_dir::TempDir},
    redis::connection::{RedisConnection, Reply},
};

const READY: &str = "+monitor master";
const SWITCH_EVENT: &str = "+switch-master";
/// Shorter periods of a Sentinel. Sentinels discover each other through published messages and
/// monitor replicas through `INFO`. A pause of this machine must not put them into TILT mode for 30
/// s. A Sentinel whose connection was cut reconnects after `ping-period`: with the default of 1 s
/// it would consider a just promoted master down after 1 s, and replace it as well.
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

/// A Sentinel, which is killed when dropped.
#[derive(Debug)]
pub struct Sentinel {
    process: TestProcess,
    is_running: bool,
    port: u16,
    tls: Option<u16>,
    dir: TempDir,
}

impl Sentinel {
    /// Starts a Sentinel that connects to other processes from `source`.
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
        std::fs::write(config_path(&dir), text.join("\n")).expect("write a file");
        let process = launch(&dir).await;
        let sentinel = Self {
            process,
            is_running: true,
            port,
            tls,
            dir,
        };
        sentinel.shorten_periods().await;
        sentinel
    }

    /// Returns the address of the Sentinel, with TLS its TLS address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.tls.unwrap_or(self.port)))
    }

    /// Returns true if the Sentinel runs and is not paused.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.is_running && self.process.state() != 'T'
    }

    /// Returns the process, which tests pause and resume.
    #[must_use]
    pub fn process(&self) -> &TestProcess {
        &self.process
    }

    /// Sends SIGKILL and waits until the process has exited.
    pub async fn kill(&mut self) {
        self.process.kill().await;
        self.is_running = false;
    }

    /// Restarts the Sentinel with its configuration file, which contains its state.
    pub async fn restart(&mut self) {
        self.kill().await;
        self.process = launch(&self.dir).await;
        self.is_running = true;
        self.shorten_periods().await;
    }

    /// Opens a plaintext connection for raw commands.
    pub async fn connect(&self) -> RedisConnection {
        let addr = SocketAddr::from(([127, 0, 0, 1], self.port));
        let connection = RedisConnection::open(addr).await;
        connection.expect("connect to a Sentinel of this test")
    }

    /// Returns the address of the current master.
    pub async fn master(&self) -> SocketAddr {
        query_master(&mut self.connect().await).await
    }

    /// Waits until the Sentinel names a master other than `former`, and returns its address.
    pub async fn wait_for_new_master(&self, former: SocketAddr) -> SocketAddr {
        let mut events = self.connect().await;
        events.must(&["SUBSCRIBE", SWITCH_EVENT]).await;
        let mut raw = self.connect().await;
        loop {
            let master = query_master(&mut raw).await;
            if master != former {
                return master;
            }
            events.next_message().await.expect("the Sentinel lives");
        }
    }

    /// Returns true if the Sentinel can reach this number of Sentinels including itself, and these
    /// replicas are healthy.
    pub(super) async fn sees_all(&self, replicas: &[u16], sentinels: usize) -> bool {
        let mut raw = self.connect().await;
        let usable = format!("OK {sentinels} usable Sentinels");
        let quorum = raw.command(&["SENTINEL", "CKQUORUM", MASTER]).await;
        let agree = matches!(quorum, Ok(Reply::Simple(text)) if text.starts_with(&usable));
        let seen = raw.must(&["SENTINEL", "REPLICAS", MASTER]).await;
        let seen: Vec<_> = seen.array().iter().map(reply_fields).collect();
        let follows = |port: &u16| {
            seen.iter().any(|replica| {
                replica["port"] == port.to_string()
                    && replica["flags"] == "slave"
                    && replica["master-link-status"] == "ok"
            })
        };
        agree && replicas.iter().all(follows)
    }

    async fn shorten_periods(&self) {
        let mut raw = self.connect().await;
        raw.must(&[&["SENTINEL", "DEBUG"][..], &PERIODS].concat())
            .await;
    }
}

async fn launch(dir: &TempDir) -> TestProcess {
    let mut command = Command::from(store_command());
    command.arg(config_path(dir)).arg("--sentinel");
    let log = dir.path().join("stderr.log");
    TestProcess::start(command, &log, &[READY]).await.0
}

/// Returns the path of the configuration file, into which the Sentinel also writes its state.
fn config_path(dir: &TempDir) -> PathBuf {
    dir.path().join("sentinel.conf")
}

async fn query_master(raw: &mut RedisConnection) -> SocketAddr {
    let reply = raw
        .must(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER])
        .await;
    let [_host, port] = reply.array() else {
        panic!("not an address: {reply:?}")
    };
    let port = port.text().parse().expect("a port of this machine");
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn reply_fields(reply: &Reply) -> HashMap<&str, &str> {
    let pairs = reply.array().chunks_exact(2);
    pairs.map(|pair| (pair[0].text(), pair[1].text())).collect()
}
