//! Timers of a stream: silent clients, maximum age, expired credentials and disconnect grace.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{
    AccessFilter, LeaseEndedReason, LeaseStream, Phase, QUEUE_GRACE, StreamEvent,
    completions::completion,
    leases::{GraceState, StreamLease},
};
use crate::{
    lock::{LeaseId, ReleaseScope},
    random::RandomSource,
    time::millis,
};

/// Time that a detected silence must last before it has consequences. For a disconnect grace, only
/// if the timer fired later than it should by as much.
const SILENCE_CONFIRM_DELAY: Duration = Duration::from_millis(250);
/// Period over which clients of old streams spread their reconnects. The ages of streams are spread
/// already.
const AGE_JITTER: Duration = Duration::from_secs(1);

/// Liveness of a client with pending calls. A client is silent if it has sent no heartbeat and no
/// acquire for [`QUEUE_GRACE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Liveness {
    /// The client is not silent.
    Alive,
    /// The client seems to be silent. This is confirmed at the given time, because a broker that
    /// was stalled must first read the messages that arrived during the stall.
    Suspect(Instant),
    /// The client is silent, and its calls are granted nothing.
    Silent,
}

/// Maximum age of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamAge {
    /// Age after which the client is asked to reconnect.
    pub max_age: Duration,
    /// Time that the client has to reconnect.
    pub grace: Duration,
}

impl StreamAge {
    /// Returns the maximum age with a random reduction, so that clients that connected at the same
    /// time do not reconnect at the same time.
    pub(in crate::broker) fn jittered(self, random: &RandomSource) -> Duration {
        self.max_age.mul_f64(random.number(0.9..1.0))
    }
}

impl LeaseStream {
    /// Returns the next time at which silence, age or an expiry has a consequence.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.phase != Phase::Open {
            return None;
        }
        let wait_deadline = match self.liveness {
            Liveness::Alive if !self.pending_calls.is_empty() => {
                Some(self.last_activity_at + QUEUE_GRACE)
            }
            Liveness::Suspect(until) => Some(until),
            Liveness::Alive | Liveness::Silent => None,
        };
        let grace_deadline = self
            .shortest_silence_limit
            .map(|limit| self.last_activity_at + limit);
        let deadlines = wait_deadline.into_iter().chain(grace_deadline);
        deadlines
            .chain([self.reconnect_at])
            .chain(self.expires)
            .min()
    }

    pub(super) fn on_timer(&mut self) {
        let now = Instant::now();
        match self.liveness {
            Liveness::Alive if now >= self.last_activity_at + QUEUE_GRACE => {
                self.liveness = Liveness::Suspect(now + SILENCE_CONFIRM_DELAY);
            }
            Liveness::Suspect(until) if now >= until => {
                self.liveness = Liveness::Silent;
                self.cancel_pending_calls();
            }
            Liveness::Alive | Liveness::Suspect(_) | Liveness::Silent => {}
        }
        if self
            .shortest_silence_limit
            .is_some_and(|limit| now >= self.last_activity_at + limit)
        {
            self.expire_silent();
        }
        if self.expires.is_some_and(|expires_at| now >= expires_at) {
            return self.credential_expired();
        }
        if now >= self.reconnect_at {
            if self.was_asked_to_reconnect {
                self.phase = Phase::Ended;
                return;
            }
            self.was_asked_to_reconnect = true;
            self.reconnect_at = now + self.broker.stream_age.grace;
            self.send_reconnect(AGE_JITTER);
        }
    }

    /// Ends all leases and waits, because the caller is no longer authenticated. The leases are
    /// not renewed and expire in the store. Waiting calls leave their queues, as if the client had
    /// cancelled them.
    pub(super) fn credential_expired(&mut self) {
        self.cancel_pending_calls();
        let leases: Vec<_> = self.leases.keys().copied().collect();
        for lease_id in leases {
            self.end_lease(lease_id, LeaseEndedReason::CredentialExpired);
        }
        self.phase = Phase::Ended;
    }

    /// Applies changed access rules. Leases that the rules forbid are not renewed and expire in the
    /// store. Calls that wait for forbidden locks are cancelled.
    pub(super) fn restrict(&mut self, access_filter: AccessFilter) {
        for call in self.pending_calls.values_mut() {
            if !call.locks.iter().all(|lock| access_filter(lock)) {
                call.is_denied = true;
                call.cancel.cancel();
            }
        }
        let is_denied =
            |lease: &StreamLease| lease.locks.iter().any(|held| !access_filter(&held.lock));
        let denied = self.leases.iter().filter(|(_, lease)| is_denied(lease));
        let denied: Vec<_> = denied.map(|(&lease_id, _)| lease_id).collect();
        for lease_id in denied {
            self.end_lease(lease_id, LeaseEndedReason::Denied);
        }
        self.access = Some(access_filter);
    }

    pub(super) fn send_reconnect(&self, max_delay: Duration) {
        let delay_ms = millis(max_delay.mul_f64(self.broker.random.number(0.0..1.0)));
        (self.events)(StreamEvent::Reconnect { delay_ms });
    }

    /// Treats leases without a heartbeat during their whole validity as disconnected. If that is
    /// detected late, the broker was stalled, and must first read what arrived during the stall.
    fn expire_silent(&mut self) {
        let silence = self.last_activity_at.elapsed();
        let silent = self.leases.iter().filter_map(|(&lease_id, lease)| {
            let detected_after = silence.checked_sub(lease.silence_limit())?;
            let min_grace = match detected_after >= SILENCE_CONFIRM_DELAY {
                true => SILENCE_CONFIRM_DELAY,
                false => Duration::ZERO,
            };
            Some((lease_id, min_grace))
        });
        let silent: Vec<_> = silent.collect();
        for (lease_id, min_grace) in silent {
            self.start_grace(lease_id, min_grace);
        }
        self.recompute_silence_limit();
    }

    /// Records that the client has sent something, which ends the disconnect grace of its leases.
    pub(super) fn note_activity(&mut self) {
        self.last_activity_at = Instant::now();
        self.liveness = Liveness::Alive;
        if std::mem::take(&mut self.has_running_grace) {
            for lease in self.leases.values_mut() {
                if let GraceState::RunningSince(_) = lease.grace_state {
                    lease.grace_state = GraceState::NotRunning;
                }
            }
            self.recompute_silence_limit();
        }
    }

    pub(super) fn recompute_silence_limit(&mut self) {
        let leases = self.leases.values();
        let leases = leases
            .filter(|lease| lease.grace.is_some() && lease.grace_state == GraceState::NotRunning);
        self.shortest_silence_limit = leases.map(|lease| lease.silence_limit()).min();
    }

    /// Starts the disconnect grace of a lease, because its client is disconnected or silent. The
    /// grace lasts for at least `min_duration`.
    pub(super) fn start_grace(&mut self, lease_id: LeaseId, min_duration: Duration) {
        let lease = self.leases.get_mut(&lease_id);
        let Some(lease) = lease.filter(|lease| lease.grace_state == GraceState::NotRunning) else {
            return;
        };
        if let Some(grace) = lease.grace {
            let since = Instant::now();
            lease.grace_state = GraceState::RunningSince(since);
            self.has_running_grace = true;
            self.schedule_grace_end(lease_id, since, since + grace.max(min_duration));
        }
    }

    fn schedule_grace_end(&mut self, lease_id: LeaseId, since: Instant, ends_at: Instant) {
        let draining = self.broker.draining.clone();
        self.jobs.push(Box::pin(async move {
            // Ends at the earlier of the two times.
            let _ = timeout_at(ends_at, draining.cancelled()).await;
            completion(move |stream| stream.on_grace_end(lease_id, since, ends_at))
        }));
    }

    /// Ends a lease whose disconnect grace, which began at `since`, has passed. A grace that has
    /// ended before, because the client was heard again, has no effect. A draining broker keeps the
    /// lease, because its client was asked to reconnect and may not have attached the lease
    /// elsewhere yet.
    fn on_grace_end(&mut self, lease_id: LeaseId, since: Instant, ends_at: Instant) {
        let lease = self.leases.get_mut(&lease_id);
        let is_running =
            |lease: &&mut Box<StreamLease>| lease.grace_state == GraceState::RunningSince(since);
        if let Some(lease) = lease.filter(is_running)
            && !self.broker.is_draining()
        {
            if ends_at.elapsed() >= SILENCE_CONFIRM_DELAY {
                // The broker was stalled, and must first read what arrived during the stall.
                let confirmed_at = Instant::now() + SILENCE_CONFIRM_DELAY;
                return self.schedule_grace_end(lease_id, since, confirmed_at);
            }
            lease.grace_state = GraceState::Passed;
            self.release_lease(lease_id, ReleaseScope::ExpireNow);
        }
    }
}
