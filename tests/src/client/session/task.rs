//! The task of a holder, which moves leases and waits from stream to stream.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use leasehold_proto::v1::{
    AcquireRequest, AttachLease, HoldAcquire, HoldRelease, Lease, Refused,
    hold_request::Message as Request,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{interval, sleep},
};
use tonic::Code;

use super::{
    Counters, LeaseEnd, LeaseState, SessionCommand, SessionLease,
    connection::{CallKind, StreamConnection},
};
use crate::clock::boottime;

const TICK_INTERVAL: Duration = Duration::from_millis(25);
/// Longest interval between heartbeats while a call waits.
const WAITING_HEARTBEAT_MAX: Duration = Duration::from_secs(2);
/// Maximum random delay before a reconnect, so that the clients of a failed broker do not all
/// reconnect at the same time.
const RECONNECT_JITTER_MAX: Duration = Duration::from_millis(100);
/// Time beyond its wait for which a call of unknown outcome is repeated.
pub(super) const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct PendingAcquire {
    pub(super) request: AcquireRequest,
    pub(super) until: Duration,
    pub(super) attach_number: i32,
    pub(super) reply: oneshot::Sender<Result<SessionLease, Refused>>,
}

pub(super) struct TrackedLease {
    pub(super) lease: Lease,
    pub(super) attach_number: i32,
    /// True if the lease is attached to the current stream.
    pub(super) is_attached: bool,
    pub(super) state: watch::Sender<LeaseState>,
    pub(super) release: Option<oneshot::Sender<LeaseEnd>>,
}

/// Reason why the processing of a stream ended.
enum StreamEnd {
    Broken,
    ReconnectRequested,
    Closed,
    Dropped,
}

pub(super) struct Session {
    endpoints: Vec<SocketAddr>,
    endpoint: usize,
    silence_timeout: Duration,
    pub(super) counters: Arc<Counters>,
    pub(super) pending_acquires: HashMap<String, PendingAcquire>,
    pub(super) leases: HashMap<String, TrackedLease>,
    /// Calls that were rejected with a retryable error, and the times of their repeats.
    pub(super) retries: Vec<(Duration, CallKind)>,
}

impl Session {
    pub(super) fn new(
        endpoints: &[SocketAddr],
        first: usize,
        silence_timeout: Duration,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            endpoints: endpoints.to_vec(),
            endpoint: first,
            silence_timeout,
            counters,
            pending_acquires: HashMap::new(),
            leases: HashMap::new(),
            retries: Vec::new(),
        }
    }

    pub(super) async fn run(mut self, mut orders: mpsc::UnboundedReceiver<SessionCommand>) {
        loop {
            let endpoint = self.endpoints[self.endpoint % self.endpoints.len()];
            let ended = match StreamConnection::open(endpoint, self.silence_timeout < Duration::MAX)
                .await
            {
                Some(mut link) => {
                    self.counters.opened.send_modify(|count| *count += 1);
                    match self.run_stream(&mut link, &mut orders).await {
                        StreamEnd::Closed => return link.close().await,
                        ended @ (StreamEnd::Broken
                        | StreamEnd::ReconnectRequested
                        | StreamEnd::Dropped) => ended,
                    }
                }
                None => StreamEnd::Broken,
            };
            match ended {
                StreamEnd::Broken => {
                    self.counters.broken.fetch_add(1, Ordering::Relaxed);
                }
                StreamEnd::ReconnectRequested => {}
                StreamEnd::Closed | StreamEnd::Dropped => return,
            }
            self.endpoint += 1;
            sleep(RECONNECT_JITTER_MAX.mul_f64(rand::random::<f64>())).await;
            self.fail_overdue();
        }
    }

    async fn run_stream(
        &mut self,
        link: &mut StreamConnection,
        orders: &mut mpsc::UnboundedReceiver<SessionCommand>,
    ) -> StreamEnd {
        self.resume_all(link);
        let mut tick = interval(TICK_INTERVAL);
        loop {
            tokio::select! {
                message = link.next() => match message {
                    Some(message) => self.on_message(link, message),
                    None => return StreamEnd::Broken,
                },
                order = orders.recv() => match order {
                    Some(SessionCommand::Close) => return StreamEnd::Closed,
                    Some(order) => self.on_command(link, order).await,
                    None => return StreamEnd::Dropped,
                },
                _ = tick.tick() => {
                    let now = boottime();
                    if self.has_attached_leases() && link.is_silent(self.silence_timeout) {
                        return StreamEnd::Broken;
                    }
                    if link.reconnect_at.is_some_and(|at| at <= now) {
                        return StreamEnd::ReconnectRequested;
                    }
                    self.heartbeat_if_due(link, now);
                    self.send_due_retries(link, now);
                }
            }
        }
    }

    /// Sends all leases and waits to a new stream.
    fn resume_all(&mut self, link: &mut StreamConnection) {
        self.retries.clear();
        let leases: Vec<_> = self.leases.keys().cloned().collect();
        for lease_id in leases {
            self.send_attach(link, lease_id);
        }
        let waits: Vec<_> = self.pending_acquires.keys().cloned().collect();
        for request_id in waits {
            self.send_acquire(link, request_id);
        }
    }

    async fn on_command(&mut self, link: &mut StreamConnection, order: SessionCommand) {
        match order {
            SessionCommand::Acquire {
                request,
                wait_time: wait,
                answer,
            } => {
                let request_id = request.request_id.clone();
                let wait = PendingAcquire {
                    request: *request,
                    until: boottime() + wait,
                    attach_number: 0,
                    reply: answer,
                };
                self.pending_acquires.insert(request_id.clone(), wait);
                self.send_acquire(link, request_id);
            }
            SessionCommand::Release { lease_id, answer } => {
                // Without a lease the sender is dropped, because the lease has already ended.
                if let Some(owned) = self.leases.get_mut(&lease_id) {
                    owned.release = Some(answer);
                    if owned.is_attached {
                        send_release(link, lease_id);
                    }
                }
            }
            SessionCommand::Stall(time) => sleep(time).await,
            SessionCommand::Close => {}
        }
    }

    fn send_acquire(&mut self, link: &mut StreamConnection, request_id: String) {
        let Some(wait) = self.pending_acquires.get_mut(&request_id) else {
            return;
        };
        wait.attach_number += 1;
        if wait.attach_number > 1 {
            // A repeated call whose wait has ended is sent once more, without waiting.
            let remaining = wait.until.saturating_sub(boottime());
            wait.request.wait_timeout = remaining.try_into().ok();
        }
        let (request, attach_number) = (Some(wait.request.clone()), wait.attach_number);
        link.send_call(CallKind::Acquire(request_id), |call_id| {
            Request::Acquire(HoldAcquire {
                call_id,
                request,
                attach_number,
                ..HoldAcquire::default()
            })
        });
    }

    /// Attaches a lease to this stream if the lease is still valid.
    fn send_attach(&mut self, link: &mut StreamConnection, lease_id: String) {
        let Some(owned) = self.leases.get_mut(&lease_id) else {
            return;
        };
        owned.is_attached = false;
        if boottime() >= owned.state.borrow().valid_until {
            return self.end_lease(&lease_id, LeaseEnd::ValidityEnded);
        }
        owned.attach_number += 1;
        let (lease, attach_number) = (Some(owned.lease.clone()), owned.attach_number);
        link.send_call(CallKind::Attach(lease_id), |call_id| {
            Request::Attach(AttachLease {
                call_id,
                lease,
                attach_number,
            })
        });
    }

    fn has_attached_leases(&self) -> bool {
        self.leases.values().any(|owned| owned.is_attached)
    }

    fn heartbeat_if_due(&self, link: &mut StreamConnection, now: Duration) {
        let leases = self.leases.values();
        let held = leases.clone().map(|owned| owned.state.borrow().ttl / 3);
        let waiting = self.pending_acquires.values();
        let waiting =
            waiting.map(|wait| (duration_or_zero(wait.request.ttl) / 3).min(WAITING_HEARTBEAT_MAX));
        let Some(every) = held.chain(waiting).min() else {
            return;
        };
        // A lease that was just attached may expire soon.
        let last = link.last_heartbeat_at();
        let attached =
            |owned: &TrackedLease| owned.is_attached && owned.state.borrow().attached_at > last;
        if last.is_none_or(|last| now >= last + every) || leases.clone().any(attached) {
            link.send_heartbeat();
        }
    }

    fn send_due_retries(&mut self, link: &mut StreamConnection, now: Duration) {
        let due = self.retries.extract_if(.., |(at, _)| *at <= now);
        let due: Vec<_> = due.collect();
        for (_, about) in due {
            match about {
                CallKind::Acquire(request_id) => self.send_acquire(link, request_id),
                CallKind::Attach(lease_id) => self.send_attach(link, lease_id),
                CallKind::Release(lease_id) => send_release(link, lease_id),
            }
        }
    }

    /// Fails the calls whose repeats have lasted too long, because no broker responds.
    fn fail_overdue(&mut self) {
        let now = boottime();
        let overdue = self
            .pending_acquires
            .extract_if(|_, wait| wait.until + RETRY_TIMEOUT < now);
        for (_, wait) in overdue {
            let refused = Refused {
                code: Code::Unavailable.into(),
                ..Refused::default()
            };
            let _ = wait.reply.send(Err(refused));
        }
    }
}

pub(super) fn send_release(link: &mut StreamConnection, lease_id: String) {
    link.send_call(CallKind::Release(lease_id.clone()), |call_id| {
        Request::Release(HoldRelease {
            call_id,
            lease_id,
            ..HoldRelease::default()
        })
    });
}

pub(super) fn duration_or_zero(time: Option<prost_types::Duration>) -> Duration {
    time.and_then(|time| time.try_into().ok())
        .unwrap_or_default()
}
