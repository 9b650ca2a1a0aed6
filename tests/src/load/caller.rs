//! One client of a load, which draws its activities from a seeded generator.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use leasehold_server::lock::TOMBSTONE_MS;
use rand::{
    Rng as _, SeedableRng as _,
    rngs::StdRng,
    seq::{SliceRandom as _, index::sample},
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::{
    client::unary::{AcquireCall, Client, HeldLease},
    clock::boottime,
    load::{
        callers::{CallMix, CallRecord, LoadOptions, LoadRecord, LoadTarget, WORK_TIME, lock_name},
        lease_use::LeaseUse,
        losses::{Period, loss_reason},
        mutual_exclusion_oracle::Oracle,
    },
};

const WAIT: Duration = Duration::from_secs(10);
/// Wait of a call while its client holds another lock, which other clients wait for.
const ADD_WAIT: Duration = Duration::from_millis(80);
const OVERSTAY_TIME: Duration = Duration::from_secs(2);
const OVERSTAY_ONE_IN: u32 = 500;
const KEPT_HEDGE_ONE_IN: u32 = 100;
/// Time after which an attempt that was dropped has been rolled back.
const ROLLBACK_TIME: Duration = Duration::from_millis(1_200);
/// Time within which a call is cancelled.
const CANCELLED_WITHIN_US: u64 = 20_000;
/// Time for which a released request is not granted again, at least.
const RELEASE_MEMORY: Duration = Duration::from_millis(TOMBSTONE_MS);

/// A way to use locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// Acquires one lock, works, and releases it.
    Work,
    /// Acquires one lock, and renews it a few times.
    Keep,
    /// Adds a lock to a lease.
    Add,
    /// Adds two locks to a lease at the same time.
    AddTwo,
    /// Acquires two or three locks in one call.
    All,
    /// Repeats a request that was granted and released before.
    Repeat,
    /// Sends a request to two brokers at the same time.
    Hedge,
    /// Cancels an acquire at any moment.
    Cancel,
    /// Cancels an add at any moment.
    CancelAdd,
}

impl Activity {
    pub const ALL: [Self; 9] = [
        Self::Work,
        Self::Keep,
        Self::Add,
        Self::AddTwo,
        Self::All,
        Self::Repeat,
        Self::Hedge,
        Self::Cancel,
        Self::CancelAdd,
    ];

    /// Returns how often a mix draws the activity, in relation to the others.
    fn frequency(self, mix: CallMix) -> u32 {
        match (mix, self) {
            (CallMix::Plain | CallMix::Full, Self::Work) => 800,
            (CallMix::Plain, _) => 0,
            (CallMix::Full, Self::Repeat | Self::Hedge) => 60,
            (CallMix::Full, Self::Add) => 16,
            (CallMix::Full, Self::AddTwo | Self::All) => 10,
            (CallMix::Full, Self::Keep | Self::Cancel) => 6,
            (CallMix::Full, Self::CancelAdd) => 3,
            (CallMix::Long, Self::Work) => 600,
            (CallMix::Long, Self::Keep | Self::Repeat | Self::Hedge) => 40,
            (CallMix::Long, Self::Add | Self::AddTwo | Self::All) => 20,
            (CallMix::Long, Self::Cancel | Self::CancelAdd) => 8,
        }
    }
}

/// A request that was granted and released.
#[derive(Debug)]
struct ReleasedRequest {
    call: AcquireCall,
    target: LoadTarget,
    release_sent_at: Duration,
}

/// A client of the load.
#[derive(Debug)]
pub struct Caller {
    client: Client,
    oracle: Arc<Oracle>,
    options: LoadOptions,
    seed: u64,
    rng: StdRng,
    released: Option<ReleasedRequest>,
    record: LoadRecord,
}

impl Caller {
    #[must_use]
    pub fn new(client: Client, oracle: Arc<Oracle>, options: LoadOptions, seed: u64) -> Self {
        Self {
            client,
            oracle,
            options,
            seed,
            rng: StdRng::seed_from_u64(seed),
            released: None,
            record: LoadRecord::default(),
        }
    }

    /// Returns the first activity: those of clients with consecutive seeds differ, so that a short
    /// load has rare activities, too.
    fn first_activity(&mut self) -> Activity {
        let index = self.seed % Activity::ALL.len() as u64;
        let first = Activity::ALL[usize::try_from(index).expect("few activities")];
        match first.frequency(self.options.mix) {
            0 => self.draw_activity(),
            _ => first,
        }
    }

    fn draw_activity(&mut self) -> Activity {
        let mix = self.options.mix;
        let activities = Activity::ALL;
        *activities
            .choose_weighted(&mut self.rng, |activity| activity.frequency(mix))
            .expect("an activity with a frequency")
    }

    /// Uses locks until stopped, and returns the record.
    pub async fn run(mut self, stop: CancellationToken) -> LoadRecord {
        let mut next = Some(self.first_activity());
        while !stop.is_cancelled() {
            let activity = match next.take() {
                Some(activity) => activity,
                None => self.draw_activity(),
            };
            // A random endpoint gives brokers that were unavailable their share of clients again.
            let first = self.random_endpoint();
            self.client = self.client.at_endpoint(first);
            let is_done = match activity {
                Activity::Work => self.work().await,
                Activity::Keep => self.keep().await,
                Activity::Add => self.add().await,
                Activity::AddTwo => self.add_two().await,
                Activity::All => self.acquire_several().await,
                Activity::Repeat => self.repeat().await,
                Activity::Hedge => self.hedge().await,
                Activity::Cancel => self.cancel().await,
                Activity::CancelAdd => self.cancel_add().await,
            };
            if is_done.is_some() {
                *self.record.activities.entry(activity).or_default() += 1;
            }
        }
        self.record
    }

    async fn work(&mut self) -> Option<()> {
        let target = self.random_targets(1)[0];
        let call = target.acquire_call(self.options.ttl, WAIT);
        let mut lease = self.acquire(target, &call).await?;
        self.use_lease(&mut lease).await;
        let release_sent_at = boottime();
        self.release(&mut lease).await?;
        self.released = Some(ReleasedRequest {
            call,
            target,
            release_sent_at,
        });
        Some(())
    }

    async fn keep(&mut self) -> Option<()> {
        let target = self.random_targets(1)[0];
        let call = target.acquire_call(self.options.ttl, WAIT);
        let mut lease = self.acquire(target, &call).await?;
        let times = self.rng.gen_range(0.2..1.0);
        self.renew_for(&mut lease, self.options.ttl.mul_f64(times))
            .await?;
        self.use_lease(&mut lease).await;
        self.release(&mut lease).await
    }

    async fn add(&mut self) -> Option<()> {
        let [first, second] = self.random_targets(2)[..] else {
            return None;
        };
        let call = first.acquire_call(self.options.ttl, WAIT);
        let mut lease = self.acquire(first, &call).await?;
        let is_added = self.acquire_under(&mut lease, second).await.is_some();
        self.use_lease(&mut lease).await;
        if is_added && self.rng.gen_bool(0.5) {
            self.release_one(&mut lease, second.lock).await?;
            self.use_lease(&mut lease).await;
            self.repeat_partial_release(&mut lease, second.lock).await;
        }
        self.release(&mut lease).await?;
        is_added.then_some(())
    }

    async fn add_two(&mut self) -> Option<()> {
        let targets = self.random_targets(3);
        let [first, second, third] = targets[..] else {
            return None;
        };
        let call = first.acquire_call(self.options.ttl, WAIT);
        let mut lease = self.acquire(first, &call).await?;
        let started_at = boottime();
        let calls = [second, third].map(|target| {
            let endpoint = self.random_endpoint();
            let call = target.acquire_call(self.options.ttl, ADD_WAIT);
            (self.client.at_endpoint(endpoint), call)
        });
        let [left, right] = calls;
        let (left, right) = tokio::join!(
            left.0.acquire_under(&left.1, &lease.lease),
            right.0.acquire_under(&right.1, &lease.lease),
        );
        let mut added = 0;
        for (target, result) in [(second, left), (third, right)] {
            self.record_call(started_at, result.is_ok());
            let Some(held) = self.held_or_lost(&mut lease, result, false) else {
                continue;
            };
            lease.add(&held, &[target]);
            added += 1;
        }
        self.renew(&mut lease).await?;
        self.use_lease(&mut lease).await;
        let mut locks = lease.locks();
        locks.shuffle(&mut self.rng);
        while let Some(lock) = locks.pop().filter(|_| !locks.is_empty()) {
            self.release_one(&mut lease, lock).await?;
            self.use_lease(&mut lease).await;
        }
        self.release(&mut lease).await?;
        (added == 2).then_some(())
    }

    async fn acquire_several(&mut self) -> Option<()> {
        let count = self.rng.gen_range(2..=3);
        let targets = self.random_targets(count);
        let ttl = self.options.ttl;
        let requested = targets
            .iter()
            .map(|target| target.acquire_call(ttl, ttl).target());
        let requested: Vec<_> = requested.collect();
        let started_at = boottime();
        let call = AcquireCall::new("", ttl, 2 * ADD_WAIT);
        let held = self.client.acquire_targets(&requested, &call).await;
        self.record_call(started_at, held.is_ok());
        let mut lease = LeaseUse::start(held.ok()?, &targets);
        self.renew_if_due(&mut lease).await?;
        self.use_lease(&mut lease).await;
        if self.rng.gen_bool(0.5) {
            self.release_one(&mut lease, targets[0].lock).await?;
            self.use_lease(&mut lease).await;
        }
        self.release(&mut lease).await
    }

    async fn repeat(&mut self) -> Option<()> {
        let ReleasedRequest {
            call,
            target,
            release_sent_at,
        } = mem::take(&mut self.released)?;
        let result = self.client.acquire_without_renewal(&call).await;
        let Ok(held) = result else {
            return Some(());
        };
        self.record.regranted += usize::from(boottime() < release_sent_at + RELEASE_MEMORY);
        let mut lease = LeaseUse::start(held, &[target]);
        self.renew_if_due(&mut lease).await?;
        self.use_lease(&mut lease).await;
        self.release(&mut lease).await
    }

    async fn hedge(&mut self) -> Option<()> {
        let target = self.random_targets(1)[0];
        let call = target.acquire_call(self.options.ttl, WAIT);
        let first = self.random_endpoint();
        let limit = WAIT + self.options.ttl;
        let started_at = boottime();
        let mut attempts = [first, first + 1].map(|at| {
            let attempt = self.client.acquire_at(at, &call);
            Box::pin(async move { timeout(limit, attempt).await.ok()?.ok() })
        });
        let [left, right] = &mut attempts;
        let waits_for_both = self.rng.gen_bool(0.5);
        let (early, late) = tokio::select! {
            held = &mut *left => (held, right),
            held = &mut *right => (held, left),
        };
        let late = if early.is_none() || waits_for_both {
            late.await
        } else {
            None
        };
        drop(attempts);
        if let (Some(early), Some(late)) = (&early, &late) {
            self.compare_hedges(started_at, early, late);
        }
        let held = early.or(late);
        self.record_call(started_at, held.is_some());
        let mut lease = LeaseUse::start(held?, &[target]);
        self.renew_if_due(&mut lease).await?;
        if self.rng.gen_ratio(1, KEPT_HEDGE_ONE_IN) {
            // The rollback of the attempt that was dropped must not end the lease.
            self.renew_for(&mut lease, ROLLBACK_TIME).await?;
        }
        self.use_lease(&mut lease).await;
        self.release(&mut lease).await
    }

    async fn cancel(&mut self) -> Option<()> {
        let target = self.random_targets(1)[0];
        let call = target.acquire_call(self.options.ttl, WAIT);
        let (endpoint, within) = (self.random_endpoint(), self.random_cancel_time());
        let attempt = timeout(within, self.client.acquire_at(endpoint, &call));
        let Ok(result) = attempt.await else {
            return Some(());
        };
        let mut lease = LeaseUse::start(result.ok()?, &[target]);
        self.use_lease(&mut lease).await;
        self.release(&mut lease).await;
        None
    }

    async fn cancel_add(&mut self) -> Option<()> {
        let [first, second] = self.random_targets(2)[..] else {
            return None;
        };
        let call = first.acquire_call(self.options.ttl, WAIT);
        let mut lease = self.acquire(first, &call).await?;
        let add = second.acquire_call(self.options.ttl, ADD_WAIT);
        let (endpoint, within) = (self.random_endpoint(), self.random_cancel_time());
        let attempt = self.client.acquire_under_at(endpoint, &add, &lease.lease);
        let is_cancelled = match timeout(within, attempt).await {
            Ok(result) => {
                if let Some(held) = self.held_or_lost(&mut lease, result, false) {
                    lease.add(&held, &[second]);
                }
                false
            }
            Err(_) => true,
        };
        // The rollback of the add must not end the lease.
        self.renew_for(&mut lease, ROLLBACK_TIME).await?;
        self.use_lease(&mut lease).await;
        self.release(&mut lease).await?;
        is_cancelled.then_some(())
    }

    async fn acquire(&mut self, target: LoadTarget, call: &AcquireCall) -> Option<LeaseUse> {
        let started_at = boottime();
        let held = self.client.acquire_without_renewal(call).await;
        self.record_call(started_at, held.is_ok());
        let mut lease = LeaseUse::start(held.ok()?, &[target]);
        self.renew_if_due(&mut lease).await?;
        Some(lease)
    }

    async fn acquire_under(&mut self, lease: &mut LeaseUse, target: LoadTarget) -> Option<()> {
        let started_at = boottime();
        let call = target.acquire_call(self.options.ttl, ADD_WAIT);
        let result = self.client.acquire_under(&call, &lease.lease).await;
        self.record_call(started_at, result.is_ok());
        let held = self.held_or_lost(lease, result, false)?;
        lease.add(&held, &[target]);
        self.renew_if_due(lease).await
    }

    async fn renew(&mut self, lease: &mut LeaseUse) -> Option<()> {
        let mut held = HeldLease {
            lease: lease.lease.clone(),
            sent_at: boottime(),
        };
        let result = self.client.renew(&mut held).await;
        if self.held_or_lost(lease, result, false).is_none() {
            lease.end_all(&self.oracle);
            return None;
        }
        self.record.missing_locks += usize::from(!lease.has_all_locks(&held.lease));
        lease.renew(held);
        Some(())
    }

    async fn renew_if_due(&mut self, lease: &mut LeaseUse) -> Option<()> {
        if lease.is_renewal_due() {
            self.renew(lease).await?;
        }
        Some(())
    }

    /// Holds a lease for at least `time`, and renews it.
    async fn renew_for(&mut self, lease: &mut LeaseUse, time: Duration) -> Option<()> {
        let until = boottime() + time;
        while boottime() < until {
            lease.write(&self.oracle);
            sleep(self.options.ttl / 3).await;
            self.renew(lease).await?;
        }
        Some(())
    }

    /// Works with the locks of a lease, or stays for longer than the lease.
    async fn use_lease(&mut self, lease: &mut LeaseUse) {
        if !lease.is_trusted() {
            return;
        }
        lease.write(&self.oracle);
        let overstays = self.rng.gen_ratio(1, OVERSTAY_ONE_IN);
        sleep(if overstays { OVERSTAY_TIME } else { WORK_TIME }).await;
        lease.write(&self.oracle);
    }

    /// Releases a lease. Its use ends before the release is sent.
    async fn release(&mut self, lease: &mut LeaseUse) -> Option<()> {
        lease.end_all(&self.oracle);
        let held = HeldLease {
            lease: lease.lease.clone(),
            sent_at: boottime(),
        };
        let repeats = self.repeats();
        let result = self.client.release(&held).await;
        let is_repeated = self.repeats() != repeats;
        self.held_or_lost(lease, result, is_repeated).map(drop)
    }

    /// Releases one lock of a lease.
    async fn release_one(&mut self, lease: &mut LeaseUse, lock: usize) -> Option<()> {
        lease.end(lock, &self.oracle);
        let repeats = self.repeats();
        let name = lock_name(lock);
        let result = self.client.release_lock(&lease.lease, &name).await;
        let is_repeated = self.repeats() != repeats;
        if self.held_or_lost(lease, result, is_repeated).is_none() {
            lease.end_all(&self.oracle);
            return None;
        }
        lease.remove(lock);
        Some(())
    }

    /// Repeats the release of one lock, while the lease has another one.
    async fn repeat_partial_release(&mut self, lease: &mut LeaseUse, lock: usize) {
        let name = lock_name(lock);
        let result = self.client.release_lock(&lease.lease, &name).await;
        self.held_or_lost(lease, result, false);
    }

    /// Returns the reply to a call for a lease, and records a loss that the reply reports.
    fn held_or_lost<T>(
        &mut self,
        lease: &mut LeaseUse,
        result: Result<T, Status>,
        is_release_sent: bool,
    ) -> Option<T> {
        let status = match result {
            Ok(reply) => return Some(reply),
            Err(status) => status,
        };
        if let Some(reason) = loss_reason(&status) {
            let loss = lease.loss(reason, is_release_sent);
            self.record.losses.extend(loss);
            lease.end_all(&self.oracle);
        }
        None
    }

    /// Compares the replies to two attempts of a request. The store can grant the request again only
    /// if it lost the first grant.
    fn compare_hedges(&mut self, started_at: Duration, early: &HeldLease, late: &HeldLease) {
        self.record.different_leases += usize::from(early.lease.lease_id != late.lease.lease_id);
        if early.token() != late.token() {
            self.record.granted_twice.push(Period {
                started_at,
                ended_at: boottime(),
            });
        }
    }

    fn record_call(&mut self, started_at: Duration, is_granted: bool) {
        self.record.calls.push(CallRecord {
            started_at,
            ended_at: boottime(),
            is_granted,
        });
    }

    fn repeats(&self) -> usize {
        self.client.counters.repeats.load(Ordering::Relaxed)
    }

    /// Returns different locks in the order of their names. Clients that add locks in this order do not
    /// wait for each other.
    fn random_targets(&mut self, count: usize) -> Vec<LoadTarget> {
        let mut locks = sample(&mut self.rng, self.oracle.lock_count(), count).into_vec();
        locks.sort_by_key(|lock| lock_name(*lock));
        let target = |lock| {
            let kind = (self.options.kind_of)(lock);
            let share = kind.random_share(&mut self.rng);
            LoadTarget { lock, kind, share }
        };
        locks.into_iter().map(target).collect()
    }

    fn random_endpoint(&mut self) -> usize {
        self.rng.gen_range(0..self.client.endpoint_count())
    }

    fn random_cancel_time(&mut self) -> Duration {
        Duration::from_micros(self.rng.gen_range(0..CANCELLED_WITHIN_US))
    }
}
