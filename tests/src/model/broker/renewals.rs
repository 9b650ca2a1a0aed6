//! Renewals of several locks of one lease, which run side by side.

use leasehold_server::lock::Grant;

use super::{Failure, GrantedLock};
use crate::{
    differential::steps::{StoreCommand, StoreReply},
    model::{
        client::PresentedLock,
        keys::{LockIndex, TaskKey},
        world::{Reply, World},
    },
};

/// Renewals, or releases, of the locks of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Renewals(Vec<Renewal>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Renewal {
    presented: PresentedLock,
    /// Number of the command; 0 before it is sent.
    command: u16,
    result: Option<Result<GrantedLock, Failure>>,
}

impl Renewals {
    /// Creates renewals of these locks, whose commands are sent in the same order.
    #[must_use]
    pub fn new(presented: Vec<PresentedLock>) -> Self {
        let renewals = presented.into_iter().map(|presented| Renewal {
            presented,
            command: 0,
            result: None,
        });
        Self(renewals.collect())
    }

    /// Sends the command of the next lock.
    pub fn send(&mut self, world: &mut World, broker: usize, key: TaskKey, command: StoreCommand) {
        let next = self.0.iter_mut().find(|renewal| renewal.command == 0);
        let next = next.expect("a command for each lock");
        next.command = world.send_command(broker, key, next.presented.lock, command);
    }

    /// Stores the result of a command. `None` means that no reply was received.
    pub fn receive(&mut self, command: u16, reply: Option<&Reply>) {
        let renewal = self.0.iter_mut().find(|renewal| renewal.command == command);
        if let Some(renewal) = renewal.filter(|renewal| renewal.result.is_none()) {
            renewal.result = Some(match reply {
                Some(reply) => result_of(reply),
                None => Err(Failure::Unavailable),
            });
        }
    }

    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.0.iter().all(|renewal| renewal.result.is_some())
    }

    /// Returns the oldest command without a result.
    #[must_use]
    pub fn in_flight(&self) -> Option<u16> {
        let open = self.0.iter().find(|renewal| renewal.result.is_none());
        open.map(|renewal| renewal.command)
    }

    #[must_use]
    pub fn presented(&self) -> Vec<PresentedLock> {
        self.0.iter().map(|renewal| renewal.presented).collect()
    }

    /// Returns the locks that the lease still has.
    ///
    /// # Errors
    /// The most definitive failure. A released lock is a failure only if no lock remains.
    pub fn surviving(&self) -> Result<Vec<GrantedLock>, Failure> {
        let results = self.0.iter().filter_map(|renewal| renewal.result);
        let failures = results.clone().filter_map(Result::err);
        let locks: Vec<_> = results.filter_map(Result::ok).collect();
        let counts = |failure: &Failure| *failure != Failure::LeaseReleased || locks.is_empty();
        match failures.filter(counts).min() {
            Some(failure) => Err(failure),
            None => Ok(locks),
        }
    }
}

fn result_of(reply: &Reply) -> Result<GrantedLock, Failure> {
    if let StoreReply::Renew(Ok(outcome)) | StoreReply::Attach(Ok(outcome)) = &reply.reply {
        return match &outcome.reply {
            Ok(grant) => Ok(granted(reply.lock, grant, reply)),
            Err(rejection) => Err(rejection.into()),
        };
    }
    let StoreReply::Release(Ok(outcome)) = &reply.reply else {
        return Err(Failure::Unavailable);
    };
    Err(match &outcome.reply {
        Ok(_) => Failure::LeaseReleased,
        Err(rejection) => rejection.into(),
    })
}

/// Returns the lock that a reply grants.
pub(super) fn granted(lock: LockIndex, grant: &Grant, reply: &Reply) -> GrantedLock {
    GrantedLock {
        lock,
        token: grant.fencing_token.get(),
        ttl_ms: grant.ttl.as_millis(),
        granted_at_us: grant.acquired_ms * 1_000,
        era: reply.era,
    }
}
