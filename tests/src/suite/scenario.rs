//! The fixture of a scenario: brokers on a Redis of their own, probes, and the runner's own
//! clients, which check the reports of the probes.

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
    broker::deployment::Deployment,
    client::unary::{AcquireCall, Client, HeldLease},
    clock::boottime,
    load::store_expiry::{HolderExpiry, read_expiry, watch_expiry},
    status::error_reason,
    until::until,
};

/// TTL in scenarios in which a lock is lost.
pub const TTL: Duration = Duration::from_secs(2);
/// Maximum delay on a busy machine of an event that is due immediately.
pub const DELAY_MAX: Duration = Duration::from_secs(1);
/// Maximum delay of a loss that the probe's own clock detects, besides the delays of the machine.
pub const LOSS_DELAY_MAX: Duration = Duration::from_millis(250);
/// A time longer than any scenario, because the runner's own locks are not renewed.
const RUNNER_TTL: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum difference of two readings of the same expiry.
const SAME_EXPIRY_TOLERANCE: Duration = Duration::from_millis(20);

/// Returns the time by which a holder stops before the end of the TTL.
#[must_use]
pub fn safety_margin(ttl: Duration) -> Duration {
    (ttl / 10).max(Duration::from_millis(500)).min(ttl / 4)
}

/// A deployment and its clients.
#[derive(Debug)]
pub struct ScenarioFixture {
    pub languages: Cast,
    pub deployment: Deployment,
    /// The oracle, a client of the last broker.
    pub observer: Client,
    probes: AtomicUsize,
}

/// A call of the runner that waits in the queue.
#[derive(Debug)]
pub struct RivalCall {
    lock: String,
    grant: AbortOnDropHandle<(HeldLease, Duration)>,
}

/// The grant of a lock to the runner after its previous holder.
#[derive(Debug)]
pub struct HandOver {
    /// Time of the grant.
    pub granted_at: Duration,
    /// Expiry of the previous holder in the store.
    pub previous_expiry: HolderExpiry,
    /// The lease of the runner.
    pub held: HeldLease,
}

impl ScenarioFixture {
    /// Starts a deployment with `brokers` brokers.
    pub async fn start(cast: Cast, brokers: usize) -> Self {
        let deployment = Deployment::start(brokers).await;
        let addrs = deployment.addrs();
        // The first reply of a broker takes long on a busy machine.
        for addr in &addrs {
            let client = Client::new("first", &[*addr], 0);
            let nothing = client.get_lock("a").await.expect("GetLock works");
            assert!(nothing.is_none(), "{nothing:?}");
        }
        let last = addrs.last().expect("a broker");
        Self {
            languages: cast,
            observer: Client::new("referee", &[*last], 0),
            deployment,
            probes: AtomicUsize::new(0),
        }
    }

    /// Starts a probe of the first language with all brokers, in order.
    pub async fn start_tested_probe(&self) -> Probe {
        self.start_tested_probe_at(&self.deployment.addrs()).await
    }

    /// Starts a probe of the second language.
    pub async fn start_other_probe(&self) -> Probe {
        Probe::start(
            self.languages.other,
            &self.next_probe_name(),
            &self.deployment.addrs(),
        )
        .await
    }

    /// Starts a probe of the first language with these brokers.
    pub async fn start_tested_probe_at(&self, brokers: &[SocketAddr]) -> Probe {
        Probe::start(self.languages.one, &self.next_probe_name(), brokers).await
    }

    fn next_probe_name(&self) -> String {
        format!("probe-{}", self.probes.fetch_add(1, Ordering::Relaxed))
    }

    /// Acquires a free lock for the runner.
    pub async fn expect_acquired(&self, lock: &str) -> HeldLease {
        let call = AcquireCall::new(lock, RUNNER_TTL, Duration::ZERO);
        let result = self.observer.acquire_at(0, &call).await;
        result.unwrap_or_else(|status| panic!("{lock} is not free: {status}"))
    }

    /// Returns true if an acquire of the runner is rejected because the lock is held.
    pub async fn is_rejected_as_held(&self, lock: &str) -> bool {
        let call = AcquireCall::new(lock, RUNNER_TTL, Duration::ZERO);
        let result = self.observer.acquire_at(0, &call).await;
        matches!(result, Err(status) if error_reason(&status) == Some(ErrorReason::LockHeld))
    }

    /// Releases a lock of the runner.
    pub async fn expect_released(&self, held: &HeldLease) {
        let released = self.observer.release_at(0, held).await;
        assert!(!released.expect("it is held").already_released);
    }

    /// Enqueues the runner for a lock that is held.
    pub async fn enqueue_rival(&self, lock: &str) -> RivalCall {
        let before = self.state(lock).await.map_or(0, |state| state.queue_length);
        let call = AcquireCall::new(lock, RUNNER_TTL, TIMEOUT);
        let client = self.observer.clone();
        let turn = tokio::spawn(async move {
            let held = client.acquire_at(0, &call).await;
            (held.expect("its turn"), boottime())
        });
        let length = usize::try_from(before + 1).expect("a count");
        self.observer
            .wait_for_queue_length_at(0, lock, length)
            .await;
        RivalCall {
            lock: lock.to_owned(),
            grant: AbortOnDropHandle::new(turn),
        }
    }

    /// Returns the lock in the store, or `None` if it has no holder and no waiter.
    pub async fn state(&self, lock: &str) -> Option<Lock> {
        let state = self.observer.get_lock(lock).await;
        state.expect("GetLock works")
    }

    /// Returns the lock's only holder in the store.
    pub async fn holder(&self, lock: &str) -> Option<HolderExpiry> {
        read_expiry(&self.observer, 0, lock).await
    }

    /// Returns the lock's only holder in the store, which must exist.
    pub async fn expect_holder(&self, lock: &str) -> HolderExpiry {
        let held = self.holder(lock).await;
        held.unwrap_or_else(|| panic!("no caller holds {lock}"))
    }

    /// Waits until a lock has no holder and no waiter. Returns the time.
    pub async fn wait_until_free(&self, lock: &str) -> Duration {
        let free = until("free", async || {
            let state = self.state(lock).await;
            state.is_none().then(boottime)
        });
        free.await
    }

    /// Waits until `length` callers wait for a lock that is held.
    pub async fn wait_for_queue_length(&self, lock: &str, length: usize) {
        self.observer
            .wait_for_queue_length_at(0, lock, length)
            .await;
    }

    /// Waits until the store has renewed the lease `seen` of a lock, without another grant.
    pub async fn wait_until_renewed(&self, lock: &str, seen: &HolderExpiry) {
        let renewed = until("renewed", async || {
            // Retries while the broker finds no record of the lock, for example during a restart.
            self.state(lock).await?;
            let now = self.expect_holder(lock).await;
            assert_eq!((&now.lease_id, now.token), (&seen.lease_id, seen.token));
            (now.earliest > seen.latest + SAME_EXPIRY_TOLERANCE).then_some(())
        });
        renewed.await;
    }

    /// Waits until a lock's lease has expired, and asserts that it is not renewed. Returns the
    /// time.
    pub async fn wait_until_expired(&self, lock: &str) -> Duration {
        let Some(last) = self.holder(lock).await else {
            return boottime();
        };
        let expired = until("expired", async || {
            let Some(now) = self.holder(lock).await else {
                return Some(boottime());
            };
            assert!(
                now.earliest <= last.latest + SAME_EXPIRY_TOLERANCE,
                "renewed: {now:?}"
            );
            None
        });
        expired.await
    }

    /// Waits for a future, and records meanwhile the holders of a lock and their expiry.
    pub async fn watch_during<T>(
        &self,
        lock: &str,
        what: impl Future<Output = T>,
    ) -> (T, Vec<HolderExpiry>) {
        let stop = CancellationToken::new();
        let what = async {
            let what = timeout(TIMEOUT, what).await;
            stop.cancel();
            what.expect("in time")
        };
        let (what, looks) = tokio::join!(what, watch_expiry(&self.observer, 0, lock, &stop));
        (what, looks.expiries)
    }

    /// Waits for the runner's grant. Returns it with the expiry of the previous holder.
    pub async fn wait_for_hand_over(&self, rival: RivalCall) -> HandOver {
        let lock = rival.lock.clone();
        let ((held, granted), mut ends) = self.watch_during(&lock, rival.wait_for_grant()).await;
        ends.retain(|seen| seen.lease_id != held.lease.lease_id);
        HandOver {
            granted_at: granted,
            previous_expiry: ends.pop().expect("it was looked at"),
            held,
        }
    }
}

impl RivalCall {
    /// Returns true if the call has been granted.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.grant.is_finished()
    }

    /// Waits for the grant, and returns its time.
    pub async fn wait_for_grant(self) -> (HeldLease, Duration) {
        let turn = timeout(TIMEOUT, self.grant).await;
        turn.expect("granted in time").expect("no panic")
    }
}

impl HandOver {
    /// Asserts that the lock was granted when the previous lease expired in the store: not earlier,
    /// and at most [`DELAY_MAX`] later.
    pub fn assert_granted_at_expiry(&self) {
        assert!(
            self.granted_at >= self.previous_expiry.earliest,
            "too soon: {self:#?}"
        );
        let late = self.granted_at.saturating_sub(self.previous_expiry.latest);
        assert!(late <= DELAY_MAX, "{late:?} late: {self:#?}");
        assert!(
            self.held.token() > self.previous_expiry.token,
            "tokens rise: {self:#?}"
        );
    }
}
