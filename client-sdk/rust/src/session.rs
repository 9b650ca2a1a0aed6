//! The session task: keeps the leases and pending acquires of one stream alive, across brokers.

mod credential;
mod failover;
mod leases;
mod pending_acquires;
mod pool;
mod stream_connection;
mod timers;

use std::{collections::HashMap, time::Duration};

use futures::{
    future::{BoxFuture, OptionFuture},
    stream::{FuturesUnordered, StreamExt as _},
};
use leasehold_proto::v1::{
    GetLockRequest, GetLockResponse, LockRef, SetLockLimitRequest,
    hold_response::Message as Response,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Interval, MissedTickBehavior, interval, timeout},
};
use tonic::{Code, Status};

use self::{
    failover::Failover, leases::HeldLease, pending_acquires::PendingAcquire,
    stream_connection::CallKind,
};
pub(crate) use self::{
    pool::{CommandSender, SessionPool, StreamSlot},
    stream_connection::{StreamConnection, open_first_stream},
};
use crate::{
    client::SHUTDOWN_TIMEOUT,
    clock,
    command::Command,
    endpoint::{Connection, OpenError, SharedEndpoints},
    error::{Error, ErrorDetail, Holder, duration, from_refused, holder, refused_from_status},
};

/// Interval at which deadlines are checked. Timers alone are not enough: none runs through a
/// suspend.
const TICK: Duration = Duration::from_millis(50);

/// The result of a unary call.
enum CompletedCall {
    /// Release of the lease with this id, which was not attached to the stream.
    Released(String, Result<(), Box<Status>>),
    /// Inspection of a lock, whose caller has received the response.
    Inspected,
}

pub(crate) struct Session {
    endpoints: SharedEndpoints,
    stream: Option<Box<StreamConnection>>,
    failover: Failover,
    pending_acquires: HashMap<String, PendingAcquire>,
    leases: HashMap<String, HeldLease>,
    /// Lost leases whose guards still exist.
    lost_leases: HashMap<String, HeldLease>,
    /// Earliest time at which a lease, a pending acquire or the stream needs an action.
    next_deadline: Duration,
    /// Rejected calls to repeat, and the times at which to repeat them.
    retries: Vec<(Duration, CallKind)>,
    /// Unary calls in flight.
    unary_calls: FuturesUnordered<BoxFuture<'static, CompletedCall>>,
}

/// Next event of the task.
enum Event {
    Message(Option<Response>),
    StreamOpened(Result<Box<StreamConnection>, OpenError>),
    Command(Option<Command>),
    CallCompleted(CompletedCall),
    Tick,
}

impl Session {
    /// Creates a session. `first` is an open stream, and the index of its endpoint.
    pub(crate) fn new(
        endpoints: SharedEndpoints,
        first: Option<(usize, Box<StreamConnection>)>,
    ) -> Self {
        let (at, stream) = first.map_or((0, None), |(at, stream)| (at, Some(stream)));
        Self {
            endpoints,
            stream,
            failover: Failover::new(at),
            pending_acquires: HashMap::new(),
            leases: HashMap::new(),
            lost_leases: HashMap::new(),
            next_deadline: Duration::ZERO,
            retries: Vec::new(),
            unary_calls: FuturesUnordered::new(),
        }
    }

    /// Runs until a close command, or until all command senders are dropped.
    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        if self.stream.is_none() {
            self.start_failover(Duration::ZERO);
        }
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut done = None;
        loop {
            match self.next_event(&mut commands, &mut ticks).await {
                Event::Message(Some(message)) => self.on_message(message),
                Event::Message(None) => self.on_disconnect(),
                Event::StreamOpened(opened) => self.on_stream_opened(opened),
                Event::Command(Some(Command::Close { done: reply })) => {
                    done = Some(reply);
                    break;
                }
                Event::Command(Some(command)) => self.on_command(command),
                Event::Command(None) => break,
                Event::CallCompleted(CompletedCall::Released(lease_id, result)) => {
                    self.on_released(&lease_id, result)
                }
                Event::CallCompleted(CompletedCall::Inspected) => {}
                Event::Tick => self.on_tick(),
            }
        }
        self.close(done).await;
    }

    async fn next_event(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        ticks: &mut Interval,
    ) -> Event {
        let is_idle =
            self.pending_acquires.is_empty() && self.leases.is_empty() && self.failover.is_idle();
        let incoming = OptionFuture::from(self.stream.as_mut().map(|stream| stream.next()));
        tokio::select! {
            Some(message) = incoming => Event::Message(message),
            opened = self.failover.next_stream() => Event::StreamOpened(opened),
            command = commands.recv() => Event::Command(command),
            Some(done) = self.unary_calls.next() => Event::CallCompleted(done),
            _ = ticks.tick(), if !is_idle => Event::Tick,
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Acquire(acquire) => self.add_acquire(*acquire),
            Command::Cancel { request_id } => self.cancel_acquire(&request_id),
            Command::Release {
                lease_id,
                scope,
                reply,
            } => self.release_guard(&lease_id, scope, reply),
            Command::GetHolders { lock, reply } => self.call_once(reply, |connection| async move {
                let LockRef { namespace, name } = lock;
                let request = connection.request(GetLockRequest { namespace, name });
                match connection.inspection().get_lock(request).await {
                    Ok(state) => Ok(holders(state.into_inner())),
                    Err(status) if status.code() == Code::NotFound => Ok(Vec::new()),
                    Err(status) => Err(status),
                }
            }),
            Command::SetLimit { lock, limit, reply } => {
                let request = SetLockLimitRequest {
                    lock: Some(lock),
                    // Larger values are rejected by the broker as too large.
                    limit: i32::try_from(limit.unwrap_or(0)).unwrap_or(i32::MAX),
                };
                self.call_once(reply, |connection| async move {
                    let request = connection.request(request);
                    let response = connection.locks().set_lock_limit(request).await?;
                    let previous = u32::try_from(response.into_inner().previous_limit);
                    Ok(previous.ok().filter(|limit| *limit > 0))
                });
            }
            Command::Close { .. } => {}
        }
    }

    /// Makes a unary call on the present connection, without repeating it.
    fn call_once<T, F>(
        &mut self,
        reply: oneshot::Sender<Result<T, Error>>,
        call: impl FnOnce(Connection) -> F,
    ) where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let Some(stream) = &self.stream else {
            let detail = ErrorDetail::new(self.failover.unavailable_reason());
            // The caller may have been dropped.
            let _ = reply.send(Err(Error::Unavailable(detail)));
            return;
        };
        let call = call(stream.connection.clone());
        self.unary_calls.push(Box::pin(async move {
            let result = call.await;
            let _ =
                reply.send(result.map_err(|status| from_refused(&refused_from_status(&status))));
            CompletedCall::Inspected
        }));
    }

    fn on_message(&mut self, message: Response) {
        match message {
            Response::Queued(queued) => self.on_queued(&queued),
            Response::Granted(granted) => self.on_granted(granted),
            Response::Refused(refused) => self.on_refused(&refused),
            Response::Attached(attached) => self.on_attached(&attached),
            Response::Ack(ack) => self.on_heartbeat_ack(ack),
            Response::Released(released) => {
                let completed = self.complete_call(released.call_id);
                match completed {
                    Some((CallKind::Release(lease_id, None), _)) => {
                        self.on_released(&lease_id, Ok(()));
                    }
                    Some((CallKind::Release(lease_id, Some(part)), _)) => {
                        self.on_partial_release(&lease_id, part, Ok(released.hold_count));
                    }
                    Some((
                        CallKind::Acquire(_)
                        | CallKind::Attach(_)
                        | CallKind::Credential(_)
                        | CallKind::Ignored,
                        _,
                    ))
                    | None => {}
                }
            }
            Response::Ended(ended) => self.on_ended(&ended),
            Response::ReleaseRequested(request) => {
                tracing::info!(
                    lease_id = request.lease_id,
                    within = ?duration(request.grace),
                    "the broker requests the release of a lease: {}", request.message
                );
            }
            Response::Reconnect(reconnect) => self.start_failover(duration(reconnect.delay)),
            Response::Done(done) => {
                if let Some((CallKind::Credential(credential), _)) =
                    self.complete_call(done.call_id)
                {
                    self.on_credential_accepted(credential);
                }
            }
        }
    }

    fn on_tick(&mut self) {
        let now = clock::now();
        self.expire_pending(now);
        self.poll_timers(now);
        self.refresh_credential(now);
        self.send_retries(now);
        self.poll_connect(now);
    }

    fn complete_call(&mut self, call_id: i64) -> Option<(CallKind, Duration)> {
        self.stream.as_mut()?.complete(call_id)
    }

    /// Repeats the rejected calls that are due.
    fn send_retries(&mut self, now: Duration) {
        if self.stream.is_none() {
            return;
        }
        let due: Vec<_> = self.retries.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, kind) in due {
            match kind {
                CallKind::Acquire(request_id) => self.send_acquire(&request_id),
                CallKind::Attach(lease_id) => self.attach(&lease_id),
                CallKind::Release(lease_id, None) => self.send_release(&lease_id),
                CallKind::Release(lease_id, Some(part)) => {
                    self.send_partial_release(&lease_id, part)
                }
                CallKind::Credential(_) | CallKind::Ignored => {}
            }
        }
    }

    /// Releases all leases and fails all pending acquires.
    async fn close(mut self, done: Option<oneshot::Sender<()>>) {
        for (_, mut pending) in self.pending_acquires.drain() {
            pending.complete(Err(Error::Closed));
        }
        self.release_all_lost().await;
        let leases = self.leases.drain();
        let releases: Vec<_> = leases
            .filter_map(|(_, held_lease)| held_lease.into_release())
            .collect();
        let is_closed = match self.stream.take() {
            Some(stream) => timeout(SHUTDOWN_TIMEOUT / 2, stream.close()).await.is_ok(),
            None => false,
        };
        for release in releases {
            release.complete_on_close(is_closed);
        }
        if let Some(done) = done {
            // The caller may have been dropped.
            let _ = done.send(());
        }
    }
}

fn holders(state: GetLockResponse) -> Vec<Holder> {
    let lock = state.lock.unwrap_or_default();
    lock.holders.iter().map(holder).collect()
}
