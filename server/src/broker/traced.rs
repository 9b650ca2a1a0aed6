//! What the spans of a call tell: of which locks, how it came out, and whom it waited for.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Broker, call::Answered};
use crate::{
    history::EndReason,
    lock::{Acquire, AcquireCall, Holder, LeaseId, LockError, LockKey, Mode, TraceParent},
    trace::Traced,
};

/// The wait of a call for one lock, as a span.
#[derive(Default)]
pub(super) struct InLine {
    traced: Traced,
    /// Who is in the way, as the store answers.
    looking: Option<oneshot::Receiver<Vec<TraceParent>>>,
}

/// What a call asks for.
pub(super) fn asked(traced: &Traced, call: &AcquireCall) {
    if traced.is_recording() {
        about(traced, call.targets.iter().map(|target| &target.lock));
        traced.note("leasehold.mode", mode(call.targets[0].mode));
        traced.note("leasehold.wait_ms", number(call.wait_ms));
    }
}

/// The locks that a call is about.
pub fn about<'a>(traced: &Traced, locks: impl IntoIterator<Item = &'a LockKey>) {
    if !traced.is_recording() {
        return;
    }
    let locks: Vec<_> = locks.into_iter().collect();
    let Some(first) = locks.first() else {
        return;
    };
    traced.note("leasehold.namespace", first.namespace().to_owned());
    traced.note("leasehold.lock", first.name().to_owned());
    if locks.len() > 1 {
        let names = locks.iter().map(ToString::to_string);
        traced.note_all("leasehold.locks", names.collect());
    }
}

/// A lease is lost, and why.
pub(super) fn lost(traced: &Traced, reason: EndReason, why: String) {
    traced.note("leasehold.reason", reason.name());
    traced.fail(why);
}

/// How a call came out.
pub(super) fn answered(traced: &Traced, answered: &Answered) {
    if !traced.is_recording() {
        return;
    }
    match answered {
        Ok(offer) => {
            let lease = offer.lease();
            lease_id(traced, lease.lease_id);
            let tokens = lease
                .locks
                .iter()
                .map(|held| held.grant.fencing_token.get());
            let newest = tokens.max().unwrap_or_default();
            traced.note("leasehold.fencing_token", number(newest));
            traced.note("leasehold.outcome", "granted");
        }
        Err(failed) => {
            if let LockError::Held(in_the_way) = &failed.error {
                let parents = in_the_way.holders.iter().filter_map(traces);
                parents.for_each(|parent| traced.link(parent));
            }
        }
    }
}

/// The lease that a call is about.
pub fn lease_id(traced: &Traced, lease_id: LeaseId) {
    if traced.is_recording() {
        traced.note("leasehold.lease_id", lease_id.to_string());
    }
}

impl InLine {
    /// A call has joined the line; `position` is 0 where it is not known.
    pub(super) fn join(broker: &Broker, acquire: &Acquire, position: u32) -> Self {
        let call = Traced::current();
        let traced = call.inner("queue.wait");
        if !traced.is_recording() {
            return Self::default();
        }
        about(&traced, [&acquire.lock]);
        if position > 0 {
            traced.note("leasehold.queue.position", i64::from(position));
        }
        let (store, lock) = (Arc::clone(&broker.store), acquire.lock.clone());
        let own = acquire.lease_id;
        let (tell, looking) = oneshot::channel();
        let look = async move {
            let state = store.get(&lock).await.ok().flatten();
            let holders = state.map_or_else(Vec::new, |state| state.holders);
            let others = holders.iter().filter(|holder| holder.lease_id != own);
            // The wait may be over.
            let _ = tell.send(others.filter_map(traces).collect());
        };
        broker.tasks.spawn(call.run(look));
        Self {
            traced,
            looking: Some(looking),
        }
    }

    /// Whether the call has not joined, or nobody looks.
    pub(super) fn is_unseen(&self) -> bool {
        !self.traced.is_recording()
    }

    /// Leads to the traces of those who hold the lock, once the store has told them. Cancel safe.
    pub(super) async fn look(&mut self) {
        let Some(looking) = &mut self.looking else {
            return std::future::pending().await;
        };
        let parents = looking.await.unwrap_or_default();
        self.looking = None;
        parents
            .into_iter()
            .for_each(|parent| self.traced.link(parent));
    }

    /// The wait is over.
    pub(super) fn end<T>(&mut self, result: &Result<Option<T>, LockError>) {
        if self.is_unseen() {
            return;
        }
        let outcome = match result {
            Ok(Some(_)) => "granted",
            Ok(None) => "abandoned",
            Err(LockError::WaitTimeout(_)) => "wait_timeout",
            Err(LockError::Cancelled) => "cancelled",
            Err(LockError::Draining) => "draining",
            Err(_) => "failed",
        };
        self.traced.note("leasehold.outcome", outcome);
        self.traced.end();
    }
}

/// The trace of a holder, if it is recorded.
fn traces(holder: &Holder) -> Option<TraceParent> {
    holder.owner.trace
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Semaphore { .. } => "semaphore",
    }
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
