//! Leases that are held for the whole workload, by unary calls and on streams, and waiters for
//! their locks.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{CALL_LIMIT, CallKind, RETRY_PAUSE, WORK_TIME, Workload, with_timeout};
use crate::{
    client::{
        session::{LeaseEnd, SessionClient, SessionLease},
        unary::{AcquireCall, Client, HeldLease},
    },
    clock::boottime,
    cluster::fixture::TTL,
    load::mutual_exclusion_oracle::{LockUse, Share},
    status::has_unknown_outcome,
    until::until,
};

const RENEWAL_INTERVAL: Duration = Duration::from_millis(400);
const RIVAL_WAIT: Duration = Duration::from_secs(120);

/// A lease that was held for the whole workload.
#[derive(Debug)]
pub struct LongHold {
    pub lock: usize,
    pub group: usize,
    pub token: i64,
    /// Time and reason of the loss of the lease before its release.
    pub lost: Option<(Duration, String)>,
}

impl Workload {
    /// Acquires a free lock, and renews it by unary calls until `over` is cancelled.
    pub async fn hold_unary(
        &self,
        lock: usize,
        index: usize,
        stop: &CancellationToken,
    ) -> LongHold {
        let client = self.client.with_name(&format!("keeper-{index}"), index);
        let call = AcquireCall::new(&self.locks[lock].name, TTL, Duration::ZERO);
        let held = self.acquire(&client, lock, &call, false).await;
        let mut held = held.expect("it is free");
        let entered = boottime();
        let lost = loop {
            tokio::select! {
                () = sleep(RENEWAL_INTERVAL) => {}
                () = stop.cancelled() => break None,
            }
            if let Err(reason) = self.renew(&client, lock, &mut held, index).await {
                break Some((boottime(), reason));
            }
        };
        self.record_hold(lock, &held, entered);
        self.release(&client, lock, &held).await;
        self.long_hold(lock, held.token(), lost)
    }

    /// Acquires a free lock on a stream, and holds it until `over` is cancelled.
    pub async fn hold_on_stream(
        &self,
        lock: usize,
        index: usize,
        stop: &CancellationToken,
    ) -> LongHold {
        let holder = SessionClient::start(&format!("holder-{index}"), &self.addrs, index);
        let call = AcquireCall::new(&self.locks[lock].name, TTL, Duration::ZERO);
        let session_lease = holder.acquire(&call).await.expect("it is free");
        let entered = boottime();
        let lapsed = tokio::select! {
            () = stop.cancelled() => None,
            at = session_lease.wait_until_untrusted() => Some(at),
        };
        let known = session_lease.state();
        self.record_stream_hold(lock, &session_lease, entered);
        let end = holder.release(&session_lease).await;
        let lost = lapsed.map(|at| (at, format!("{:?}", known.end.map(|(_, end)| end))));
        let reported_loss = (end != LeaseEnd::Released).then(|| (boottime(), format!("{end:?}")));
        self.long_hold(lock, session_lease.token(), lost.or(reported_loss))
    }

    /// Waits until the lock is held and `length` calls wait for it.
    pub async fn wait_for_queue_length(&self, lock: usize, length: usize) {
        until("a line", async || {
            let state = self.client.get_lock_at(0, &self.locks[lock].name).await;
            let state = state.ok()?;
            let is_so = usize::try_from(state.queue_length) == Ok(length);
            (is_so && !state.holders.is_empty()).then_some(())
        })
        .await;
    }

    /// Waits for a grant of the lock, and returns its time and its token.
    pub async fn wait_for_grant(&self, lock: usize, index: usize) -> Option<(Duration, i64)> {
        let client = self.client.with_name(&format!("rival-{index}"), index);
        let call = AcquireCall::new(&self.locks[lock].name, TTL, RIVAL_WAIT);
        let held = self.acquire(&client, lock, &call, true).await?;
        let entered = boottime();
        if entered < held.trusted_until() {
            sleep(WORK_TIME).await;
            self.record_hold(lock, &held, entered);
        }
        self.release(&client, lock, &held).await;
        Some((entered, held.token()))
    }

    /// Waits for a grant of the lock on a stream, and returns its time and its token.
    pub async fn wait_for_grant_on_stream(
        &self,
        lock: usize,
        index: usize,
    ) -> Option<(Duration, i64)> {
        let holder = SessionClient::start(&format!("follower-{index}"), &self.addrs, index);
        let call = AcquireCall::new(&self.locks[lock].name, TTL, RIVAL_WAIT);
        let session_lease = holder.acquire(&call).await.ok()?;
        let entered = boottime();
        if session_lease.is_trusted() {
            sleep(WORK_TIME).await;
            self.record_stream_hold(lock, &session_lease, entered);
        }
        holder.release(&session_lease).await;
        Some((entered, session_lease.token()))
    }

    /// Repeats a renewal until its outcome is known, within the trusted validity of the lease.
    async fn renew(
        &self,
        client: &Client,
        lock: usize,
        held: &mut HeldLease,
        index: usize,
    ) -> Result<(), String> {
        let token = held.token();
        for at in index.. {
            let attempt = with_timeout(CALL_LIMIT, client.renew_at(at, held));
            let recorded = self.record_attempt(lock, (CallKind::Renew, false), attempt, |_| None);
            let renewed = recorded.await;
            if !held.is_trusted() {
                return Err("its trust ran out".to_owned());
            }
            match renewed {
                Ok(renewed) if renewed.token() == token => {
                    *held = renewed;
                    return Ok(());
                }
                Ok(renewed) => return Err(format!("another token: {}", renewed.token())),
                Err(status) if has_unknown_outcome(&status) => sleep(RETRY_PAUSE).await,
                Err(status) => return Err(status.to_string()),
            }
        }
        unreachable!("it is trusted for seconds, not for ever")
    }

    /// Records a hold of the lock until now, or until the end of the trusted validity.
    fn record_stream_hold(&self, lock: usize, session_lease: &SessionLease, entered: Duration) {
        self.oracle.record(LockUse {
            lock,
            share: Share::ALL,
            token: session_lease.token(),
            started_at: entered,
            ended_at: boottime().min(session_lease.state().trusted_until()),
        });
    }

    fn long_hold(&self, lock: usize, token: i64, lost: Option<(Duration, String)>) -> LongHold {
        LongHold {
            lock,
            group: self.locks[lock].group,
            token,
            lost,
        }
    }
}
