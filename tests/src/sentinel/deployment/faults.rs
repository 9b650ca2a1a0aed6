//! Faults of servers, Sentinels and their network, and the resulting failovers.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use futures::future::join_all;
use tokio::time::timeout;

use super::{MASTER, Sentinel, SentinelDeployment, sentinel_source_address, server_source_address};
use crate::{net::partition_proxy::PartitionProxy, redis::server::RestartData, until::until};

/// Bound of a failover, which includes two elections without a winner.
const FAIL_OVER_LIMIT: Duration = Duration::from_secs(40);

/// Fault of a master that makes the Sentinels promote a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MasterFault {
    /// SIGKILL.
    Killed,
    /// SIGSTOP.
    Stopped,
    /// The master is isolated from the other servers and the Sentinels, but not from the brokers.
    Isolated,
}

impl SentinelDeployment {
    /// Causes a fault of a server.
    pub async fn cause(&mut self, fault: MasterFault, index: usize) {
        match fault {
            MasterFault::Killed => self.kill(index).await,
            MasterFault::Stopped => self.server(index).process().pause().await,
            MasterFault::Isolated => self.isolate(index),
        }
    }

    /// Ends a fault of a server, and waits until the server replicates from `master`.
    pub async fn repair(&mut self, fault: MasterFault, index: usize, master: usize) {
        self.heal();
        match fault {
            MasterFault::Killed => self.restart(index, RestartData::Kept).await,
            MasterFault::Stopped => self.server(index).process().resume(),
            MasterFault::Isolated => {}
        }
        self.wait_until_replicating(index, master).await;
    }

    /// Kills a server (SIGKILL).
    pub async fn kill(&mut self, index: usize) {
        self.members[index].server.kill().await;
    }

    /// Restarts a server, as the master if the Sentinels still name it, else as a replica.
    pub async fn restart(&mut self, index: usize, data: RestartData) {
        let master = self.master().await;
        let port = self.addr(master).port().to_string();
        let follow = ["--replicaof", "127.0.0.1", &port];
        let options = if master == index { &[][..] } else { &follow };
        let server = &mut self.members[index].server;
        server.restart_with(data, options).await;
    }

    /// Kills a Sentinel (SIGKILL).
    pub async fn kill_sentinel(&mut self, index: usize) {
        self.sentinels[index].kill().await;
    }

    /// Restarts a Sentinel with its previous state.
    pub async fn restart_sentinel(&mut self, index: usize) {
        self.sentinels[index].restart().await;
    }

    /// Requests a failover from a healthy master. Returns when the failover has started.
    pub async fn start_failover(&self) {
        let sentinel = self.running_sentinels().next().expect("a Sentinel runs");
        let mut raw = sentinel.connect().await;
        raw.must(&["SENTINEL", "FAILOVER", MASTER]).await;
    }

    /// Waits until all running Sentinels name the same new master instead of `from`, and returns
    /// its index.
    pub async fn wait_for_failover(&self, from: usize) -> usize {
        let former = self.addr(from);
        let agreed = async {
            join_all(
                self.running_sentinels()
                    .map(|sentinel| sentinel.wait_for_new_master(former)),
            )
            .await;
            // A second failover may follow immediately.
            until("the Sentinels agree", async || {
                let named = join_all(self.running_sentinels().map(Sentinel::master)).await;
                let next = *named.first()?;
                let agree = named.iter().all(|addr| *addr == next);
                (agree && next != former).then_some(next)
            })
            .await
        };
        let next = timeout(FAIL_OVER_LIMIT, agreed).await;
        self.index_of(next.unwrap_or_else(|_| panic!("no fail-over within {FAIL_OVER_LIMIT:?}")))
    }

    /// Waits until a server replicates from `master`.
    pub async fn wait_until_replicating(&self, index: usize, master: usize) {
        let port = format!("master_port:{}", self.addr(master).port());
        until("the former master follows", async || {
            // Sentinels close the connections of a server whose role they change.
            let mut raw = self.server(index).connect().await;
            let info = raw.command(&["INFO", "replication"]).await.ok()?;
            let says = |what: &str| info.text().lines().any(|line| line == what);
            (says(&port) && says("master_link_status:up")).then_some(())
        })
        .await;
    }

    /// Isolates a server from the other servers and from the Sentinels. Clients can still reach the
    /// server.
    pub fn isolate(&self, index: usize) {
        let servers = (0..self.members.len()).map(server_source_address);
        let sentinels = (0..self.sentinels.len()).map(sentinel_source_address);
        let everybody: Vec<IpAddr> = servers.chain(sentinels).collect();
        self.proxy(index).block(&everybody);
        for other in self.other_servers(index) {
            self.proxy(other).block(&[server_source_address(index)]);
        }
    }

    /// Isolates a server from clients. The other servers and the Sentinels can still reach the
    /// server.
    pub fn isolate_from_clients(&self, index: usize) {
        self.proxy(index).block(&[Ipv4Addr::LOCALHOST.into()]);
    }

    /// Stops the replication from a master to all other servers. Clients and Sentinels can still
    /// reach the master.
    pub fn cut_replication(&self, master: usize) {
        let replicas = self.other_servers(master).map(server_source_address);
        self.proxy(master).block(&replicas.collect::<Vec<_>>());
    }

    /// Removes all network partitions.
    pub fn heal(&self) {
        let proxies = self.members.iter().filter_map(|one| one.proxy.as_ref());
        proxies.for_each(PartitionProxy::unblock_all);
    }

    fn proxy(&self, index: usize) -> &PartitionProxy {
        let proxy = self.members[index].proxy.as_ref();
        proxy.expect("a deployment that was started with gates")
    }
}
