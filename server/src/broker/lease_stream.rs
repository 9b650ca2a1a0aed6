//! One lease stream: owns its leases and pending calls, and orders the commands for each lease.
//!
//! The task of the stream reads commands of the client and never waits for the store. Every command
//! runs as a job, with one job at a time for each lease.

mod completions;
mod dispatch;
mod events;
mod lease_spans;
mod leases;
pub(super) mod registry;
mod timers;

use std::{
    collections::{BTreeMap, VecDeque},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{
    future::{BoxFuture, FutureExt as _},
    stream::{BoxStream, FuturesUnordered, StreamExt as _},
};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use self::{
    completions::{Completion, completion},
    dispatch::{PendingAttach, PendingCommand},
    leases::{LeaseCommand, StreamLease},
    registry::Inbox,
    timers::Liveness,
};
pub use self::{
    events::{
        AccessFilter, CallError, EventSink, LeaseEndedReason, QueueUpdate, RenewedLease,
        StreamCommand, StreamEvent,
    },
    timers::StreamAge,
};
use super::{
    Broker,
    acquire::{StreamCallContext, result_or_internal},
    heartbeats::Heartbeats,
    spans,
};
use crate::{
    lock::{AcquireCall, Attachment, LeaseId, LockError, LockKey, ReleaseScope, StreamId},
    quotas::SharedQuotaPermit,
    trace::Span,
};

/// Maximum number of leases and pending calls of one stream.
pub const LEASES_MAX: usize = 1_000;
/// Silence of a client after which its pending calls are cancelled, and time in which the calls of
/// a broken stream can be repeated before they are rolled back.
pub(super) const QUEUE_GRACE: Duration = Duration::from_secs(6);
/// Delay after which a command that could not reach the store is retried.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// Time for which a stream that the broker has ended is still read, so that messages in transit do
/// not count as a reset of the connection.
const DISCARD_AFTER_END: Duration = Duration::from_secs(2);

/// Lifecycle phase of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The stream reads commands and sends events.
    Open,
    /// The client sent Close. All leases are released.
    Closing,
    /// The client has disconnected. Leases are not renewed, and running jobs are completed.
    Broken,
    /// The broker ends the stream. Its leases are neither renewed nor released.
    Ended,
}

/// Caller that opened a stream.
#[derive(Debug)]
pub struct StreamCaller {
    /// Name of the caller in access rules.
    pub name: Arc<str>,
    /// Time at which the credential of the caller expires.
    pub expires: Option<Instant>,
    /// Time at which the client must reconnect, if its credential is the certificate of the
    /// connection.
    pub reconnects_at: Option<Instant>,
}

/// A call that has no result yet.
struct PendingCall {
    cancel: CancellationToken,
    /// Locks that the call acquires; empty for an attach.
    locks: Vec<LockKey>,
    /// True if the call was cancelled because the access rules no longer allow it.
    is_denied: bool,
}

pub(super) struct LeaseStream {
    broker: Broker,
    caller: Arc<str>,
    id: StreamId,
    events: EventSink,
    phase: Phase,
    heartbeats: Arc<Heartbeats>,
    /// Number of heartbeats ignored because their sequence number did not increase.
    out_of_order_heartbeats: u64,
    /// Time of the last heartbeat or acquire of the client.
    last_activity_at: Instant,
    liveness: Liveness,
    /// Time at which the client is asked to reconnect, and after that the time at which the stream
    /// ends.
    reconnect_at: Instant,
    was_asked_to_reconnect: bool,
    /// Time at which the credential of the client expires.
    expires: Option<Instant>,
    /// Filter of the locks that the client may hold; `None` until the access rules change.
    access: Option<AccessFilter>,
    /// Leases by id. A heartbeat renews them in this order.
    leases: BTreeMap<LeaseId, Box<StreamLease>>,
    /// Shortest silence after which the disconnect grace of a lease begins; `None` if there are no
    /// leases with a grace that has not begun.
    shortest_silence_limit: Option<Duration>,
    /// True if the disconnect grace of a lease runs.
    has_running_grace: bool,
    /// Pending calls by call id.
    pending_calls: BTreeMap<i64, PendingCall>,
    /// Futures of the calls, each of which runs to completion.
    calls: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Results of the calls. Dropped when the stream ends, which rolls unfinished calls back.
    results: FuturesUnordered<BoxFuture<'static, Completion>>,
    /// Commands that wait for a permit.
    pending_commands: VecDeque<PendingCommand>,
    /// True while a permit request is pending.
    is_waiting_for_permits: bool,
    /// Store commands in progress.
    jobs: FuturesUnordered<BoxFuture<'static, Completion>>,
    /// Renewals that are completed and not acknowledged yet.
    pending_acks: Vec<(i64, RenewedLease)>,
    /// Heartbeat interval that was last sent to the client.
    interval_ms: u64,
    _permit: SharedQuotaPermit,
}

impl Broker {
    /// Serves a stream: reads commands from `commands` and sends events to `events`. The stream
    /// ends when `commands` ends, after [`StreamCommand::Close`], when the client disconnects, when
    /// the stream reaches its maximum age, or when the credential of the caller expires.
    ///
    /// # Errors
    /// [`LockError::QuotaExceeded`] if there are too many streams.
    pub fn hold(
        &self,
        caller: StreamCaller,
        commands: BoxStream<'static, StreamCommand>,
        events: EventSink,
    ) -> Result<(), LockError> {
        let permit = self.quotas.stream(&caller.name).map_err(LockError::from);
        let permit = permit.inspect_err(|error| self.metrics.over_quota(error))?;
        let (id, inbox) = self.streams.open(self.store.broker());
        let max_age_at = Instant::now() + self.stream_age.jittered(&self.random);
        // Boxed, because the future of the task would otherwise contain the stream twice.
        let stream = Box::new(LeaseStream {
            broker: self.clone(),
            caller: caller.name,
            id,
            events,
            phase: Phase::Open,
            heartbeats: Arc::default(),
            out_of_order_heartbeats: 0,
            last_activity_at: Instant::now(),
            liveness: Liveness::Alive,
            reconnect_at: caller
                .reconnects_at
                .map_or(max_age_at, |reconnects_at| max_age_at.min(reconnects_at)),
            was_asked_to_reconnect: false,
            expires: caller.expires,
            access: None,
            leases: BTreeMap::new(),
            shortest_silence_limit: None,
            has_running_grace: false,
            pending_calls: BTreeMap::new(),
            calls: FuturesUnordered::new(),
            results: FuturesUnordered::new(),
            pending_commands: VecDeque::new(),
            is_waiting_for_permits: false,
            jobs: FuturesUnordered::new(),
            pending_acks: Vec::new(),
            interval_ms: 0,
            _permit: permit,
        });
        self.tasks.spawn(stream.run(commands, inbox));
        Ok(())
    }
}

impl LeaseStream {
    async fn run(
        mut self: Box<Self>,
        mut commands: BoxStream<'static, StreamCommand>,
        inbox: Arc<Inbox>,
    ) {
        let draining = self.broker.draining.clone();
        let mut draining = pin!(draining.cancelled().fuse());
        let mut timer = pin!(sleep_until(self.reconnect_at));
        let mut is_read = false;
        while self.phase == Phase::Open || self.phase != Phase::Ended && !self.jobs.is_empty() {
            // The timer is not moved to a later time before it fires: firing too early is harmless,
            // and most deadlines move with each heartbeat.
            let deadline = self.next_deadline();
            if let Some(deadline) =
                deadline.filter(|deadline| *deadline < timer.deadline() || timer.is_elapsed())
            {
                timer.as_mut().reset(deadline);
            }
            tokio::select! {
                // Rare events first: a client that always has another message ready must delay
                // neither the expiry of its credential nor a drain. The loops below complete calls
                // and jobs, whichever event is handled here.
                biased;
                () = &mut draining => self.send_reconnect(self.broker.drain_timeout()),
                () = &mut timer, if deadline.is_some() => self.on_timer(),
                events = inbox.next() => self.on_remote_event(events),
                command = commands.next(), if !is_read => match command {
                    Some(command) => self.on_command(command),
                    None => {
                        is_read = true;
                        self.on_disconnect();
                    }
                },
                Some(()) = self.calls.next() => {}
                Some(on_result) = self.results.next() => on_result(&mut self),
                Some(on_result) = self.jobs.next() => on_result(&mut self),
            }
            while let Some(Some(())) = self.calls.next().now_or_never() {}
            while let Some(Some(on_result)) = self.results.next().now_or_never() {
                on_result(&mut self);
            }
            while let Some(Some(on_result)) = self.jobs.next().now_or_never() {
                on_result(&mut self);
            }
            // Once for all events above, so that leases that became due by several of them are
            // renewed together.
            self.dispatch_pending(None);
            self.acknowledge();
        }
        self.broker.streams.close(self.id);
        for (lease_id, mut lease) in std::mem::take(&mut self.leases) {
            lease.keep_permits(lease_id, &self.broker.quotas);
        }
        self.results.clear();
        let calls = std::mem::take(&mut self.calls);
        if !calls.is_empty() {
            self.broker.tasks.spawn(calls.collect::<()>());
        }
        if self.out_of_order_heartbeats > 0 {
            debug!(
                count = self.out_of_order_heartbeats,
                "heartbeats arrived out of order"
            );
        }
        if !is_read {
            // Discards messages in transit: the client was notified, or it has disconnected.
            let _ = timeout(
                DISCARD_AFTER_END,
                commands.for_each(|_| std::future::ready(())),
            )
            .await;
        }
    }

    fn on_command(&mut self, command: StreamCommand) {
        if self.phase != Phase::Open {
            return;
        }
        match command {
            StreamCommand::Heartbeat { sequence } => self.on_heartbeat(sequence),
            StreamCommand::Acquire {
                call_id,
                call,
                number,
                span,
            } => self.acquire(call_id, span, *call, number),
            StreamCommand::Cancel { call_id } => {
                if let Some(call) = self.pending_calls.get(&call_id) {
                    call.cancel.cancel();
                }
            }
            StreamCommand::Attach {
                call_id,
                lease,
                number,
                span,
            } => {
                // An attach waits for no lock, so that a cancellation has nothing to cancel.
                let cancellation = self.admit(call_id, Some(lease.lease_id), Vec::new());
                if cancellation.is_some() {
                    spans::record_locks(&span, lease.locks.iter().map(|held| &held.lock));
                    spans::lease_id(&span, lease.lease_id);
                    self.pending_commands
                        .push_back(PendingCommand::Attach(Box::new(PendingAttach {
                            call_id,
                            lease,
                            number,
                            span,
                        })));
                }
            }
            StreamCommand::Release {
                call_id,
                lease_id,
                lock,
                entry,
            } => {
                let call_id = Some(call_id);
                let scope = match (&lock, entry) {
                    (None, _) => ReleaseScope::All,
                    (Some(_), None) => ReleaseScope::Lock,
                    (Some(_), Some(entry)) => ReleaseScope::Entry(entry),
                };
                let command = LeaseCommand::Release {
                    call_id,
                    lock,
                    scope,
                };
                self.enqueue_command(lease_id, command);
            }
            StreamCommand::Detach { call_id, lease_id } => {
                self.enqueue_command(lease_id, LeaseCommand::Detach { call_id })
            }
            StreamCommand::Refresh { call_id, expires } => {
                self.expires = expires;
                self.send(StreamEvent::Done { call_id });
            }
            StreamCommand::Expire => self.credential_expired(),
            StreamCommand::Restrict { may } => self.restrict(may),
            StreamCommand::Close => self.close(),
        }
    }

    /// Renews every lease for a heartbeat, unless its sequence number is not higher than the last
    /// one.
    fn on_heartbeat(&mut self, sequence: i64) {
        if !self.heartbeats.record(sequence) {
            self.out_of_order_heartbeats += 1;
            return;
        }
        self.note_activity();
        for (lease_id, lease) in &mut self.leases {
            lease.pending_heartbeat = Some(sequence);
            lease.slack.on_heartbeat(lease.ttl);
            if lease.queue_renewal() {
                self.pending_commands
                    .push_back(PendingCommand::Renew(*lease_id));
            }
        }
    }

    fn acquire(&mut self, call_id: i64, span: Span, call: AcquireCall, number: u32) {
        let under = call.under.as_ref().map(|lease| lease.lease_id);
        let locks = call.targets.iter().map(|target| target.lock.clone());
        let Some(cancellation) = self.admit(call_id, under, locks.collect()) else {
            return;
        };
        self.note_activity();
        let context = StreamCallContext {
            call_id,
            attachment: self.attachment(number),
            heartbeats: Arc::clone(&self.heartbeats),
            events: Arc::clone(&self.events),
            cancellation,
            span,
        };
        let lock = call.first().clone();
        let (call, receiver) = self.broker.start_acquire(&self.caller, call, Some(context));
        self.calls.push(Box::pin(call));
        self.results.push(Box::pin(async move {
            let result = result_or_internal(&lock, receiver.await);
            completion(move |stream| stream.on_acquired(call_id, number, result))
        }));
    }

    /// Adds a pending call, or rejects it if the stream has too many leases and calls. The leases
    /// are not counted if the call is for a lease of this stream.
    fn admit(
        &mut self,
        call_id: i64,
        lease_id: Option<LeaseId>,
        locks: Vec<LockKey>,
    ) -> Option<CancellationToken> {
        let is_attached = lease_id.is_some_and(|lease_id| self.leases.contains_key(&lease_id));
        let lease_count = if is_attached { 0 } else { self.leases.len() };
        let error = if self.pending_calls.contains_key(&call_id) {
            CallError::CallIdReused
        } else if lease_count + self.pending_calls.len() >= LEASES_MAX {
            CallError::TooManyLeases
        } else {
            let cancellation = CancellationToken::new();
            let call = PendingCall {
                cancel: cancellation.clone(),
                locks,
                is_denied: false,
            };
            self.pending_calls.insert(call_id, call);
            return Some(cancellation);
        };
        self.send(StreamEvent::Refused { call_id, error });
        None
    }

    fn attachment(&self, number: u32) -> Attachment {
        let stream = self.id;
        Attachment { stream, number }
    }

    fn close(&mut self) {
        self.phase = Phase::Closing;
        self.cancel_pending_calls();
        let leases: Vec<_> = self.leases.keys().copied().collect();
        for lease_id in leases {
            self.release_lease(lease_id, ReleaseScope::All);
        }
        // Calls that are granted in the meantime are released as well.
        let results = std::mem::take(&mut self.results);
        self.jobs.extend(results);
    }

    /// Handles a disconnected client. Leases expire, or end after their disconnect grace. Calls are
    /// rolled back after [`QUEUE_GRACE`], unless the client repeats them.
    fn on_disconnect(&mut self) {
        if self.phase != Phase::Open {
            return;
        }
        self.phase = Phase::Broken;
        self.pending_calls.clear();
        self.results.clear();
        let leases: Vec<_> = self.leases.keys().copied().collect();
        for lease_id in leases {
            self.start_grace(lease_id, Duration::ZERO);
        }
    }

    fn cancel_pending_calls(&self) {
        self.pending_calls
            .values()
            .for_each(|call| call.cancel.cancel());
    }

    fn send(&mut self, event: StreamEvent) {
        if self.phase != Phase::Broken && !(self.events)(event) {
            self.on_disconnect();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use tokio::sync::mpsc;

    use super::*;
    use crate::store::stub::StubStore;

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_the_broker_ends_is_read_for_two_seconds_more() {
        let (sender, mut commands) = mpsc::channel(1);
        let expires_at = Instant::now() + QUEUE_GRACE;
        let caller = StreamCaller {
            name: Arc::default(),
            expires: Some(expires_at),
            reconnects_at: None,
        };
        let commands = stream::poll_fn(move |cx| commands.poll_recv(cx)).boxed();
        let broker = Broker::unlimited(Arc::new(StubStore::default()));
        let result = broker.hold(caller, commands, Arc::new(|_| true));
        result.expect("there is room");
        sleep_until(expires_at + DISCARD_AFTER_END / 2).await;
        for sequence in 0..100 {
            let heartbeat = StreamCommand::Heartbeat { sequence };
            sender.send(heartbeat).await.expect("it is read");
        }
        sender.closed().await;
        let duration = expires_at.elapsed();
        assert!(
            duration.abs_diff(DISCARD_AFTER_END) < RETRY_DELAY,
            "{duration:?}"
        );
    }
}
