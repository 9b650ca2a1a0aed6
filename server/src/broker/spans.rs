//! Attributes and links of the spans of a call: its locks, its result and the holders that it
//! waited for.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Broker, acquire::AcquireResult};
use crate::{
    lock::{AcquireCall, AcquireCommand, Holder, LeaseId, LockError, LockKey, Mode, TraceParent},
    recent_events::LeaseEndReason,
    trace::Span,
};

/// Span of the wait of a call for one lock.
#[derive(Default)]
pub(super) struct QueueWaitSpan {
    span: Span,
    /// Receives the trace contexts of the current holders from the store.
    snapshot_task: Option<oneshot::Receiver<Vec<TraceParent>>>,
}

/// Records the parameters of an acquire.
pub(super) fn record_request(span: &Span, call: &AcquireCall) {
    if span.is_recording() {
        record_locks(span, call.targets.iter().map(|target| &target.lock));
        span.set_attribute("leasehold.mode", mode(call.targets[0].mode));
        span.set_attribute("leasehold.wait_ms", number(call.wait_ms));
    }
}

/// Records the locks of a call.
pub fn record_locks<'a>(span: &Span, locks: impl IntoIterator<Item = &'a LockKey>) {
    if !span.is_recording() {
        return;
    }
    let locks: Vec<_> = locks.into_iter().collect();
    let Some(first) = locks.first() else {
        return;
    };
    span.set_attribute("leasehold.namespace", first.namespace().to_owned());
    span.set_attribute("leasehold.lock", first.name().to_owned());
    if locks.len() > 1 {
        let names = locks.iter().map(ToString::to_string);
        span.set_attributes("leasehold.locks", names.collect());
    }
}

/// Records the reason for which a lease was lost.
pub(super) fn record_loss(span: &Span, reason: LeaseEndReason, explanation: String) {
    span.set_attribute("leasehold.reason", reason.name());
    span.set_error(explanation);
}

/// Records the result of a call.
pub(super) fn record_result(span: &Span, result: &AcquireResult) {
    if !span.is_recording() {
        return;
    }
    match result {
        Ok(undelivered) => {
            let lease = undelivered.lease();
            lease_id(span, lease.lease_id);
            let tokens = lease
                .locks
                .iter()
                .map(|held| held.grant.fencing_token.get());
            let newest = tokens.max().unwrap_or_default();
            span.set_attribute("leasehold.fencing_token", number(newest));
            span.set_attribute("leasehold.outcome", "granted");
        }
        Err(failure) => {
            if let LockError::Held(contention) = &failure.error {
                let parents = contention.holders.iter().filter_map(traces);
                parents.for_each(|parent| span.link(parent));
            }
        }
    }
}

pub fn lease_id(span: &Span, lease_id: LeaseId) {
    if span.is_recording() {
        span.set_attribute("leasehold.lease_id", lease_id.to_string());
    }
}

impl QueueWaitSpan {
    /// Starts the span of a call that was queued, with its position if that is known.
    pub(super) fn start(broker: &Broker, acquire: &AcquireCommand, position: Option<u32>) -> Self {
        let call = Span::current();
        let span = call.child_of_current("queue.wait");
        if !span.is_recording() {
            return Self::default();
        }
        record_locks(&span, [&acquire.lock]);
        if let Some(position) = position {
            span.set_attribute("leasehold.queue.position", i64::from(position));
        }
        let (store, lock) = (Arc::clone(&broker.store), acquire.lock.clone());
        let own_lease_id = acquire.lease_id;
        let (sender, receiver) = oneshot::channel();
        let read_holders = async move {
            let state = store.get(&lock).await.ok().flatten();
            let holders = state.map_or_else(Vec::new, |state| state.holders);
            let others = holders
                .iter()
                .filter(|holder| holder.lease_id != own_lease_id);
            // The receiver is gone if the wait has ended.
            let _ = sender.send(others.filter_map(traces).collect());
        };
        broker.tasks.spawn(call.run(read_holders));
        Self {
            span,
            snapshot_task: Some(receiver),
        }
    }

    /// Returns true if no span is recorded: the call is not queued or not sampled.
    pub(super) fn is_not_recording(&self) -> bool {
        !self.span.is_recording()
    }

    /// Links the span to the traces of the holders, once the store has returned them. Cancel safe.
    pub(super) async fn refresh_snapshot(&mut self) {
        let Some(snapshot_task) = &mut self.snapshot_task else {
            return std::future::pending().await;
        };
        let parents = snapshot_task.await.unwrap_or_default();
        self.snapshot_task = None;
        parents
            .into_iter()
            .for_each(|parent| self.span.link(parent));
    }

    /// Ends the span with the result of the wait.
    pub(super) fn end<T>(&mut self, result: &Result<Option<T>, LockError>) {
        if self.is_not_recording() {
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
        self.span.set_attribute("leasehold.outcome", outcome);
        self.span.end();
    }
}

/// Returns the trace context of a holder, if its trace is recorded.
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
