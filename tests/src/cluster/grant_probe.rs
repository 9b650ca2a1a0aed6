//! Determines which of two masters of a cluster granted a lock around a failover.
//!
//! A master that was stopped or isolated continues as master until it receives the promotion of a
//! replica on the cluster bus. Until then it executes commands of brokers that have not received
//! the promotion either, and commands that were sent while it was stopped, if their deadlines have
//! not passed. The time of a grant therefore does not identify the server. The record does: the
//! promoted master keeps the record of every lock that it granted for minutes, and the record of a
//! name that is new after the promotion cannot have been replicated to it.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use leasehold_server::store::redis::era::Era;

use crate::{
    broker::process::KEY_PREFIX,
    client::unary::{AcquireCall, Client},
    clock::boottime_from_store,
    cluster::{
        deployment::{ClusterDeployment, hash_tag_for},
        fixture::{QUARANTINE, TTL, slot_of_lock},
        workload::{Lock, Workload, granted_at},
    },
    load::store_expiry::store_expiry,
    redis::connection::{RedisConnection, Reply},
    until::until,
};

/// The two servers, at addresses without gates. They are the same server if a killed master comes
/// back as master.
#[derive(Debug, Clone, Copy)]
pub struct MasterFailover {
    former: SocketAddr,
    promoted: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granter {
    /// The master before the failover.
    Former,
    /// The master after the failover.
    Promoted,
}

/// A grant of a lock that was never used before the promotion.
#[derive(Debug, Clone, Copy)]
pub struct ProbeGrant {
    /// The server that granted.
    pub granter: Granter,
    /// Time of the grant, by that server's clock.
    pub granted_at: Duration,
}

/// The grants of a lock that was never used before the promotion.
#[derive(Debug)]
pub struct Probe {
    /// The grants in order. The last is by the promoted master.
    pub grants: Vec<ProbeGrant>,
    /// Time from which the promoted master may grant the lock, from the era of its slot.
    pub grants_allowed_from: Duration,
}

/// Times from which the promoted master may grant locks that are in use, by the index of the lock.
#[derive(Debug)]
pub struct GrantStartTimes(HashMap<usize, Duration>);

impl MasterFailover {
    /// Identifies both servers by their index.
    #[must_use]
    pub fn new(cluster: &ClusterDeployment, former: usize, promoted: usize) -> Self {
        let addr = |index| cluster.server(index).addr();
        Self {
            former: addr(former),
            promoted: addr(promoted),
        }
    }

    /// Requests a lock from one broker until the promoted master grants it, with a new request
    /// after each grant of the former master.
    pub async fn probe(self, client: &Client, broker: usize, lock: &str) -> Probe {
        let mut grants = Vec::new();
        loop {
            let call = AcquireCall::new(lock, TTL, Duration::ZERO);
            let held = until("a grant after a fail-over", async || {
                client.acquire_at(broker, &call).await.ok()
            })
            .await;
            let by = self.granter(lock, held.token()).await;
            let granted = granted_at(&held);
            grants.push(ProbeGrant {
                granter: by,
                granted_at: granted,
            });
            if by == Granter::Promoted {
                break;
            }
        }
        Probe {
            grants,
            grants_allowed_from: self.grants_allowed_from(lock).await,
        }
    }

    /// Reads the times from which the promoted master may grant the locks of a group. Their slots
    /// must grant again.
    pub async fn read_grant_times(self, locks: &[Lock], group: usize) -> GrantStartTimes {
        let mut openings = HashMap::new();
        for (index, lock) in locks.iter().enumerate() {
            if lock.group == group {
                openings.insert(index, self.grants_allowed_from(&lock.name).await);
            }
        }
        GrantStartTimes(openings)
    }

    async fn grants_allowed_from(self, lock: &str) -> Duration {
        let mut raw = connect(self.promoted).await;
        let key = format!("{KEY_PREFIX}era{}", hash_tag_for(slot_of_lock(lock)));
        let era = raw.must(&["GET", &key]).await;
        let era = Era::parse(era.text()).expect("the slot of a granted lock has an era");
        boottime_from_store(era.no_grants_before_ms * 1_000)
    }

    async fn granter(self, lock: &str, token: i64) -> Granter {
        if last_token(&mut connect(self.promoted).await, lock).await == Some(token) {
            return Granter::Promoted;
        }
        let mut raw = connect(self.former).await;
        let is_there = last_token(&mut raw, lock).await == Some(token);
        // A demoted server drops its own records when it copies those of the promoted server.
        let role = raw.info("replication", "role").await;
        assert!(
            is_there || role.as_deref() == Some("slave"),
            "neither master has the grant {token} of {lock}"
        );
        Granter::Former
    }
}

impl Probe {
    /// Returns the time of the first grant by the promoted master.
    #[must_use]
    pub fn first_promoted_grant(&self) -> Duration {
        let last = self.grants.last();
        last.expect("the promoted master grants in the end")
            .granted_at
    }

    /// Checks the grants of each server. `lost` is the time at which the shard lost its master,
    /// `demoted` the time at which the former master was known to be a replica.
    ///
    /// The promoted master may grant nothing before its quarantine has ended. The end of the
    /// quarantine is in the era, which a broker wrote after the promotion, and so after `lost`. A
    /// grant within the quarantine is a fault of the brokers.
    ///
    /// The former master may grant until it receives the promotion, because a broker may not have
    /// received the promotion either. The quarantine exists for these leases: they must have
    /// expired in the store when the promoted master first grants the same lock.
    pub fn check(&self, lost: Duration, demoted: Duration) {
        let resumed = self.first_promoted_grant();
        assert!(
            self.grants_allowed_from >= lost + QUARANTINE,
            "the quarantine is too short after a loss at {lost:?}: {self:?}"
        );
        assert!(
            resumed >= self.grants_allowed_from,
            "the promoted master granted inside its quarantine: {self:?}"
        );
        for grant in self
            .grants
            .iter()
            .filter(|grant| grant.granter == Granter::Former)
        {
            assert!(
                grant.granted_at <= demoted,
                "a replica granted, which was one since {demoted:?}: {self:?}"
            );
            assert!(
                grant.granted_at + store_expiry(TTL) <= resumed,
                "granted again before the lease of the former master was over: {self:?}"
            );
        }
    }
}

impl GrantStartTimes {
    /// Checks the grants of locks in use as [`Probe::check`] does. Their records change too often
    /// to identify the server. But after the demotion of the former master only the promoted one
    /// can have granted, and leases granted before must have expired in the store when the promoted
    /// master may first grant.
    pub fn check(&self, work: &Workload, lost: Duration, demoted: Duration) {
        for attempt in work.attempts() {
            let Some((granted, opens)) = attempt.granted_at.zip(self.0.get(&attempt.lock)) else {
                continue;
            };
            if granted <= lost || granted >= *opens {
                continue;
            }
            assert!(
                granted <= demoted,
                "granted inside the quarantine, which ends at {opens:?}: {attempt:?}"
            );
            assert!(
                granted + store_expiry(TTL) <= *opens,
                "the lease outlasts the quarantine, which ends at {opens:?}: {attempt:?}"
            );
        }
    }
}

async fn connect(addr: SocketAddr) -> RedisConnection {
    let raw = RedisConnection::open(addr).await;
    raw.expect("connect to a node of this test")
}

/// Returns the fencing token in a node's own record of a lock, for a master or a replica.
async fn last_token(raw: &mut RedisConnection, lock: &str) -> Option<i64> {
    raw.must(&["READONLY"]).await;
    let key = format!("{KEY_PREFIX}{{default:{lock}}}");
    match raw.command(&["HGET", &key, "f"]).await {
        Ok(Reply::Text(token)) => token.parse().ok(),
        // The node loads the data of its master.
        Ok(_) => None,
        Err(error) => panic!("the connection ended: {error}"),
    }
}
