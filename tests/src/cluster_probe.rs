//! Finds out which of two masters of a cluster granted a lock around a fail-over.
//!
//! A master that was stopped, or cut off, goes on as master until it reads on the cluster bus that a replica
//! was promoted. Until then it executes what brokers send that do not know of the promotion either, and what
//! they sent while it was stopped, as long as their time limit has not passed. So the time of a grant does not
//! tell which server made it, but the record does: the promoted master keeps the record of every lock that it
//! granted for minutes, and a name that is new after the promotion cannot have come to it by replication.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use leasehold_server::store::redis::era::Era;

use crate::{
    broker_process::KEY_PREFIX,
    client::{AcquireCall, Client},
    clock::boottime_of,
    cluster::{ClusterDeployment, tag_in},
    cluster_site::{QUARANTINE, TTL, slot_of_lock},
    cluster_work::{Lock, Work, granted_at},
    redis_connection::{RedisConnection, Reply},
    time_left::expiry,
    until::until,
};

/// The two servers, past any gate. They are the same if a master that was killed comes back as master.
#[derive(Debug, Clone, Copy)]
pub struct FailOver {
    former: SocketAddr,
    promoted: SocketAddr,
}

/// One of the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granter {
    /// The master before the fail-over.
    Former,
    /// The master since.
    Promoted,
}

/// A grant of a lock that nobody had used before the promotion.
#[derive(Debug, Clone, Copy)]
pub struct ProbeGrant {
    /// Which server granted.
    pub by: Granter,
    /// When, by that server's clock.
    pub granted: Duration,
}

/// What became of a lock that nobody had used before the promotion.
#[derive(Debug)]
pub struct Probe {
    /// In their order; the last is by the promoted master.
    pub grants: Vec<ProbeGrant>,
    /// When the promoted master may first grant the lock, as the era of its slot says.
    pub opens: Duration,
}

/// When the promoted master may first grant locks that are in use, by their index.
#[derive(Debug)]
pub struct Openings(HashMap<usize, Duration>);

impl FailOver {
    /// Names both servers by their index.
    #[must_use]
    pub fn of(cluster: &ClusterDeployment, former: usize, promoted: usize) -> Self {
        let addr = |index| cluster.server(index).addr();
        Self {
            former: addr(former),
            promoted: addr(promoted),
        }
    }

    /// Asks for a lock at one broker until the promoted master grants it, with a new request after each grant
    /// of the former master.
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
            grants.push(ProbeGrant { by, granted });
            if by == Granter::Promoted {
                break;
            }
        }
        Probe {
            grants,
            opens: self.opens(lock).await,
        }
    }

    /// Looks up when the promoted master may first grant the locks of a group. Their slots must grant again.
    pub async fn openings(self, locks: &[Lock], group: usize) -> Openings {
        let mut openings = HashMap::new();
        for (index, lock) in locks.iter().enumerate() {
            if lock.group == group {
                openings.insert(index, self.opens(&lock.name).await);
            }
        }
        Openings(openings)
    }

    async fn opens(self, lock: &str) -> Duration {
        let mut raw = connect(self.promoted).await;
        let key = format!("{KEY_PREFIX}era{}", tag_in(slot_of_lock(lock)));
        let era = raw.must(&["GET", &key]).await;
        let era = Era::parse(era.text()).expect("the slot of a granted lock has an era");
        boottime_of(era.no_grants_before_ms * 1_000)
    }

    async fn granter(self, lock: &str, token: i64) -> Granter {
        if last_token(&mut connect(self.promoted).await, lock).await == Some(token) {
            return Granter::Promoted;
        }
        let mut raw = connect(self.former).await;
        let is_there = last_token(&mut raw, lock).await == Some(token);
        // A demoted server drops its own records when it copies those of the promoted one.
        let role = raw.info("replication", "role").await;
        assert!(
            is_there || role.as_deref() == Some("slave"),
            "neither master has the grant {token} of {lock}"
        );
        Granter::Former
    }
}

impl Probe {
    /// Returns when the promoted master first granted the lock.
    #[must_use]
    pub fn resumed(&self) -> Duration {
        let last = self.grants.last();
        last.expect("the promoted master grants in the end").granted
    }

    /// Judges the grants by who made them. `lost` is when the shard had lost its master, `demoted` when the
    /// former master was known to be none any more.
    ///
    /// The promoted master may grant nothing before its quarantine is over. When that is stands in the era,
    /// which a broker wrote after the promotion, so after `lost`. A grant inside the quarantine is a fault of
    /// the brokers.
    ///
    /// The former master may grant until it learns of the promotion: a broker that does not know of it either
    /// may have asked. The quarantine is there for such a lease, which must be over in the store, too, when the
    /// promoted master first grants the same lock.
    pub fn judge(&self, lost: Duration, demoted: Duration) {
        let resumed = self.resumed();
        assert!(
            self.opens >= lost + QUARANTINE,
            "the quarantine is too short after a loss at {lost:?}: {self:?}"
        );
        assert!(
            resumed >= self.opens,
            "the promoted master granted inside its quarantine: {self:?}"
        );
        for grant in self
            .grants
            .iter()
            .filter(|grant| grant.by == Granter::Former)
        {
            assert!(
                grant.granted <= demoted,
                "a replica granted, which was one since {demoted:?}: {self:?}"
            );
            assert!(
                grant.granted + expiry(TTL) <= resumed,
                "granted again before the lease of the former master was over: {self:?}"
            );
        }
    }
}

impl Openings {
    /// Judges the grants of locks in use as [`Probe::judge`] does. Their records change too often to show who
    /// granted. But once the former master is demoted only the promoted one can have granted, and what was
    /// granted before that must be over in the store when the promoted one may first grant.
    pub fn judge(&self, work: &Work, lost: Duration, demoted: Duration) {
        for attempt in work.attempts() {
            let Some((granted, opens)) = attempt.granted.zip(self.0.get(&attempt.lock)) else {
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
                granted + expiry(TTL) <= *opens,
                "the lease outlasts the quarantine, which ends at {opens:?}: {attempt:?}"
            );
        }
    }
}

async fn connect(addr: SocketAddr) -> RedisConnection {
    let raw = RedisConnection::open(addr).await;
    raw.expect("connect to a node of this test")
}

/// Returns the fencing token that a node's own record of a lock has, whether it is master or replica.
async fn last_token(raw: &mut RedisConnection, lock: &str) -> Option<i64> {
    raw.must(&["READONLY"]).await;
    let key = format!("{KEY_PREFIX}{{default:{lock}}}");
    match raw.command(&["HGET", &key, "f"]).await {
        Ok(Reply::Text(token)) => token.parse().ok(),
        // It loads the data of its master.
        Ok(_) => None,
        Err(error) => panic!("the connection ended: {error}"),
    }
}
