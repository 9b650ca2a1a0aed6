//! A slot on its way from one master to another, step by step.

use super::ClusterDeployment;
use crate::{redis_connection::RedisConnection, until::until};

const MOVE_LIMIT_MS: &str = "5000";
const MANY: &str = "1000000";

/// Stays where it is until it is finished, as one that an operator has forgotten.
#[derive(Debug)]
pub struct Migration<'a> {
    cluster: &'a ClusterDeployment,
    slot: u16,
    from: usize,
    to: usize,
    replaces: bool,
    source: RedisConnection,
    target: RedisConnection,
}

impl ClusterDeployment {
    /// Begins to move a slot to another master: keys that its master has not are to be sought there.
    pub async fn begin_migration(&self, slot: u16, to: usize) -> Migration<'_> {
        let from = self.master_of(slot).await;
        self.begin_migration_between(slot, from, to).await
    }

    /// The same where the servers do not agree who has the slot.
    pub async fn begin_migration_between(
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
            replaces: false,
            source: self.server(from).connect().await,
            target: self.server(to).connect().await,
        };
        let [source, target] = [from, to].map(|index| self.id_of(index));
        let (source, target) = (source.await, target.await);
        let slot = slot.to_string();
        let importing = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source];
        migration.target.must(&importing).await;
        let migrating = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target];
        migration.source.must(&migrating).await;
        migration
    }

    async fn id_of(&self, index: usize) -> String {
        let mut raw = self.server(index).connect().await;
        raw.must(&["CLUSTER", "MYID"]).await.text().to_owned()
    }
}

impl Migration<'_> {
    /// The master that has the slot.
    #[must_use]
    pub fn from(&self) -> usize {
        self.from
    }

    /// The master that is to have it.
    #[must_use]
    pub fn to(&self) -> usize {
        self.to
    }

    /// What has moved in an earlier attempt is replaced by what the slot's master has now.
    #[must_use]
    pub fn replacing(self) -> Self {
        Self {
            replaces: true,
            ..self
        }
    }

    /// The keys that have not moved yet.
    pub async fn keys_left(&mut self) -> Vec<String> {
        let slot = self.slot.to_string();
        let count = ["CLUSTER", "GETKEYSINSLOT", &slot, MANY];
        let keys = self.source.must(&count).await;
        let keys = keys.array().iter().map(|key| key.text().to_owned());
        keys.collect()
    }

    /// Moves these keys.
    pub async fn move_keys(&mut self, keys: &[String]) {
        let to = &self.cluster.members[self.to];
        let addr = match to.tls {
            Some(_) => self.cluster.tls_addr(self.to),
            None => to.addr(),
        };
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let mut words = vec!["MIGRATE", &host, &port, "", "0", MOVE_LIMIT_MS];
        words.extend(self.replaces.then_some("REPLACE"));
        words.push("KEYS");
        words.extend(keys.iter().map(String::as_str));
        self.source.must(&words).await;
    }

    /// Moves all keys that are left.
    pub async fn move_all(&mut self) {
        let keys = self.keys_left().await;
        if !keys.is_empty() {
            self.move_keys(&keys).await;
        }
    }

    /// Gives the slot, which must be empty at its old master, to the new one; returns once every
    /// node that runs knows.
    pub async fn finish(mut self) {
        let id = self.cluster.id_of(self.to).await;
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
            for index in self.cluster.answering() {
                let seen = self.cluster.seen_by(index).await;
                let owner = seen.iter().find(|node| node.serves(self.slot))?;
                (owner.index == self.to).then_some(())?;
            }
            Some(())
        })
        .await;
    }
}
