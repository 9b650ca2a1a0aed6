//! Leases that are kept for as long as the work goes on, by calls and on streams, and who waits for
//! them.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{CALL_LIMIT, REPEAT_PAUSE, Verb, WORK, Work, within};
use crate::{
    client::{AcquireCall, Client, Held},
    clock::boottime,
    cluster_site::TTL,
    holder::{End, Holder, Kept},
    status::unknown_outcome,
    until::until,
    witness::{Share, Visit},
};

const RENEW_EVERY: Duration = Duration::from_millis(400);
const RIVAL_WAIT: Duration = Duration::from_secs(120);

/// A lease that was kept.
#[derive(Debug)]
pub struct Stay {
    /// Of this lock.
    pub lock: usize,
    /// Of this group.
    pub group: usize,
    /// Its fencing token.
    pub token: i64,
    /// When and why it ended before it was given back.
    pub lost: Option<(Duration, String)>,
}

impl Work {
    /// Takes the lock, which is free, and renews it by calls until that is over.
    pub async fn keep(&self, lock: usize, index: usize, over: &CancellationToken) -> Stay {
        let client = self.client.named(&format!("keeper-{index}"), index);
        let call = AcquireCall::new(&self.locks[lock].name, TTL, Duration::ZERO);
        let held = self.take(&client, lock, &call, false).await;
        let mut held = held.expect("it is free");
        let entered = boottime();
        let lost = loop {
            tokio::select! {
                () = sleep(RENEW_EVERY) => {}
                () = over.cancelled() => break None,
            }
            if let Err(why) = self.renew(&client, lock, &mut held, index).await {
                break Some((boottime(), why));
            }
        };
        self.saw(lock, &held, entered);
        self.give_back(&client, lock, &held).await;
        self.stay(lock, held.token(), lost)
    }

    /// The same on a stream.
    pub async fn keep_on_stream(
        &self,
        lock: usize,
        index: usize,
        over: &CancellationToken,
    ) -> Stay {
        let holder = Holder::start(&format!("holder-{index}"), &self.addrs, index);
        let call = AcquireCall::new(&self.locks[lock].name, TTL, Duration::ZERO);
        let kept = holder.acquire(&call).await.expect("it is free");
        let entered = boottime();
        let lapsed = tokio::select! {
            () = over.cancelled() => None,
            at = kept.distrusted() => Some(at),
        };
        let known = kept.known();
        self.saw_on_stream(lock, &kept, entered);
        let end = holder.release(&kept).await;
        let lost = lapsed.map(|at| (at, format!("{:?}", known.ended.map(|(_, end)| end))));
        let told = (end != End::Released).then(|| (boottime(), format!("{end:?}")));
        self.stay(lock, kept.token(), lost.or(told))
    }

    /// Returns once somebody holds the lock, and so many others wait for it.
    pub async fn line_of(&self, lock: usize, length: usize) {
        until("a line", async || {
            let state = self.client.get_lock_at(0, &self.locks[lock].name).await;
            let state = state.ok()?;
            let is_so = usize::try_from(state.queue_length) == Ok(length);
            (is_so && !state.holders.is_empty()).then_some(())
        })
        .await;
    }

    /// Waits for a lock that somebody keeps, until it has been granted once: when, and its token.
    pub async fn wait_behind(&self, lock: usize, index: usize) -> Option<(Duration, i64)> {
        let client = self.client.named(&format!("rival-{index}"), index);
        let call = AcquireCall::new(&self.locks[lock].name, TTL, RIVAL_WAIT);
        let held = self.take(&client, lock, &call, true).await?;
        let entered = boottime();
        if entered < held.trusted_until() {
            sleep(WORK).await;
            self.saw(lock, &held, entered);
        }
        self.give_back(&client, lock, &held).await;
        Some((entered, held.token()))
    }

    /// The same on a stream.
    pub async fn wait_behind_on_stream(
        &self,
        lock: usize,
        index: usize,
    ) -> Option<(Duration, i64)> {
        let holder = Holder::start(&format!("follower-{index}"), &self.addrs, index);
        let call = AcquireCall::new(&self.locks[lock].name, TTL, RIVAL_WAIT);
        let kept = holder.acquire(&call).await.ok()?;
        let entered = boottime();
        if kept.trusted() {
            sleep(WORK).await;
            self.saw_on_stream(lock, &kept, entered);
        }
        holder.release(&kept).await;
        Some((entered, kept.token()))
    }

    /// Renews with one attempt after the other while the lease is trusted.
    async fn renew(
        &self,
        client: &Client,
        lock: usize,
        held: &mut Held,
        index: usize,
    ) -> Result<(), String> {
        let token = held.token();
        for at in index.. {
            let attempt = within(CALL_LIMIT, client.renew_at(at, held));
            let noted = self.noted(lock, (Verb::Renew, false), attempt, |_| None);
            let renewed = noted.await;
            if !held.trusted() {
                return Err("its trust ran out".to_owned());
            }
            match renewed {
                Ok(renewed) if renewed.token() == token => {
                    *held = renewed;
                    return Ok(());
                }
                Ok(renewed) => return Err(format!("another token: {}", renewed.token())),
                Err(status) if unknown_outcome(&status) => sleep(REPEAT_PAUSE).await,
                Err(status) => return Err(status.to_string()),
            }
        }
        unreachable!("it is trusted for seconds, not for ever")
    }

    /// Somebody relied on a lock until now, or until the end of its trust.
    fn saw_on_stream(&self, lock: usize, kept: &Kept, entered: Duration) {
        self.witness.record(Visit {
            lock,
            share: Share::ALL,
            token: kept.token(),
            entered,
            ended: boottime().min(kept.known().trusted_until()),
        });
    }

    fn stay(&self, lock: usize, token: i64, lost: Option<(Duration, String)>) -> Stay {
        Stay {
            lock,
            group: self.locks[lock].group,
            token,
            lost,
        }
    }
}
