//! A store for unit tests that answers only listings, watches and, on request, the commands of calls
//! that wait. Counts commands.

use std::{
    future::pending,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::sleep;

use super::{
    Acquired, Cancelled, Checked, Cursor, LeaseReply, LimitSet, Listed, Listener, RecoveryState,
    Released, Renewal, Revoked, Scan, Store, StoreError, Touched,
};
use crate::lock::{
    AcquireCommand, ActiveClosure, ArgumentsHash, Attachment, AttemptId, BrokerId, CloseCommand,
    DeploymentKey, ExpectedAttachment, FencingToken, Filter, Grant, LeaseBinding, LeaseId,
    LeaseOptions, LeaseRef, LeaseToken, LockKey, LockState, Mode, Owner, ReleaseScope, RequestHash,
    RequestId, RevokeCommand, Ttl,
};

/// Number of steps of a listing: more than any bound in the code allows, but finite, so that code
/// without a bound terminates.
const STEPS_MAX: usize = 400;

/// Time after which the loss of a reply is noticed.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// A store with long listings. All other commands never complete.
#[derive(Default)]
pub(crate) struct StubStore {
    /// Maximum number of locks per step of a listing.
    locks: usize,
    /// Duration of each step.
    step_duration: Duration,
    /// Duration of each touch, if calls are queued.
    touch_duration: Option<Duration>,
    commands_sent: AtomicUsize,
    rejoins_sent: AtomicUsize,
    /// Number of further repeated calls whose reply is lost.
    rejoins_to_lose: AtomicUsize,
    claims_sent: AtomicUsize,
    recovery: Mutex<RecoveryState>,
}

impl StubStore {
    /// Creates a store whose listings return at most `locks` locks per step, with steps of duration
    /// `takes`.
    pub(crate) fn listing(locks: usize, step_duration: Duration) -> Self {
        Self {
            locks,
            step_duration,
            ..Self::default()
        }
    }

    /// Creates a store that queues every call and never grants a lock, with touches of duration
    /// `touch_duration`.
    pub(crate) fn queueing(touch_duration: Duration) -> Self {
        Self {
            touch_duration: Some(touch_duration),
            ..Self::default()
        }
    }

    /// Loses the replies to the next `count` calls that are sent again.
    pub(crate) fn lose_rejoins(&self, count: usize) {
        self.rejoins_to_lose.store(count, Relaxed);
    }

    /// Sets the recovery that the store reports.
    pub(crate) fn set_recovery(&self, recovery: RecoveryState) {
        *self.recovery.lock() = recovery;
    }

    /// Returns the number of calls that were sent again because their position may be lost.
    pub(crate) fn rejoins_sent(&self) -> usize {
        self.rejoins_sent.load(Relaxed)
    }

    /// Returns the number of claims of hand-offs, whose replies are lost.
    pub(crate) fn claims_sent(&self) -> usize {
        self.claims_sent.load(Relaxed)
    }

    /// Returns the number of commands sent, watches excluded.
    pub(crate) fn commands_sent(&self) -> usize {
        self.commands_sent.load(Relaxed)
    }

    async fn never_reply<T>(&self) -> T {
        self.commands_sent.fetch_add(1, Relaxed);
        pending().await
    }
}

/// Returns a lock of the default namespace.
pub(crate) fn lock(name: &str) -> LockKey {
    LockKey::decode(&format!("{{default:{name}}}")).expect("a legal name")
}

/// Returns a lease id derived from `number`.
pub(crate) fn lease_id(number: usize) -> LeaseId {
    LeaseToken::from_caller(number.to_string()).lease_id("")
}

/// Returns an acquire command with random request and attempt ids.
pub(crate) fn acquire(lock: &LockKey, number: usize) -> AcquireCommand {
    AcquireCommand {
        lock: lock.clone(),
        mode: Mode::Shared,
        lease_id: lease_id(number),
        binding: LeaseBinding::New,
        stream: None,
        request: RequestId::random().hash(),
        arguments: ArgumentsHash::of(&[]),
        attempt: AttemptId::random(),
        ttl: Ttl::from_stored(1_000),
        options: LeaseOptions::default(),
        wait_ms: 60_000,
        owner: Owner::default(),
        rejoin: false,
    }
}

fn idle_state() -> LockState {
    LockState {
        holders: Vec::new(),
        holder_count: 0,
        waiters: Vec::new(),
        queue_length: 0,
        closure: None,
        permit_usage: None,
        last_fencing_token: 1,
    }
}

#[async_trait]
impl Store for StubStore {
    async fn acquire(&self, acquire: &AcquireCommand) -> Result<Acquired, StoreError> {
        if self.touch_duration.is_none() {
            return self.never_reply().await;
        }
        if acquire.rejoin {
            self.rejoins_sent.fetch_add(1, Relaxed);
            let subtract = |count: usize| count.checked_sub(1);
            let lost = self
                .rejoins_to_lose
                .fetch_update(Relaxed, Relaxed, subtract);
            if lost.is_ok() {
                sleep(LOST_AFTER).await;
                return Err(StoreError::Unavailable("no reply".to_owned()));
            }
        }
        Ok(Acquired::Queued {
            next_event_ms: None,
            sequence: Some(1),
            position: Some(1),
            last_fencing_token: 0,
            era: None,
        })
    }

    async fn renew(&self, _: &LeaseRef, _: Renewal) -> Result<LeaseReply<Grant>, StoreError> {
        if self.touch_duration.is_none() {
            return self.never_reply().await;
        }
        self.claims_sent.fetch_add(1, Relaxed);
        sleep(LOST_AFTER).await;
        Err(StoreError::Unavailable("no reply".to_owned()))
    }

    async fn attach(&self, _: &LeaseRef, _: Attachment) -> Result<LeaseReply<Grant>, StoreError> {
        self.never_reply().await
    }

    async fn release(
        &self,
        _: &LeaseRef,
        _: ReleaseScope,
        _: ExpectedAttachment,
    ) -> Result<LeaseReply<Released>, StoreError> {
        self.never_reply().await
    }

    async fn cancel(
        &self,
        _: &LockKey,
        _: RequestHash,
        _: AttemptId,
    ) -> Result<Cancelled, StoreError> {
        self.never_reply().await
    }

    async fn touch(&self, _: &LockKey) -> Result<Touched, StoreError> {
        let Some(touch_duration) = self.touch_duration else {
            return self.never_reply().await;
        };
        sleep(touch_duration).await;
        Ok(Touched {
            rejoin: false,
            next_event_ms: None,
            held: Vec::new(),
            more_from: None,
            era: None,
        })
    }

    async fn set_limit(&self, _: &LockKey, _: Option<u32>) -> Result<LimitSet, StoreError> {
        self.never_reply().await
    }

    async fn close(&self, _: &CloseCommand) -> Result<Option<ActiveClosure>, StoreError> {
        self.never_reply().await
    }

    async fn open(&self, _: &LockKey) -> Result<Option<ActiveClosure>, StoreError> {
        self.never_reply().await
    }

    async fn revoke(&self, _: &RevokeCommand) -> Result<LeaseReply<Revoked>, StoreError> {
        self.never_reply().await
    }

    async fn get(&self, _: &LockKey) -> Result<Option<LockState>, StoreError> {
        self.never_reply().await
    }

    async fn list(
        &self,
        _: &Filter,
        _: Option<&Cursor>,
        page_max: usize,
    ) -> Result<Listed, StoreError> {
        let step = self.commands_sent.fetch_add(1, Relaxed) + 1;
        if !self.step_duration.is_zero() {
            sleep(self.step_duration).await;
        }
        let numbers = 0..self.locks.min(page_max);
        Ok(Listed::Step {
            locks: numbers
                .map(|number| (lock(&format!("{step}-{number}")), idle_state()))
                .collect(),
            next: (step < STEPS_MAX).then(|| Cursor::Scan(Scan::default())),
        })
    }

    async fn check(&self, _: &LockKey, _: FencingToken) -> Result<Checked, StoreError> {
        self.never_reply().await
    }

    async fn watch(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn broker(&self) -> BrokerId {
        BrokerId::random()
    }

    fn recovery(&self) -> RecoveryState {
        self.recovery.lock().clone()
    }

    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError> {
        if self.touch_duration.is_none() {
            return self.never_reply().await;
        }
        Ok(DeploymentKey::random())
    }

    fn listen(&self, _: Listener) {}
}
