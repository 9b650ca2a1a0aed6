//! What can go wrong with the nodes of a cluster, and what the others make of it.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use super::{ClusterDeployment, Gates, node_address, tag_in};
use crate::{clock::boottime, redis_connection::Reply, redis_server::Data, until::until};

/// What became of writes to a master that was parted from the others.
#[derive(Debug)]
pub struct Writes {
    /// How many it took.
    pub taken: usize,
    /// When it took the last, from the first on.
    pub last: Duration,
    /// How it refused the next.
    pub refusal: String,
}

impl ClusterDeployment {
    /// SIGKILL.
    pub async fn kill(&mut self, index: usize) {
        self.members[index].server.kill().await;
    }

    /// Starts a node again; which node it is, it knows in any case.
    pub async fn restart(&mut self, index: usize, data: Data) {
        self.members[index].server.restart_with(data, &[]).await;
    }

    /// Has a replica take the place of its master, which is well. Returns when it has begun.
    pub async fn fail_over(&self, replica: usize) {
        let mut raw = self.server(replica).connect().await;
        raw.must(&["CLUSTER", "FAILOVER"]).await;
    }

    /// The next master of a slot, as soon as it serves and every node but `from` names it.
    pub async fn promoted(&self, slot: u16, from: usize) -> usize {
        until("a replica is promoted", async || {
            let mut named = Vec::new();
            for index in self.answering().filter(|&index| index != from) {
                let seen = self.seen_by(index).await;
                named.push(seen.into_iter().find(|node| node.serves(slot))?);
            }
            let next = named.first()?.index;
            let agree = named
                .iter()
                .all(|node| node.index == next && !node.has_failed());
            let serves = agree && next != from && self.state(next).await == "ok";
            serves.then_some(next)
        })
        .await
    }

    /// Returns once every other node that runs takes a node for failed.
    pub async fn failed(&self, failed: usize) {
        until("the others find it failed", async || {
            for index in self.answering().filter(|&index| index != failed) {
                let seen = self.seen_by(index).await;
                let found = seen.iter().find(|node| node.index == failed);
                found.filter(|node| node.is("fail"))?;
            }
            Some(())
        })
        .await;
    }

    /// Returns the moment at which a former master knows that it is a replica now.
    pub async fn demoted(&self, former: usize) -> Duration {
        until("the former master is a replica", async || {
            let mut raw = self.server(former).connect().await;
            let role = raw.info("replication", "role").await;
            (role.as_deref() == Some("slave")).then(boottime)
        })
        .await
    }

    /// What a node says of the cluster: `ok`, or `fail`.
    pub async fn state(&self, index: usize) -> String {
        let mut raw = self.server(index).connect().await;
        let info = raw.must(&["CLUSTER", "INFO"]).await.text().to_owned();
        let state = info
            .lines()
            .find_map(|line| line.strip_prefix("cluster_state:"));
        state.expect("a state").to_owned()
    }

    /// Writes to a master that is parted from the others, until it refuses.
    pub async fn write_until_refused(&self, master: usize, slot: u16) -> Writes {
        let mut raw = self.connect(master).await;
        let key = format!("{}parted", tag_in(slot));
        let (begun, mut taken, mut last) = (boottime(), 0, Duration::ZERO);
        let refusal = until("a master that is parted refuses writes", async || {
            match raw.command(&["SET", &key, "x"]).await {
                Ok(Reply::Error(refusal)) => return Some(refusal),
                Ok(_) => (taken, last) = (taken + 1, boottime() - begun),
                Err(error) => panic!("the connection ended: {error}"),
            }
            None
        })
        .await;
        Writes {
            taken,
            last,
            refusal,
        }
    }

    /// Parts a node from all others; clients reach it still.
    pub fn isolate(&self, index: usize) {
        let everybody: Vec<IpAddr> = (0..self.members.len()).map(node_address).collect();
        for (at, member) in self.members.iter().enumerate() {
            let gates = member.gates();
            let whom = if at == index {
                &everybody[..]
            } else {
                &everybody[index..=index]
            };
            gates.commands.shut(whom);
            gates.bus.shut(whom);
        }
    }

    /// Parts a replica from the data of its master; of each other's lives they hear still.
    pub fn hold_up_replica(&self, replica: usize, master: usize) {
        let gates = self.members[master].gates();
        gates.commands.shut(&[node_address(replica)]);
    }

    /// Parts clients from a node; the others reach it still.
    pub fn isolate_from_clients(&self, index: usize) {
        let gates = self.members[index].gates();
        gates.commands.shut(&[Ipv4Addr::LOCALHOST.into()]);
    }

    /// Everybody reaches everybody again.
    pub fn heal(&self) {
        for member in &self.members {
            member.gates().commands.open();
            member.gates().bus.open();
        }
    }
}

impl super::Member {
    fn gates(&self) -> &Gates {
        let gates = self.gates.as_ref();
        gates.expect("a deployment that was started with gates")
    }
}
