//! Faults of cluster nodes, and waiting for their effects.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use super::{ClusterDeployment, NodeProxies, hash_tag_for, source_address};
use crate::{
    clock::boottime,
    redis::{connection::Reply, server::RestartData},
    until::until,
};

/// Result of writes to a master that is isolated from the other nodes.
#[derive(Debug)]
pub struct IsolatedWrites {
    /// Number of accepted writes.
    pub accepted: usize,
    /// Time of the last accepted write, counted from the first.
    pub last_accepted_after: Duration,
    /// Error of the first rejected write.
    pub rejection: String,
}

impl ClusterDeployment {
    /// Sends SIGKILL to a node.
    pub async fn kill(&mut self, index: usize) {
        self.members[index].server.kill().await;
    }

    /// Restarts a node, which keeps its node id with any `data`.
    pub async fn restart(&mut self, index: usize, data: RestartData) {
        self.members[index].server.restart_with(data, &[]).await;
    }

    /// Starts a failover from a healthy master to its replica. Returns when the failover has
    /// started.
    pub async fn start_failover(&self, replica: usize) {
        let mut raw = self.server(replica).connect().await;
        raw.must(&["CLUSTER", "FAILOVER"]).await;
    }

    /// Waits until the next master of a slot serves it and every node except `from` agrees, and
    /// returns its index.
    pub async fn wait_for_promotion(&self, slot: u16, from: usize) -> usize {
        until("a replica is promoted", async || {
            let mut named = Vec::new();
            for index in self.running_nodes().filter(|&index| index != from) {
                let seen = self.nodes_reported_by(index).await;
                named.push(seen.into_iter().find(|node| node.serves(slot))?);
            }
            let next = named.first()?.index;
            let agree = named
                .iter()
                .all(|node| node.index == next && !node.has_failed());
            let serves = agree && next != from && self.cluster_state(next).await == "ok";
            serves.then_some(next)
        })
        .await
    }

    /// Waits until every other running node considers a node failed.
    pub async fn wait_until_failed(&self, failed: usize) {
        until("the others find it failed", async || {
            for index in self.running_nodes().filter(|&index| index != failed) {
                let seen = self.nodes_reported_by(index).await;
                let found = seen.iter().find(|node| node.index == failed);
                found.filter(|node| node.has_flag("fail"))?;
            }
            Some(())
        })
        .await;
    }

    /// Waits until a former master is a replica, and returns the time.
    pub async fn wait_for_demotion(&self, former: usize) -> Duration {
        until("the former master is a replica", async || {
            let mut raw = self.server(former).connect().await;
            let role = raw.info("replication", "role").await;
            (role.as_deref() == Some("slave")).then(boottime)
        })
        .await
    }

    /// Returns the cluster state of a node: `ok` or `fail`.
    pub async fn cluster_state(&self, index: usize) -> String {
        let mut raw = self.server(index).connect().await;
        let info = raw.must(&["CLUSTER", "INFO"]).await.text().to_owned();
        let state = info
            .lines()
            .find_map(|line| line.strip_prefix("cluster_state:"));
        state.expect("a state").to_owned()
    }

    /// Writes to a master that is isolated from the other nodes, until a write is rejected.
    pub async fn write_until_rejected(&self, master: usize, slot: u16) -> IsolatedWrites {
        let mut raw = self.connect(master).await;
        let key = format!("{}parted", hash_tag_for(slot));
        let (started_at, mut taken, mut last) = (boottime(), 0, Duration::ZERO);
        let refusal = until("a master that is parted refuses writes", async || {
            match raw.command(&["SET", &key, "x"]).await {
                Ok(Reply::Error(refusal)) => return Some(refusal),
                Ok(_) => (taken, last) = (taken + 1, boottime() - started_at),
                Err(error) => panic!("the connection ended: {error}"),
            }
            None
        })
        .await;
        IsolatedWrites {
            accepted: taken,
            last_accepted_after: last,
            rejection: refusal,
        }
    }

    /// Isolates a node from all other nodes. Clients still reach it.
    pub fn isolate(&self, index: usize) {
        let all_addresses: Vec<IpAddr> = (0..self.members.len()).map(source_address).collect();
        for (at, member) in self.members.iter().enumerate() {
            let proxies = member.proxies();
            let blocked = if at == index {
                &all_addresses[..]
            } else {
                &all_addresses[index..=index]
            };
            proxies.commands.block(blocked);
            proxies.bus.block(blocked);
        }
    }

    /// Blocks the replication of a replica from its master. Their bus connections stay open.
    pub fn block_replication(&self, replica: usize, master: usize) {
        let proxies = self.members[master].proxies();
        proxies.commands.block(&[source_address(replica)]);
    }

    /// Isolates a node from clients. The other nodes still reach it.
    pub fn isolate_from_clients(&self, index: usize) {
        let proxies = self.members[index].proxies();
        proxies.commands.block(&[Ipv4Addr::LOCALHOST.into()]);
    }

    /// Opens all gates.
    pub fn heal(&self) {
        for member in &self.members {
            member.proxies().commands.unblock_all();
            member.proxies().bus.unblock_all();
        }
    }
}

impl super::ClusterNode {
    fn proxies(&self) -> &NodeProxies {
        let proxies = self.proxies.as_ref();
        proxies.expect("a deployment that was started with gates")
    }
}
