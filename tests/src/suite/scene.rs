//! Where a scenario plays: brokers on a Redis of its own, probes, and the runner's own clients, which
//! judge what the probes say.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use leasehold_proto::v1::{ErrorReason, Lock};
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{language::Cast, probe::Probe};
use crate::{
    client::{AcquireCall, Client, Held},
    clock::boottime,
    deployment::Deployment,
    status::reason,
    time_left::{TimeLeft, look, watch},
    until::until,
};

/// The validity that scenarios ask for in which a lock is lost.
pub const TTL: Duration = Duration::from_secs(2);
/// How late anything may come that needs no time of its own, on a busy machine.
pub const SOON: Duration = Duration::from_secs(1);
/// How late a loss may be told that the probe's own clock finds, besides the machine's delays.
pub const TICK: Duration = Duration::from_millis(250);
/// Longer than any scenario: the runner's own locks are not renewed.
const LONG: Duration = Duration::from_secs(60);
const GIVE_UP: Duration = Duration::from_secs(30);
/// Two looks at the same end differ by less.
const STEP: Duration = Duration::from_millis(20);

/// How much earlier than the validity ends a holder gives up.
#[must_use]
pub fn margin(ttl: Duration) -> Duration {
    (ttl / 10).max(Duration::from_millis(500)).min(ttl / 4)
}

/// One deployment and its clients.
#[derive(Debug)]
pub struct Scene {
    /// Who plays.
    pub cast: Cast,
    /// Where.
    pub deployment: Deployment,
    /// A client of the last broker.
    pub referee: Client,
    probes: AtomicUsize,
}

/// A call of the runner that waits in line.
#[derive(Debug)]
pub struct Rival {
    lock: String,
    turn: AbortOnDropHandle<(Held, Duration)>,
}

/// How a lock went to the runner.
#[derive(Debug)]
pub struct HandOver {
    /// When the runner had it.
    pub granted: Duration,
    /// Until when the store held it for the holder before.
    pub end: TimeLeft,
    /// What the runner has.
    pub held: Held,
}

impl Scene {
    /// Starts so many brokers.
    pub async fn start(cast: Cast, brokers: usize) -> Self {
        let deployment = Deployment::start(brokers).await;
        let addrs = deployment.addrs();
        // Their first answer takes long on a busy machine.
        for addr in &addrs {
            let client = Client::new("first", &[*addr], 0);
            let nothing = client.get_lock("a").await.expect("GetLock works");
            assert!(nothing.is_none(), "{nothing:?}");
        }
        let last = addrs.last().expect("a broker");
        Self {
            cast,
            referee: Client::new("referee", &[*last], 0),
            deployment,
            probes: AtomicUsize::new(0),
        }
    }

    /// A probe of the first language that knows all brokers, in their order.
    pub async fn one(&self) -> Probe {
        self.one_at(&self.deployment.addrs()).await
    }

    /// A probe of the second language.
    pub async fn other(&self) -> Probe {
        Probe::start(self.cast.other, &self.name(), &self.deployment.addrs()).await
    }

    /// A probe of the first language that knows these addresses.
    pub async fn one_at(&self, brokers: &[SocketAddr]) -> Probe {
        Probe::start(self.cast.one, &self.name(), brokers).await
    }

    fn name(&self) -> String {
        format!("probe-{}", self.probes.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes a lock that is free for the runner.
    pub async fn takes(&self, lock: &str) -> Held {
        let call = AcquireCall::new(lock, LONG, Duration::ZERO);
        let taken = self.referee.acquire_at(0, &call).await;
        taken.unwrap_or_else(|status| panic!("{lock} is not free: {status}"))
    }

    /// Whether the runner is refused a lock because somebody holds it.
    pub async fn is_held(&self, lock: &str) -> bool {
        let call = AcquireCall::new(lock, LONG, Duration::ZERO);
        let taken = self.referee.acquire_at(0, &call).await;
        matches!(taken, Err(status) if reason(&status) == Some(ErrorReason::LockHeld))
    }

    /// Gives a lock of the runner back.
    pub async fn gives(&self, held: &Held) {
        let released = self.referee.release_at(0, held).await;
        assert!(!released.expect("it is held").already_released);
    }

    /// Has the runner wait in line for a lock that somebody holds.
    pub async fn rival(&self, lock: &str) -> Rival {
        let before = self.state(lock).await.map_or(0, |state| state.queue_length);
        let call = AcquireCall::new(lock, LONG, GIVE_UP);
        let client = self.referee.clone();
        let turn = tokio::spawn(async move {
            let held = client.acquire_at(0, &call).await;
            (held.expect("its turn"), boottime())
        });
        let length = usize::try_from(before + 1).expect("a count");
        self.referee.queued_at(0, lock, length).await;
        Rival {
            lock: lock.to_owned(),
            turn: AbortOnDropHandle::new(turn),
        }
    }

    /// The lock in the store; `None` if nobody holds it or waits for it.
    pub async fn state(&self, lock: &str) -> Option<Lock> {
        let state = self.referee.get_lock(lock).await;
        state.expect("GetLock works")
    }

    /// The lock's one holder in the store.
    pub async fn look(&self, lock: &str) -> Option<TimeLeft> {
        look(&self.referee, 0, lock).await
    }

    /// The lock's one holder in the store, which there must be.
    pub async fn held(&self, lock: &str) -> TimeLeft {
        let held = self.look(lock).await;
        held.unwrap_or_else(|| panic!("nobody holds {lock}"))
    }

    /// Waits until nobody holds a lock or waits for it; when that was seen.
    pub async fn free(&self, lock: &str) -> Duration {
        let free = until("free", async || {
            let state = self.state(lock).await;
            state.is_none().then(boottime)
        });
        free.await
    }

    /// Waits until so many wait for a lock that is held.
    pub async fn in_line(&self, lock: &str, length: usize) {
        self.referee.queued_at(0, lock, length).await;
    }

    /// Waits until the store has renewed a lock's lease after it was seen so, without another grant.
    pub async fn renewed(&self, lock: &str, seen: &TimeLeft) {
        let renewed = until("renewed", async || {
            // Its broker may be on its way.
            self.state(lock).await?;
            let now = self.held(lock).await;
            assert_eq!((&now.lease_id, now.token), (&seen.lease_id, seen.token));
            (now.earliest > seen.latest + STEP).then_some(())
        });
        renewed.await;
    }

    /// Waits until a lock's lease has expired, which nobody may renew meanwhile; when that was seen.
    pub async fn expired(&self, lock: &str) -> Duration {
        let Some(last) = self.look(lock).await else {
            return boottime();
        };
        let expired = until("expired", async || {
            let Some(now) = self.look(lock).await else {
                return Some(boottime());
            };
            assert!(now.earliest <= last.latest + STEP, "renewed: {now:?}");
            None
        });
        expired.await
    }

    /// Waits for something, and watches meanwhile until when the store holds a lock for whom.
    pub async fn watched<T>(
        &self,
        lock: &str,
        what: impl Future<Output = T>,
    ) -> (T, Vec<TimeLeft>) {
        let stop = CancellationToken::new();
        let what = async {
            let what = timeout(GIVE_UP, what).await;
            stop.cancel();
            what.expect("in time")
        };
        let (what, looks) = tokio::join!(what, watch(&self.referee, 0, lock, &stop));
        (what, looks.ends)
    }

    /// Waits until the runner's turn; what it got, and when the time of the holder before was over.
    pub async fn hand_over(&self, rival: Rival) -> HandOver {
        let lock = rival.lock.clone();
        let ((held, granted), mut ends) = self.watched(&lock, rival.granted()).await;
        ends.retain(|seen| seen.lease_id != held.lease.lease_id);
        HandOver {
            granted,
            end: ends.pop().expect("it was looked at"),
            held,
        }
    }
}

impl Rival {
    /// Whether it has the lock.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.turn.is_finished()
    }

    /// Waits for its turn; when that was.
    pub async fn granted(self) -> (Held, Duration) {
        let turn = timeout(GIVE_UP, self.turn).await;
        turn.expect("granted in time").expect("no panic")
    }
}

impl HandOver {
    /// The lock went on when the time of the holder before was over in the store: not sooner, and
    /// hardly later.
    pub fn at_the_end(&self) {
        assert!(self.granted >= self.end.earliest, "too soon: {self:#?}");
        let late = self.granted.saturating_sub(self.end.latest);
        assert!(late <= SOON, "{late:?} late: {self:#?}");
        assert!(self.held.token() > self.end.token, "tokens rise: {self:#?}");
    }
}
