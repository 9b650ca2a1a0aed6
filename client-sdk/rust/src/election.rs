//! Election of one leader for a job, and observation of the current leader.

use std::time::Duration;

use leasehold_proto::v1::LockRef;
use rand::Rng as _;
use tokio::sync::oneshot;

use crate::{
    client::Client,
    command::Command,
    error::{Error, Holder},
    guard::Guard,
    lock::Lock,
    target::Target,
};

/// Mean interval between the requests of an observer.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The election of one leader. Created by [`Client::elect`].
///
/// The leader is the holder of the lock with the name of the job. Other candidates wait in the
/// queue of that lock.
#[derive(Debug)]
#[must_use = "ends with campaign() or observe()"]
pub struct Election {
    client: Client,
    job: LockRef,
    lock: Lock,
}

/// An observer of the leader of a job. Created by [`Election::observe`].
#[derive(Debug)]
pub struct Observer {
    client: Client,
    job: LockRef,
    /// Lease id of the last returned leader. The outer `None`: nothing returned yet.
    last_returned: Option<Option<String>>,
}

impl Election {
    pub(crate) fn new(client: &Client, job: Target) -> Self {
        Self {
            job: job.lock_ref(),
            lock: client.lock(job).wait(Duration::MAX),
            client: client.clone(),
        }
    }

    /// Sets the TTL of the leader's lease, and with it the time after which a dead leader is
    /// replaced; see [`Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// Sets the reason that observers read about this candidate; see [`Lock::reason`].
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.lock = self.lock.reason(reason);
        self
    }

    /// Waits without limit until this process is the leader. It leads while the guard is valid.
    ///
    /// # Errors
    /// Every variant of [`Error`] except [`Error::WaitTimeout`] and [`Error::Held`].
    ///
    /// # Cancel safety
    /// See [`Lock::acquire`].
    pub async fn campaign(self) -> Result<Guard, Error> {
        self.lock.acquire().await
    }

    /// Returns an observer of the leader, without becoming a candidate.
    #[must_use]
    pub fn observe(&self) -> Observer {
        Observer {
            client: self.client.clone(),
            job: self.job.clone(),
            last_returned: None,
        }
    }
}

impl Observer {
    /// Returns the leader at the first call, and then waits for the next change. `None` means that
    /// the job has no leader. The lock is read about once a second, and again while no broker
    /// responds. A change is therefore reported late, and two changes in quick succession perhaps
    /// as one. Never use the result in place of a lock.
    ///
    /// # Errors
    /// [`Error::Closed`] if the client is shut down, or the error of a rejected request, such as
    /// [`Error::PermissionDenied`].
    ///
    /// # Cancel safety
    /// Cancel safe: the next call returns a change that this call did not return.
    pub async fn next(&mut self) -> Result<Option<Holder>, Error> {
        loop {
            if self.last_returned.is_some() {
                let interval = POLL_INTERVAL.mul_f64(rand::thread_rng().gen_range(0.75..1.25));
                self.client.runtime.sleep(interval).await;
            }
            let leader = match self.current_leader().await {
                Ok(leader) => leader,
                Err(Error::Unavailable(_) | Error::StoreRecovering(_)) => {
                    self.client.runtime.sleep(POLL_INTERVAL).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let lease_id = leader.as_ref().map(|leader| leader.lease_id.clone());
            if self.last_returned.as_ref() != Some(&lease_id) {
                self.last_returned = Some(lease_id);
                return Ok(leader);
            }
        }
    }

    async fn current_leader(&self) -> Result<Option<Holder>, Error> {
        let commands = self.client.runtime.pool.any_session()?;
        let (reply, response) = oneshot::channel();
        let lock = self.job.clone();
        let sent = commands.send(Command::GetHolders { lock, reply });
        sent.map_err(|_| Error::Closed)?;
        let holders = response.await.unwrap_or(Err(Error::Closed))?;
        Ok(holders.into_iter().next())
    }
}
