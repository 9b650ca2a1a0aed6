//! Migration of a slot from one master to another, step by step.

use super::ClusterDeployment;
use crate::{redis::connection::RedisConnection, until::until};

const MIGRATE_TIMEOUT_MS: &str = "5000";
const KEYS_MAX: &str = "1000000";

/// A migration that stays unfinished until `finish`, like one that an operator has abandoned.
#[derive(Debug)]
pub struct Migration<'a> {
    cluster: &'a ClusterDeployment,
    slot: u16,
    from: usize,
    to: usize,
    replaces_keys: bool,
    source: RedisConnection,
    target: RedisConnection,
}

impl ClusterDeployment {
    /// Starts the migration of a slot to another master. Its current master then redirects (ASK)
    /// requests for keys that it does not have.
    pub async fn start_migration(&self, slot: u16, to: usize) -> Migration<'_> {
        let from = self.master_of(slot).await;
        self.start_migration_between(slot, from, to).await
    }

    /// Starts a migration between given masters, even if the nodes disagree on the owner of the
    /// slot.
    pub async fn start_migration_between(
        &self,
        slot: u16,
        from: usize,
        to: usize,
    ) -> Migration<'_> {
        let mut migration = Migration {
            cluster: self,
            slot,
            from,
            to,
            replaces_keys: false,
            source: self.server(from).connect().await,
            target: self.server(to).connect().await,
        };
        let [source, target] = [from, to].map(|index| self.node_id_of(index));
        let (source, target) = (source.await, target.await);
        let slot = slot.to_string();
        let importing = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source];
        migration.target.must(&importing).await;
        let migrating = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target];
        migration.source.must(&migrating).await;
        migration
    }

    async fn node_id_of(&self, index: usize) -> String {
        let mut raw = self.server(index).connect().await;
        raw.must(&["CLUSTER", "MYID"]).await.text().to_owned()
    }
}

impl Migration<'_> {
    /// Returns the master that owns the slot.
    #[must_use]
    pub fn source_master(&self) -> usize {
        self.from
    }

    /// Returns the target master.
    #[must_use]
    pub fn target_master(&self) -> usize {
        self.to
    }

    /// Makes the moves replace keys that an earlier attempt has already moved.
    #[must_use]
    pub fn replacing_keys(self) -> Self {
        Self {
            replaces_keys: true,
            ..self
        }
    }

    /// Returns the keys that have not been moved yet.
    pub async fn remaining_keys(&mut self) -> Vec<String> {
        let slot = self.slot.to_string();
        let count = ["CLUSTER", "GETKEYSINSLOT", &slot, KEYS_MAX];
        let keys = self.source.must(&count).await;
        let keys = keys.array().iter().map(|key| key.text().to_owned());
        keys.collect()
    }

    pub async fn move_keys(&mut self, keys: &[String]) {
        let to = &self.cluster.members[self.to];
        let addr = match to.tls {
            Some(_) => self.cluster.tls_addr(self.to),
            None => to.addr(),
        };
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let mut words = vec!["MIGRATE", &host, &port, "", "0", MIGRATE_TIMEOUT_MS];
        words.extend(self.replaces_keys.then_some("REPLACE"));
        words.push("KEYS");
        words.extend(keys.iter().map(String::as_str));
        self.source.must(&words).await;
    }

    /// Moves all remaining keys.
    pub async fn move_remaining_keys(&mut self) {
        let keys = self.remaining_keys().await;
        if !keys.is_empty() {
            self.move_keys(&keys).await;
        }
    }

    /// Assigns the slot, which must be empty at its old master, to the new master. Returns once
    /// every running node has the new slot map.
    pub async fn finish(mut self) {
        let id = self.cluster.node_id_of(self.to).await;
        let slot = self.slot.to_string();
        let give = ["CLUSTER", "SETSLOT", &slot, "NODE", &id];
        self.target.must(&give).await;
        self.source.must(&give).await;
        for master in self.cluster.masters().await {
            if master != self.from && master != self.to {
                self.cluster
                    .server(master)
                    .connect()
                    .await
                    .must(&give)
                    .await;
            }
        }
        until("every node knows where the slot went", async || {
            for index in self.cluster.running_nodes() {
                let seen = self.cluster.nodes_reported_by(index).await;
                let owner = seen.iter().find(|node| node.serves(self.slot))?;
                (owner.index == self.to).then_some(())?;
            }
            Some(())
        })
        .await;
    }
}
