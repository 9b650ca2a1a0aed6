//! How nodes become a cluster, and when it is one.

use futures::future::join_all;

use super::{ClusterDeployment, SLOTS, Seen};
use crate::{redis_connection::RedisConnection, until::until};

impl ClusterDeployment {
    /// By raw commands, in an order that leaves nothing to chance: each node has its own epoch and
    /// its slots before it meets another.
    pub(super) async fn form(&self, masters: usize) {
        let mut raw = Vec::new();
        for index in 0..self.members.len() {
            raw.push(self.server(index).connect().await);
        }
        for (index, node) in raw.iter_mut().enumerate() {
            let epoch = (index + 1).to_string();
            node.must(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            if index < masters {
                let [first, last] = share(index, masters).map(|slot| slot.to_string());
                node.must(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])
                    .await;
            }
        }
        for index in 1..self.members.len() {
            self.meet(&mut raw[0], index).await;
        }
        join_all((0..self.members.len()).map(|index| self.knows_all(index))).await;
        let ids = join_all(raw.iter_mut().map(id)).await;
        for (index, node) in raw.iter_mut().enumerate().skip(masters) {
            let master = &ids[index % masters];
            node.must(&["CLUSTER", "REPLICATE", master]).await;
        }
        self.ready().await;
    }

    /// Makes a replica a master without slots or data, as one that has just been added.
    pub async fn make_empty_master(&self, replica: usize) {
        let mut raw = self.server(replica).connect().await;
        raw.must(&["CLUSTER", "RESET", "SOFT"]).await;
        let masters = self.masters().await;
        let mut master = self.server(masters[0]).connect().await;
        self.meet(&mut master, replica).await;
        self.knows_all(replica).await;
        until("everybody sees another master", async || {
            for index in 0..self.members.len() {
                let seen = self.seen_by(index).await;
                let seen = seen.iter().find(|node| node.index == replica);
                seen.filter(|node| node.is("master"))?;
            }
            (self.state(replica).await == "ok").then_some(())
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

    /// Returns once all nodes see each other well and all slots served, agree by whom, and every
    /// replica is in touch with its master.
    pub async fn ready(&self) {
        until("the cluster is in order", async || {
            let first = self.seen_by(0).await;
            for index in 0..self.members.len() {
                if !self.is_well(index).await || !agree(&first, &self.seen_by(index).await) {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }

    async fn knows_all(&self, index: usize) {
        until("the nodes know each other", async || {
            let seen = self.seen_by(index).await;
            let known = seen.iter().filter(|node| !node.is("handshake"));
            (known.count() == self.members.len()).then_some(())
        })
        .await;
    }

    async fn is_well(&self, index: usize) -> bool {
        let seen = self.seen_by(index).await;
        let all = seen.len() == self.members.len()
            && seen.iter().all(|node| {
                let serves = node.master.is_some() || !node.slots.is_empty();
                serves && node.connected && !node.has_failed()
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

/// Whether two nodes see the same slots served by the same nodes.
fn agree(one: &[Seen], other: &[Seen]) -> bool {
    one.iter().all(|node| {
        let same = other.iter().find(|same| same.index == node.index);
        same.is_some_and(|same| same.slots == node.slots && same.master == node.master)
    })
}

/// The first and the last slot of one master of several.
fn share(index: usize, masters: usize) -> [usize; 2] {
    let all = usize::from(SLOTS);
    [all * index / masters, all * (index + 1) / masters - 1]
}

async fn id(raw: &mut RedisConnection) -> String {
    raw.must(&["CLUSTER", "MYID"]).await.text().to_owned()
}
