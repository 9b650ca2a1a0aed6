//! When a stream's leases and waits need something. They are not looked through before: there may be many,
//! and whoever waits for the client's thread waits for that.

use std::time::Duration;

use super::{Keeper, leases::Owned, waits::Wait};

/// The longest pause between heartbeats while a call waits.
const WAITING: Duration = Duration::from_secs(2);
/// The shortest ttl that a broker grants.
const TTL_MIN: Duration = Duration::from_secs(1);

impl Keeper {
    pub(super) fn look_if_due(&mut self, now: Duration) {
        if now < self.look_at {
            return;
        }
        self.watch_validity(now);
        self.watch_silence(now);
        self.beat_if_due(now);
        let validity = self.leases.values().map(Owned::due_at);
        let next = validity.chain(self.silent_at()).chain(self.beat_at());
        self.look_at = next.min().unwrap_or(Duration::MAX);
    }

    /// A lease has come, or ends at another time than before.
    pub(super) fn look_at_lease(&mut self, lease_id: &str) {
        let Some(owned) = self.leases.get(lease_id) else {
            return;
        };
        let mut at = owned.due_at();
        if let Some(link) = self.link.as_ref().filter(|_| owned.is_here()) {
            let silent_at = link.silent_since().map(|since| since + owned.patience());
            at = at.min(owned.beat_at(link.last_beat()));
            at = at.min(silent_at.unwrap_or(Duration::MAX));
        }
        self.look_at = self.look_at.min(at);
    }

    /// A call has come.
    pub(super) fn look_at_wait(&mut self, wait: &Wait) {
        if let Some(link) = &self.link {
            self.look_at = self.look_at.min(wait.beat_at(link.last_beat()));
        }
    }

    /// Ends what ran out.
    fn watch_validity(&mut self, now: Duration) {
        let due = self
            .leases
            .iter()
            .filter(|(_, owned)| owned.due_at() <= now);
        let due: Vec<_> = due.map(|(lease_id, _)| lease_id.clone()).collect();
        for lease_id in due {
            match self.leases.get(&lease_id) {
                Some(owned) if owned.is_given_back() => self.unconfirmed(&lease_id),
                Some(owned) if owned.is_unborn() => self.not_born(&lease_id),
                Some(_) => self.lapse(&lease_id),
                None => {}
            }
        }
    }

    fn beat_if_due(&mut self, now: Duration) {
        let is_due = self.beat_at().is_some_and(|at| now >= at);
        if let Some(link) = self.link.as_mut().filter(|_| is_due) {
            link.beat();
        }
    }

    /// When the next heartbeat is due. `None`: nothing needs one.
    fn beat_at(&self) -> Option<Duration> {
        let last = self.link.as_ref()?.last_beat();
        let leases = self.leases.values().filter(|owned| owned.is_here());
        let leases = leases.map(|owned| owned.beat_at(last));
        leases
            .chain(self.waits.values().map(|wait| wait.beat_at(last)))
            .min()
    }

    /// A broker that answers no heartbeat for a quarter of a ttl may be gone, though its connection
    /// seems to live.
    fn watch_silence(&mut self, now: Duration) {
        if self.silent_at().is_some_and(|at| now > at) {
            self.leave(Duration::ZERO);
        }
    }

    /// When the broker is given up if nothing comes. `None`: it answers, or is being left.
    fn silent_at(&self) -> Option<Duration> {
        let since = self.link.as_ref()?.silent_since()?;
        let leases = self.leases.values().filter(|owned| owned.is_here());
        let patience = leases.map(Owned::patience).min()?;
        self.moving.is_settled().then_some(since + patience)
    }
}

impl Wait {
    /// When it needs a heartbeat, the last one being so old.
    fn beat_at(&self, last: Option<Duration>) -> Duration {
        let ttl = self.call.ttl.map_or(WAITING * 3, |ttl| ttl.max(TTL_MIN));
        last.map_or(Duration::ZERO, |last| last + (ttl / 3).min(WAITING))
    }
}
