//! Acquires of a client: their attempts, repeats and cancellation.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::{AbortHandle, abortable};
use leasehold_server::{
    broker::lease_stream::StreamCommand,
    lock::{
        AcquireCall, ArgumentsHash, Lease, LeaseOptions, LockError, Owner, ReleaseScope as Scope,
        RequestId, Target, Ttl,
    },
    trace::Span,
};

use super::{Client, Job, Reply, leases::PartRelease, references};
use crate::{
    history::{CallRequest, EventKind, LockRequest, ReleaseScope},
    simulation::{
        plan::{AcquirePlan, TargetPlan},
        world::{CallFailure, lock_key},
    },
};

/// Delay before a failed call is repeated.
const RETRY_MS: u64 = 200;
/// Hold of a lease that a repeated call returned.
const REPEATED_HOLD_MS: u64 = 500;

/// A call, pending or answered.
pub(super) struct ClientCall {
    pub(super) call: AcquireCall,
    pub(super) hold_ms: u64,
    is_released: bool,
    state: CallState,
    deadline_us: u64,
    attempts: BTreeMap<u64, Attempt>,
    /// Number of attachments of the call.
    attach_number: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
    Pending,
    Answered,
    Cancelled,
    /// The call was cancelled, and what it was granted is being released.
    Released,
}

/// An attempt without an answer.
struct Attempt {
    pub(super) sent_at_us: u64,
    /// Ends a unary attempt.
    abort: Option<AbortHandle>,
    /// Id of the call on its stream.
    on_stream: Option<(u64, i64)>,
}

impl ClientCall {
    pub(super) fn is_pending(&self) -> bool {
        self.state == CallState::Pending
    }

    fn is_cancelled(&self) -> bool {
        matches!(self.state, CallState::Cancelled | CallState::Released)
    }
}

impl Client {
    pub(super) fn acquire(&mut self, plan: &AcquirePlan) {
        let targets = plan.targets.into_iter().flatten().map(target).collect();
        let options = LeaseOptions {
            max_hold_ms: plan.max_hold_ms,
            lock_delay_ms: plan.lock_delay_ms,
            at_least_ms: plan.at_least_ms,
            disconnect_grace_ms: plan.disconnect_grace_ms,
        };
        let number = self.add_call(targets, plan.ttl_ms, plan.wait_ms, options);
        if let Some(call) = self.calls.get_mut(&number) {
            (call.hold_ms, call.is_released) = (plan.hold_ms, plan.is_released);
        }
        self.send_attempt(number);
        if let (Some(after_ms), false) = (plan.hedge_after_ms, self.plan.is_streaming) {
            self.schedule(after_ms, Job::Hedge(number));
        }
        if let Some(after_ms) = plan.cancel_after_ms {
            self.schedule(after_ms, Job::Cancel(number));
        }
    }

    pub(super) fn add(&mut self, lease: usize, plan: TargetPlan, wait_ms: u64) {
        let leases = self.lease_ids();
        let Some(lease) = leases.get(lease % leases.len().max(1)) else {
            return;
        };
        let lease = &self.leases[lease];
        let mut presented = lease.presented(self.world.now_us());
        let added = target(plan);
        if lease.is_releasing(&added.lock) {
            return;
        }
        // A presented lock is entered again, and is not added.
        let is_held = lease.holds(&added.lock);
        presented
            .locks
            .retain(|held| is_held || held.lock != added.lock);
        let ttl_ms = lease.ttl.as_millis();
        let options = LeaseOptions::default();
        let number = self.add_call(vec![added], ttl_ms, wait_ms, options);
        if let Some(call) = self.calls.get_mut(&number) {
            call.call.under = Some(presented);
        }
        self.send_attempt(number);
    }

    fn add_call(
        &mut self,
        targets: Vec<Target>,
        ttl_ms: u64,
        wait_ms: u64,
        options: LeaseOptions,
    ) -> u64 {
        let number = self.world.next_number();
        let request_id = format!("00000000-0000-4000-8000-{number:012x}");
        let owner = Owner {
            id: self.plan.name.clone(),
            ..Owner::default()
        };
        let call = AcquireCall {
            targets,
            under: None,
            owner,
            ttl: Ttl::from_stored(ttl_ms),
            options,
            wait_ms,
            request_id: RequestId::parse(&request_id).expect("a UUID"),
            arguments: ArgumentsHash::of(&[&number.to_be_bytes()]),
        };
        let call = ClientCall {
            call,
            hold_ms: 0,
            is_released: true,
            state: CallState::Pending,
            deadline_us: self.world.now_us() + wait_ms * 1_000,
            attempts: BTreeMap::new(),
            attach_number: 0,
        };
        self.calls.insert(number, call);
        number
    }

    /// Repeats an earlier call, which may have been answered or cancelled, or one that was cancelled.
    pub(super) fn repeat(&mut self, index: usize, is_cancelled: bool) {
        let calls = self.calls.iter().rev();
        let mut calls = calls.filter(|(_, call)| match call.state {
            CallState::Cancelled => true,
            CallState::Pending | CallState::Answered => !is_cancelled,
            // The release could end the lease that the repeat returns.
            CallState::Released => false,
        });
        let newest = calls.nth(index).map(|(number, _)| *number);
        let Some(call) = newest.and_then(|number| self.calls.get_mut(&number)) else {
            return;
        };
        let under = call.call.under.as_ref();
        if let Some(lease) = under.and_then(|under| self.leases.get(&under.lease_id))
            && (call.call.targets.iter()).any(|target| lease.is_releasing(&target.lock))
        {
            return;
        }
        if call.state != CallState::Pending {
            call.state = CallState::Pending;
            call.deadline_us = self.world.now_us() + call.call.wait_ms * 1_000;
            (call.hold_ms, call.is_released) = (REPEATED_HOLD_MS, true);
        }
        if let Some(number) = newest {
            self.send_attempt(number);
        }
    }

    /// Sends one more attempt of a pending call.
    pub(super) fn send_attempt(&mut self, number: u64) {
        let attempt = self.world.next_number();
        let now_us = self.world.now_us();
        let Some(call) = self.calls.get_mut(&number).filter(|call| call.is_pending()) else {
            return;
        };
        if call.call.wait_ms > 0 {
            call.call.wait_ms = (call.deadline_us.saturating_sub(now_us) / 1_000).max(1);
        }
        let sent = call.call.clone();
        if let Some(under) = &sent.under
            && let Some(lease) = self.leases.get_mut(&under.lease_id)
        {
            sent.targets
                .iter()
                .for_each(|target| lease.stop_presenting(&target.lock));
        }
        let request = request(number, attempt, call);
        if self.plan.is_streaming {
            let Some(stream) = &mut self.stream else {
                // The attempt is sent on the next stream.
                return;
            };
            call.attach_number += 1;
            let call_id = i64::try_from(attempt).expect("few");
            let is_sent_elsewhere = |attempt: &Attempt| {
                attempt
                    .on_stream
                    .is_some_and(|(number, _)| number == stream.number)
            };
            if call.attempts.values().any(is_sent_elsewhere) {
                return;
            }
            call.attempts.insert(
                attempt,
                Attempt {
                    sent_at_us: now_us,
                    abort: None,
                    on_stream: Some((stream.number, call_id)),
                },
            );
            let command = StreamCommand::Acquire {
                call_id,
                call: Box::new(sent),
                number: call.attach_number,
                span: Span::default(),
            };
            let (broker, stream_number) = (stream.broker.clone(), Some(stream.number));
            stream.send(command);
            return self.record(EventKind::Invoked(CallRequest {
                broker,
                stream: stream_number,
                ..request
            }));
        }
        let (world, address) = (Arc::clone(&self.world), self.address);
        self.address += 1;
        let broker = world
            .broker(address)
            .map_or_else(|| "none".to_owned(), |broker| broker.name);
        let exchange = Arc::clone(&world).unary(address, move |broker| async move {
            let caller = Arc::<str>::default();
            broker.acquire(&caller, sent).await
        });
        let (exchange, abort) = abortable(exchange);
        self.replies.push(Box::pin(async move {
            match exchange.await {
                Ok(result) => Reply::Acquired { attempt, result },
                Err(_) => Reply::Ignored,
            }
        }));
        let abort = Some(abort);
        call.attempts.insert(
            attempt,
            Attempt {
                sent_at_us: now_us,
                abort,
                on_stream: None,
            },
        );
        self.record(EventKind::Invoked(CallRequest { broker, ..request }));
    }

    /// Cancels all attempts of a pending call.
    pub(super) fn cancel(&mut self, number: u64) {
        let Some(call) = self.calls.get_mut(&number).filter(|call| call.is_pending()) else {
            return;
        };
        call.state = CallState::Cancelled;
        self.drop_attempts(number);
    }

    fn drop_attempts(&mut self, number: u64) {
        let Some(call) = self.calls.get_mut(&number) else {
            return;
        };
        let mut cancelled = Vec::new();
        for (number, attempt) in &call.attempts {
            cancelled.push(*number);
            if let Some(abort) = &attempt.abort {
                abort.abort();
            }
            if let (Some((on, call_id)), Some(stream)) = (attempt.on_stream, &mut self.stream)
                && on == stream.number
            {
                stream.send(StreamCommand::Cancel { call_id });
            }
        }
        // The stream may still answer; a lease of a cancelled call is released then.
        call.attempts
            .retain(|_, attempt| attempt.on_stream.is_some());
        for attempt in cancelled {
            self.record(EventKind::Cancelled { attempt });
        }
    }

    pub(super) fn attach_number(&self, call: u64) -> u32 {
        self.calls.get(&call).map_or(0, |call| call.attach_number)
    }

    fn call_of(&self, attempt: u64) -> Option<u64> {
        let mut calls = self.calls.iter();
        let found = calls.rfind(|(_, call)| call.attempts.contains_key(&attempt));
        found.map(|(number, _)| *number)
    }

    /// Handles a lease. `heartbeat_sent_at_us` is the time at which the heartbeat was sent from
    /// which the validity counts, if it is later than the call.
    pub(super) fn on_granted(
        &mut self,
        attempt: u64,
        lease: Lease,
        heartbeat_sent_at_us: Option<u64>,
    ) {
        let Some(number) = self.call_of(attempt) else {
            return self.release_unwanted(&lease);
        };
        let call = self.calls.get_mut(&number).expect("it was found");
        let Some(sent) = call.attempts.remove(&attempt) else {
            return;
        };
        let is_of_lost_lease =
            call.call.under.is_some() && !self.leases.contains_key(&lease.lease_id);
        let was_cancelled = call.is_cancelled();
        if was_cancelled || is_of_lost_lease {
            call.state = CallState::Released;
            if !was_cancelled {
                self.record(EventKind::Cancelled { attempt });
                self.drop_attempts(number);
            }
            return self.release_cancelled(number, &lease);
        }
        let is_first = call.state == CallState::Pending;
        call.state = CallState::Answered;
        let (hold_ms, is_released) = (call.hold_ms, call.is_released);
        let (is_under, ttl) = (call.call.under.is_some(), lease.ttl());
        let lease_id = lease.lease_id;
        let released = self.released.get(&lease_id);
        let was_released =
            released.is_some_and(|released| released.covers(&lease, sent.sent_at_us));
        if self.leases.contains_key(&lease_id) || is_first && !was_released {
            let sent_at_us = heartbeat_sent_at_us.unwrap_or(0).max(sent.sent_at_us);
            self.add_to_lease((number, attempt), &lease, sent_at_us);
        } else {
            // The lease has ended since the attempt was sent.
            self.record(EventKind::Cancelled { attempt });
        }
        if is_first {
            self.drop_attempts(number);
            if !is_under {
                // Without renewals the release finds that the lease has expired.
                let hold_ms = if is_released {
                    hold_ms
                } else {
                    2 * ttl.as_millis()
                };
                self.schedule(hold_ms, Job::EndHold(lease_id));
                if !self.plan.is_streaming && is_released {
                    self.schedule(ttl.as_millis() / 3, Job::Renew(lease_id));
                }
            }
        }
    }

    pub(super) fn on_rejected(&mut self, attempt: u64, failure: &CallFailure) {
        let Some(number) = self.call_of(attempt) else {
            return;
        };
        let call = self.calls.get_mut(&number).expect("it was found");
        call.attempts.remove(&attempt);
        let is_over = self.world.now_us() >= call.deadline_us || call.state != CallState::Pending;
        let is_repeated = !is_over && failure.is_retryable();
        if call.attempts.is_empty() && !is_repeated && call.state == CallState::Pending {
            call.state = CallState::Answered;
        }
        let (error, lease_expired) = match failure {
            CallFailure::Unreachable => ("UNREACHABLE".to_owned(), false),
            CallFailure::Failed(error) => {
                (error.to_string(), matches!(error, LockError::LeaseExpired))
            }
        };
        let was_cancelled = call.is_cancelled();
        if !was_cancelled {
            self.record(EventKind::Rejected {
                attempt,
                error,
                lease_expired,
            });
        }
        if is_repeated {
            self.schedule(RETRY_MS, Job::Retry(number));
        }
    }

    /// Repeats all pending calls on a new stream.
    pub(super) fn repeat_pending_calls(&mut self) {
        let pending = self.calls.iter().filter(|(_, call)| call.is_pending());
        let pending: Vec<_> = pending.map(|(number, _)| *number).collect();
        for number in pending {
            if let Some(call) = self.calls.get_mut(&number) {
                call.attempts.clear();
                if self.world.now_us() >= call.deadline_us {
                    call.state = CallState::Answered;
                    continue;
                }
            }
            self.send_attempt(number);
        }
    }

    /// Releases what a cancelled call was granted.
    fn release_cancelled(&mut self, number: u64, lease: &Lease) {
        let request = &self.calls[&number].call;
        if request.under.is_none() {
            return self.release_unwanted(lease);
        }
        let Some(held) = self.leases.get(&lease.lease_id) else {
            return self.release_unwanted(lease);
        };
        let lock = &request.targets[0].lock;
        if held.has_entry(lock, number) {
            return;
        }
        let hash = request.request_id.hash();
        let mut locks = references(lease);
        locks.retain(|reference| reference.lock == *lock);
        let entry = ReleaseScope::Entry {
            lock: lock.name().to_owned(),
            call: number,
        };
        let release = PartRelease::new(self.world.next_number(), locks, Scope::Entry(hash));
        self.record_release(lease.lease_id, &release, entry);
        self.send_release(lease.lease_id, release);
    }

    /// Releases a lease that the client does not keep.
    fn release_unwanted(&mut self, lease: &Lease) {
        if self.leases.contains_key(&lease.lease_id) {
            return;
        }
        let release = PartRelease::new(self.world.next_number(), references(lease), Scope::All);
        self.record_release(lease.lease_id, &release, ReleaseScope::Lease);
        self.send_release(lease.lease_id, release);
    }
}

fn target(plan: TargetPlan) -> Target {
    Target {
        lock: lock_key(plan.lock),
        mode: plan.mode,
    }
}

fn request(number: u64, attempt: u64, call: &ClientCall) -> CallRequest {
    let locks = call.call.targets.iter().map(|target| LockRequest {
        lock: target.lock.name().to_owned(),
        weight: target.mode.weight(),
        limit: target.mode.limit(),
    });
    let options = call.call.options;
    CallRequest {
        call: number,
        attempt,
        broker: String::new(),
        stream: None,
        locks: locks.collect(),
        under: call
            .call
            .under
            .as_ref()
            .map(|lease| lease.lease_id.to_string()),
        wait_ms: call.call.wait_ms,
        ttl_ms: call.call.ttl.as_millis(),
        max_hold_ms: options.max_hold_ms,
        lock_delay_ms: options.lock_delay_ms,
        at_least_ms: options.at_least_ms,
        disconnect_grace_ms: options.disconnect_grace_ms,
    }
}
