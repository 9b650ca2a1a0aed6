//! Timers of a session. Leases and pending acquires are scanned only when a deadline is due,
//! because scanning many of them would block the client's thread.

use std::time::Duration;

use super::{Session, leases::HeldLease, pending_acquires::PendingAcquire};

/// Longest interval between heartbeats while an acquire is pending.
const PENDING_HEARTBEAT_INTERVAL_MAX: Duration = Duration::from_secs(2);
/// Shortest TTL that a broker grants by default.
const TTL_MIN: Duration = Duration::from_secs(1);

impl Session {
    pub(super) fn poll_timers(&mut self, now: Duration) {
        if now < self.next_deadline {
            return;
        }
        self.check_deadlines(now);
        self.check_silence(now);
        self.heartbeat_if_due(now);
        let deadlines = self.leases.values().map(HeldLease::deadline);
        let next = deadlines
            .chain(self.silence_deadline())
            .chain(self.next_heartbeat_at());
        self.next_deadline = next.min().unwrap_or(Duration::MAX);
    }

    /// Updates the next deadline after a lease was added or changed.
    pub(super) fn schedule_lease(&mut self, lease_id: &str) {
        let Some(held_lease) = self.leases.get(lease_id) else {
            return;
        };
        let mut at = held_lease.deadline();
        if let Some(stream) = self.stream.as_ref().filter(|_| held_lease.is_attached()) {
            let silence_deadline = stream
                .unanswered_since()
                .map(|since| since + held_lease.silence_timeout());
            at = at.min(held_lease.next_heartbeat_at(stream.last_heartbeat_at()));
            at = at.min(silence_deadline.unwrap_or(Duration::MAX));
        }
        self.next_deadline = self.next_deadline.min(at);
    }

    /// Updates the next deadline after an acquire was added.
    pub(super) fn schedule_acquire(&mut self, pending: &PendingAcquire) {
        if let Some(stream) = &self.stream {
            self.next_deadline = self
                .next_deadline
                .min(pending.next_heartbeat_at(stream.last_heartbeat_at()));
        }
    }

    /// Ends leases, deliveries and releases whose deadline has passed.
    fn check_deadlines(&mut self, now: Duration) {
        let expired = self
            .leases
            .iter()
            .filter(|(_, held_lease)| held_lease.deadline() <= now);
        let expired: Vec<_> = expired.map(|(lease_id, _)| lease_id.clone()).collect();
        for lease_id in expired {
            match self.leases.get(&lease_id) {
                Some(held_lease) if held_lease.is_released() => self.fail_unconfirmed(&lease_id),
                Some(held_lease) if held_lease.is_undelivered() => {
                    self.discard_undelivered(&lease_id)
                }
                Some(_) => self.expire(&lease_id),
                None => {}
            }
        }
    }

    fn heartbeat_if_due(&mut self, now: Duration) {
        let is_due = self.next_heartbeat_at().is_some_and(|at| now >= at);
        if let Some(stream) = self.stream.as_mut().filter(|_| is_due) {
            stream.send_heartbeat();
        }
    }

    /// Returns the time at which the next heartbeat is due, if a lease or acquire needs one.
    fn next_heartbeat_at(&self) -> Option<Duration> {
        let last = self.stream.as_ref()?.last_heartbeat_at();
        let leases = self
            .leases
            .values()
            .filter(|held_lease| held_lease.is_attached());
        let leases = leases.map(|held_lease| held_lease.next_heartbeat_at(last));
        leases
            .chain(
                self.pending_acquires
                    .values()
                    .map(|pending| pending.next_heartbeat_at(last)),
            )
            .min()
    }

    /// Starts a failover if the broker has confirmed no heartbeat for a quarter of a TTL. Its
    /// connection may seem to work nevertheless.
    fn check_silence(&mut self, now: Duration) {
        if self.silence_deadline().is_some_and(|at| now > at) {
            self.start_failover(Duration::ZERO);
        }
    }

    /// Returns the time at which a silent broker is given up. `None`: no heartbeat is unanswered,
    /// no lease is attached, or a failover has started.
    fn silence_deadline(&self) -> Option<Duration> {
        let since = self.stream.as_ref()?.unanswered_since()?;
        let leases = self
            .leases
            .values()
            .filter(|held_lease| held_lease.is_attached());
        let silence_timeout = leases.map(HeldLease::silence_timeout).min()?;
        self.failover.is_idle().then_some(since + silence_timeout)
    }
}

impl PendingAcquire {
    /// Returns the time at which the acquire needs a heartbeat. `last`: time of the last heartbeat.
    fn next_heartbeat_at(&self, last: Option<Duration>) -> Duration {
        let ttl = self
            .params
            .ttl
            .map_or(PENDING_HEARTBEAT_INTERVAL_MAX * 3, |ttl| ttl.max(TTL_MIN));
        last.map_or(Duration::ZERO, |last| {
            last + (ttl / 3).min(PENDING_HEARTBEAT_INTERVAL_MAX)
        })
    }
}
