//! What silence, age and other rules do to a stream.

use std::time::Duration;

use rand::Rng as _;
use tokio::time::{Instant, timeout};

use super::{Done, Ended, May, Phase, QUEUE_GRACE, Stream, Told, owned::Owned};
use crate::lock::{LeaseId, Release};

/// How long a silence must last once it was noticed.
const READ_FIRST: Duration = Duration::from_millis(250);
/// Clients whose streams have grown old are spread by their ages already.
const AGED_WITHIN: Duration = Duration::from_secs(1);

/// What is made of a client that was not heard for [`QUEUE_GRACE`] while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// It was heard.
    None,
    /// Not heard, but a broker that stood still itself has to read first what came meanwhile.
    Noticed(Instant),
    /// It is granted nothing.
    Certain,
}

/// How old a stream may become.
#[derive(Debug, Clone, Copy)]
pub struct StreamAge {
    /// Then its client is asked to go on with another connection.
    pub most: Duration,
    /// How long it has to do so.
    pub grace: Duration,
}

impl StreamAge {
    /// So that the clients of one moment do not all come back at one moment.
    pub(in crate::broker) fn jittered(self) -> Duration {
        self.most.mul_f64(rand::thread_rng().gen_range(0.9..1.0))
    }
}

impl Stream {
    /// When silence or age will have a consequence.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.phase != Phase::Open {
            return None;
        }
        let waits = match self.silence {
            Silence::None if !self.waits.is_empty() => Some(self.heard + QUEUE_GRACE),
            Silence::Noticed(until) => Some(until),
            Silence::None | Silence::Certain => None,
        };
        let graced = self.graced.map(|validity| self.heard + validity);
        let others = waits.into_iter().chain(graced);
        others.chain([self.ages_at]).chain(self.expires).min()
    }

    pub(super) fn look_at_the_time(&mut self) {
        let now = Instant::now();
        match self.silence {
            Silence::None if now >= self.heard + QUEUE_GRACE => {
                self.silence = Silence::Noticed(now + READ_FIRST);
            }
            Silence::Noticed(until) if now >= until => {
                self.silence = Silence::Certain;
                self.give_up_waits();
            }
            Silence::None | Silence::Noticed(_) | Silence::Certain => {}
        }
        if self
            .graced
            .is_some_and(|validity| now >= self.heard + validity)
        {
            self.lapse_silent();
        }
        if self.expires.is_some_and(|expires| now >= expires) {
            return self.credential_expired();
        }
        if now >= self.ages_at {
            if self.is_old {
                self.phase = Phase::Left;
                return;
            }
            self.is_old = true;
            self.ages_at = now + self.broker.stream_age.grace;
            self.say_reconnect(AGED_WITHIN);
        }
    }

    /// Nobody knows any more whose leases these are: they are renewed no more, and run out. Waits leave
    /// their queues, as if the client had given them up.
    pub(super) fn credential_expired(&mut self) {
        self.give_up_waits();
        let leases: Vec<_> = self.leases.keys().copied().collect();
        for lease_id in leases {
            self.end(lease_id, Ended::CredentialExpired);
        }
        self.phase = Phase::Left;
    }

    /// The rules have changed: what they forbid is renewed no more, and runs out, and is waited for no
    /// more.
    pub(super) fn restrict(&mut self, may: May) {
        for wait in self.waits.values_mut() {
            if !wait.locks.iter().all(|lock| may(lock)) {
                wait.is_denied = true;
                wait.give_up.cancel();
            }
        }
        let is_denied = |owned: &Owned| owned.locks.iter().any(|held| !may(&held.lock));
        let denied = self.leases.iter().filter(|(_, owned)| is_denied(owned));
        let denied: Vec<_> = denied.map(|(&lease_id, _)| lease_id).collect();
        for lease_id in denied {
            self.end(lease_id, Ended::Denied);
        }
        self.may = Some(may);
    }

    pub(super) fn say_reconnect(&self, within: Duration) {
        let delay = within.mul_f64(rand::thread_rng().gen_range(0.0..1.0));
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        (self.tell)(Told::Reconnect { delay_ms });
    }

    /// No heartbeat for all of a lease's validity is a break.
    fn lapse_silent(&mut self) {
        let is_over = |owned: &Owned| self.heard.elapsed() >= owned.validity();
        let over = self.leases.iter().filter(|(_, owned)| is_over(owned));
        let over: Vec<_> = over.map(|(&lease_id, _)| lease_id).collect();
        for lease_id in over {
            self.lapse_later(lease_id);
        }
        self.watch_silence();
    }

    pub(super) fn watch_silence(&mut self) {
        let graced = self.leases.values();
        let graced = graced.filter(|owned| owned.grace.is_some() && !owned.is_lapsing);
        self.graced = graced.map(|owned| owned.validity()).min();
    }

    /// The client is gone, or silent: a lease with a disconnect_grace ends when that is over.
    pub(super) fn lapse_later(&mut self, lease_id: LeaseId) {
        let owned = self.leases.get_mut(&lease_id);
        let Some(owned) = owned.filter(|owned| !owned.is_lapsing) else {
            return;
        };
        if let Some(grace) = owned.grace {
            owned.is_lapsing = true;
            let draining = self.broker.draining.clone();
            self.jobs.push(Box::pin(async move {
                // Whichever comes first.
                let _ = timeout(grace, draining.cancelled()).await;
                Done::Lapsed { lease_id }
            }));
        }
    }

    /// A disconnect_grace is over. A broker that goes away gives up nothing: the client was asked to
    /// leave, and may not have attached the lease elsewhere yet.
    pub(super) fn lapsed(&mut self, lease_id: LeaseId) {
        if self.broker.is_draining() {
            return;
        }
        let is_open = self.phase == Phase::Open;
        let Some(owned) = self.leases.get_mut(&lease_id) else {
            return;
        };
        if is_open && self.heard.elapsed() < owned.validity() {
            owned.is_lapsing = false;
            return self.watch_silence();
        }
        self.give_back(lease_id, Release::Lapse);
    }
}
