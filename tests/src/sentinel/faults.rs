//! What can go wrong around the master, and what the Sentinels make of it.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use futures::future::join_all;
use tokio::time::timeout;

use super::{MASTER, Sentinel, SentinelDeployment, sentinel_address, server_address};
use crate::{gate::Gate, redis_server::Data, until::until};

/// Two elections without a winner fit in.
const FAIL_OVER_LIMIT: Duration = Duration::from_secs(40);

impl SentinelDeployment {
    /// SIGKILL.
    pub async fn kill(&mut self, index: usize) {
        self.members[index].server.kill().await;
    }

    /// Starts a server again: as the master if the Sentinels name it still, else as a replica.
    pub async fn restart(&mut self, index: usize, data: Data) {
        let master = self.master().await;
        let port = self.addr(master).port().to_string();
        let follow = ["--replicaof", "127.0.0.1", &port];
        let options = if master == index { &[][..] } else { &follow };
        let server = &mut self.members[index].server;
        server.restart_with(data, options).await;
    }

    /// SIGKILL of a Sentinel.
    pub async fn kill_sentinel(&mut self, index: usize) {
        self.sentinels[index].kill().await;
    }

    /// Starts a Sentinel again, with what it knew.
    pub async fn restart_sentinel(&mut self, index: usize) {
        self.sentinels[index].restart().await;
    }

    /// Asks a Sentinel for another master, although this one is well. Returns when it has begun.
    pub async fn fail_over(&self) {
        let sentinel = self.running().next().expect("a Sentinel runs");
        let mut raw = sentinel.connect().await;
        raw.must(&["SENTINEL", "FAILOVER", MASTER]).await;
    }

    /// The next master, as soon as all Sentinels that run name the same one in the place of `from`.
    pub async fn failed_over(&self, from: usize) -> usize {
        let former = self.addr(from);
        let agreed = async {
            join_all(self.running().map(|sentinel| sentinel.master_after(former))).await;
            // Two fail-overs may follow each other at once.
            until("the Sentinels agree", async || {
                let named = join_all(self.running().map(Sentinel::master)).await;
                let next = *named.first()?;
                let agree = named.iter().all(|addr| *addr == next);
                (agree && next != former).then_some(next)
            })
            .await
        };
        let next = timeout(FAIL_OVER_LIMIT, agreed).await;
        self.index_of(next.unwrap_or_else(|_| panic!("no fail-over within {FAIL_OVER_LIMIT:?}")))
    }

    /// Returns once a server is a replica of `master` and in touch with it.
    pub async fn follows(&self, index: usize, master: usize) {
        let port = format!("master_port:{}", self.addr(master).port());
        until("the former master follows", async || {
            // Sentinels cut the connections of a server whose role they change.
            let mut raw = self.server(index).connect().await;
            let info = raw.command(&["INFO", "replication"]).await.ok()?;
            let says = |what: &str| info.text().lines().any(|line| line == what);
            (says(&port) && says("master_link_status:up")).then_some(())
        })
        .await;
    }

    /// Parts a server from the other servers and from the Sentinels; clients reach it still.
    pub fn isolate(&self, index: usize) {
        let servers = (0..self.members.len()).map(server_address);
        let sentinels = (0..self.sentinels.len()).map(sentinel_address);
        let everybody: Vec<IpAddr> = servers.chain(sentinels).collect();
        self.gate(index).shut(&everybody);
        for other in self.others(index) {
            self.gate(other).shut(&[server_address(index)]);
        }
    }

    /// Parts clients from a server; the other servers and the Sentinels reach it still.
    pub fn isolate_from_clients(&self, index: usize) {
        self.gate(index).shut(&[Ipv4Addr::LOCALHOST.into()]);
    }

    /// Everybody reaches everybody again.
    pub fn heal(&self) {
        (0..self.members.len()).for_each(|index| self.gate(index).open());
    }

    fn gate(&self, index: usize) -> &Gate {
        let gate = self.members[index].gate.as_ref();
        gate.expect("a deployment that was started with gates")
    }
}
