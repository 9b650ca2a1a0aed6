//! Jobs that a client does later.

use std::collections::BTreeMap;

use leasehold_server::lock::LeaseId;

use super::leases::PartRelease;

/// Jobs by the time at which they are due, in microseconds since the start.
#[derive(Default)]
pub(super) struct Agenda {
    jobs: BTreeMap<(u64, u64), Job>,
    added: u64,
}

/// A job of a client. Calls are named by their numbers.
pub(super) enum Job {
    Action(usize),
    Connect,
    Heartbeat(u64),
    Renew(LeaseId),
    Attach(LeaseId),
    EndHold(LeaseId),
    Hedge(u64),
    Retry(u64),
    Cancel(u64),
    RetryRelease(LeaseId, PartRelease),
}

impl Agenda {
    pub(super) fn add(&mut self, at_us: u64, job: Job) {
        self.added += 1;
        self.jobs.insert((at_us, self.added), job);
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.jobs.keys().next().map(|(at_us, _)| *at_us)
    }

    pub(super) fn take_due(&mut self, now_us: u64) -> Option<Job> {
        let first = self.jobs.first_entry()?;
        (first.key().0 <= now_us).then(|| first.remove())
    }
}
