//! Forming a cluster from nodes, and waiting until the cluster is complete.

use futures::future::join_all;

use super::{ClusterDeployment, ReportedNode, SLOTS};
use crate::{redis::connection::RedisConnection, until::until};

impl ClusterDeployment {
    /// Forms the cluster by raw commands in a deterministic order: each node has its own epoch and
    /// its slots before it meets another node.
    pub(super) async fn form(&self, masters: usize) {
        let mut raw = Vec::new();
        for index in 0..self.members.len() {
            raw.push(self.server(index).connect().await);
        }
        for (index, node) in raw.iter_mut().enumerate() {
            let epoch = (index + 1).to_string();
            node.must(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            if index < masters {
                let [first, last] = slot_range(index, masters).map(|slot| slot.to_string());
                node.must(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])
                    .await;
            }
        }
        for index in 1..self.members.len() {
            self.meet(&mut raw[0], index).await;
        }
        join_all((0..self.members.len()).map(|index| self.wait_until_all_known(index))).await;
        let ids = join_all(raw.iter_mut().map(node_id)).await;
        for (index, node) in raw.iter_mut().enumerate().skip(masters) {
            let master = &ids[index % masters];
            node.must(&["CLUSTER", "REPLICATE", master]).await;
        }
        self.wait_until_ready().await;
    }

    /// Turns a replica into a master without slots and data, like a node that was just added.
    pub async fn make_empty_master(&self, replica: usize) {
        let mut raw = self.server(replica).connect().await;
        raw.must(&["CLUSTER", "RESET", "SOFT"]).await;
        let masters = self.masters().await;
        let mut master = self.server(masters[0]).connect().await;
        self.meet(&mut master, replica).await;
        self.wait_until_all_known(replica).await;
        until("everybody sees another master", async || {
            for index in 0..self.members.len() {
                let seen = self.nodes_reported_by(index).await;
                let seen = seen.iter().find(|node| node.index == replica);
                seen.filter(|node| node.has_flag("master"))?;
            }
            (self.cluster_state(replica).await == "ok").then_some(())
        })
        .await;
    }

    async fn meet(&self, raw: &mut RedisConnection, index: usize) {
        let member = &self.members[index];
        let (port, bus) = (member.addr().port(), member.bus_port());
        let [port, bus] = [port, bus].map(|port| port.to_string());
        raw.must(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])
            .await;
    }

    /// Waits until all nodes are connected and all slots are served, all nodes agree on the slot
    /// map, and every replica is connected to its master.
    pub async fn wait_until_ready(&self) {
        until("the cluster is in order", async || {
            let first = self.nodes_reported_by(0).await;
            for index in 0..self.members.len() {
                if !self.is_healthy(index).await
                    || !have_same_slot_map(&first, &self.nodes_reported_by(index).await)
                {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }

    async fn wait_until_all_known(&self, index: usize) {
        until("the nodes know each other", async || {
            let seen = self.nodes_reported_by(index).await;
            let known = seen.iter().filter(|node| !node.has_flag("handshake"));
            (known.count() == self.members.len()).then_some(())
        })
        .await;
    }

    async fn is_healthy(&self, index: usize) -> bool {
        let seen = self.nodes_reported_by(index).await;
        let all = seen.len() == self.members.len()
            && seen.iter().all(|node| {
                let serves = node.master.is_some() || !node.slots.is_empty();
                serves && node.is_connected && !node.has_failed()
            });
        let mut raw = self.server(index).connect().await;
        let slots = format!("cluster_slots_ok:{SLOTS}");
        let info = raw.must(&["CLUSTER", "INFO"]).await.text().to_owned();
        let says = |what: &str| info.lines().any(|line| line == what);
        let link = raw.info("replication", "master_link_status").await;
        let in_touch = link.is_none_or(|link| link == "up");
        all && in_touch && says("cluster_state:ok") && says(&slots)
    }
}

/// Returns true if two nodes have the same slot map.
fn have_same_slot_map(one: &[ReportedNode], other: &[ReportedNode]) -> bool {
    one.iter().all(|node| {
        let same = other.iter().find(|same| same.index == node.index);
        same.is_some_and(|same| same.slots == node.slots && same.master == node.master)
    })
}

/// Returns the first and the last slot of one of several masters.
fn slot_range(index: usize, masters: usize) -> [usize; 2] {
    let all = usize::from(SLOTS);
    [all * index / masters, all * (index + 1) / masters - 1]
}

async fn node_id(raw: &mut RedisConnection) -> String {
    raw.must(&["CLUSTER", "MYID"]).await.text().to_owned()
}
