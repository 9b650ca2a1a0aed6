//! One leader for a job, and everybody else who wants to know who that is.

use std::time::Duration;

use leasehold_proto::v1::LockRef;
use rand::Rng as _;
use tokio::sync::oneshot;

use crate::{
    client::Client,
    error::{Error, Holder},
    guard::Guard,
    lock::Lock,
    order::Order,
    target::Target,
};

/// How often an observer looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The election of one leader. Made by [`Client::elect`].
///
/// The leader is whoever holds the lock of the job's name; the others wait for it in line.
#[derive(Debug)]
#[must_use = "ends with campaign() or observe()"]
pub struct Election {
    client: Client,
    job: LockRef,
    lock: Lock,
}

/// Watches who leads.
#[derive(Debug)]
pub struct Observer {
    client: Client,
    job: LockRef,
    /// The lease of the leader told last.
    told: Option<Option<String>>,
}

impl Election {
    pub(crate) fn new(client: &Client, job: Target) -> Self {
        Self {
            job: job.lock(),
            lock: client.lock(job).wait(Duration::MAX),
            client: client.clone(),
        }
    }

    /// How long a dead leader is waited for; as [`Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// What observers read about this candidate; as [`Lock::reason`].
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.lock = self.lock.reason(reason);
        self
    }

    /// Waits until this process leads, however long that takes. It leads as long as the guard is
    /// valid.
    ///
    /// # Errors
    /// Everything but [`Error::WaitTimeout`] and [`Error::Held`].
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    pub async fn campaign(self) -> Result<Guard, Error> {
        self.lock.acquire().await
    }

    /// Watches who leads, without being a candidate.
    #[must_use]
    pub fn observe(&self) -> Observer {
        Observer {
            client: self.client.clone(),
            job: self.job.clone(),
            told: None,
        }
    }
}

impl Observer {
    /// The leader at the first call, then the next one when that changes; `None` while nobody leads.
    /// It looks about once a second, and again while no broker answers: a change is heard of late,
    /// and two quick ones perhaps as one. Never act on it as if it were a lock.
    ///
    /// # Errors
    /// When the client is shut down, or may not look.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Result<Option<Holder>, Error> {
        loop {
            if self.told.is_some() {
                let every = LOOK_EVERY.mul_f64(rand::thread_rng().gen_range(0.75..1.25));
                self.client.core.sleep(every).await;
            }
            let leader = match self.look().await {
                Ok(leader) => leader,
                Err(Error::Unavailable(_) | Error::StoreRecovering(_)) => {
                    self.client.core.sleep(LOOK_EVERY).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let lease_id = leader.as_ref().map(|leader| leader.lease_id.clone());
            if self.told.as_ref() != Some(&lease_id) {
                self.told = Some(lease_id);
                return Ok(leader);
            }
        }
    }

    async fn look(&self) -> Result<Option<Holder>, Error> {
        let orders = self.client.core.any()?;
        let (answer, answered) = oneshot::channel();
        let lock = self.job.clone();
        let sent = orders.send(Order::Look { lock, answer });
        sent.map_err(|_| Error::Closed)?;
        let holders = answered.await.unwrap_or(Err(Error::Closed))?;
        Ok(holders.into_iter().next())
    }
}
