//! Lease streams of a client.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use futures::stream::{self, BoxStream, StreamExt as _};
use leasehold_server::{
    broker::lease_stream::{CallError, EventSink, StreamCaller, StreamCommand, StreamEvent},
    lock::{LeaseId, LockError},
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{Client, Job};
use crate::{
    history::EventKind,
    simulation::{
        store::{BrokerLink, locked},
        world::{CallFailure, World},
    },
};

/// Interval between heartbeats: a third of the shortest ttl.
const HEARTBEAT_MS: u64 = 333;
/// Delay before a client connects to the next broker.
const RECONNECT_MS: u64 = 100;

/// An open stream.
pub(super) struct OpenStream {
    pub(super) number: u64,
    /// Name of the broker process.
    pub(super) broker: String,
    world: Arc<World>,
    link: Arc<BrokerLink>,
    commands: UnboundedSender<(Instant, StreamCommand)>,
    events: UnboundedReceiver<(Instant, StreamEvent)>,
    /// Event that has not arrived yet.
    arriving: Option<(Instant, StreamEvent)>,
    cut: CancellationToken,
    to_broker: Arc<Wire>,
    to_client: Arc<Wire>,
    last_heartbeat: i64,
    heartbeats_sent: BTreeMap<i64, u64>,
    pub(super) attaching: BTreeMap<i64, LeaseId>,
}

/// One direction of a connection: delivers messages in order.
#[derive(Default)]
struct Wire {
    last: Mutex<Option<Instant>>,
    silent_until: Mutex<Option<Instant>>,
}

impl Wire {
    fn arrival(&self, world: &World) -> Instant {
        let at = Instant::now() + world.network_delay();
        let mut last = locked(&self.last);
        let at = at.max(last.unwrap_or(at));
        let at = at.max(locked(&self.silent_until).unwrap_or(at));
        *last = Some(at);
        at
    }
}

impl OpenStream {
    pub(super) fn send(&mut self, command: StreamCommand) {
        let at = self.to_broker.arrival(&self.world);
        // The receiver is gone if the broker has ended the stream.
        let _ = self.commands.send((at, command));
    }

    /// Delays all messages until a time.
    pub(super) fn silence_until(&self, until: Instant) {
        for wire in [&self.to_broker, &self.to_client] {
            *locked(&wire.silent_until) = Some(until);
        }
    }
}

/// Returns the next event of the stream, or `None` if it is closed. Waits forever without a stream.
/// Cancel safe.
pub(super) async fn next_event(stream: &mut Option<OpenStream>) -> Option<StreamEvent> {
    let Some(stream) = stream else {
        return std::future::pending().await;
    };
    let link = Arc::clone(&stream.link);
    tokio::select! {
        biased;
        () = link.killed.cancelled() => None,
        event = stream.next() => event,
    }
}

impl OpenStream {
    async fn next(&mut self) -> Option<StreamEvent> {
        if self.arriving.is_none() {
            self.arriving = self.events.recv().await;
        }
        let at = self.arriving.as_ref()?.0;
        sleep_until(at).await;
        self.arriving.take().map(|(_, event)| event)
    }
}

impl Client {
    /// Opens a stream at the next broker, moves all leases to it and repeats all pending calls.
    pub(super) fn connect(&mut self) {
        if self.stream.is_some() {
            return;
        }
        let running = self.world.broker(self.address);
        let Some(running) = running.filter(|running| !running.broker.is_draining()) else {
            self.address += 1;
            return self.schedule(RECONNECT_MS, Job::Connect);
        };
        let number = self.world.next_number();
        let (commands, received) = mpsc::unbounded_channel();
        let (sink, events) = mpsc::unbounded_channel();
        let (to_broker, to_client) = (Arc::<Wire>::default(), Arc::<Wire>::default());
        let cut = CancellationToken::new();
        let (world, link, wire) = (
            Arc::clone(&self.world),
            Arc::clone(&running.link),
            Arc::clone(&to_client),
        );
        let sink: EventSink = Arc::new(move |event| {
            let at = wire.arrival(&world);
            !link.killed.is_cancelled() && sink.send((at, event)).is_ok()
        });
        let caller = StreamCaller {
            name: Arc::default(),
            expires: None,
            reconnects_at: None,
        };
        let received = deliver(received, cut.clone(), Arc::clone(&running.link));
        running
            .broker
            .hold(caller, received, sink)
            .expect("there is room");
        self.stream = Some(OpenStream {
            number,
            broker: running.name.clone(),
            world: Arc::clone(&self.world),
            link: running.link,
            commands,
            events,
            arriving: None,
            cut,
            to_broker,
            to_client,
            last_heartbeat: 0,
            heartbeats_sent: BTreeMap::new(),
            attaching: BTreeMap::new(),
        });
        let opened = EventKind::StreamOpened {
            stream: number,
            broker: running.name,
        };
        self.record(opened);
        for lease_id in self.lease_ids() {
            self.attach(lease_id);
        }
        self.repeat_pending_calls();
        self.send_heartbeat(number);
    }

    /// Breaks the stream.
    pub(super) fn close_stream(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.cut.cancel();
            let stream = stream.number;
            self.record(EventKind::StreamClosed { stream });
        }
        // Their outcome is unknown: they are repeated as unary calls.
        for release in std::mem::take(&mut self.releases).into_values() {
            let failure = Err(CallFailure::Unreachable);
            self.on_released(release.lease_id, release.release, failure);
        }
    }

    pub(super) fn on_stream_closed(&mut self) {
        self.close_stream();
        self.address += 1;
        self.schedule(RECONNECT_MS, Job::Connect);
    }

    pub(super) fn send_heartbeat(&mut self, number: u64) {
        let now_us = self.world.now_us();
        let Some(stream) = self
            .stream
            .as_mut()
            .filter(|stream| stream.number == number)
        else {
            return;
        };
        stream.last_heartbeat += 1;
        let sequence = stream.last_heartbeat;
        stream.heartbeats_sent.insert(sequence, now_us);
        if stream.heartbeats_sent.len() > 200 {
            stream.heartbeats_sent.pop_first();
        }
        stream.send(StreamCommand::Heartbeat { sequence });
        self.schedule(HEARTBEAT_MS, Job::Heartbeat(number));
    }

    pub(super) fn on_stream_event(&mut self, event: StreamEvent) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let attempt = |call_id: i64| u64::try_from(call_id).expect("a number of an attempt");
        match event {
            StreamEvent::Queued(update) => {
                let queued = EventKind::Queued {
                    attempt: attempt(update.call_id),
                    lock: update.lock.name().to_owned(),
                    position: update.position,
                };
                self.record(queued);
            }
            StreamEvent::Granted {
                call_id,
                lease,
                as_of,
            } => {
                let heartbeat = stream.heartbeats_sent.get(&as_of).copied();
                self.on_granted(attempt(call_id), lease, heartbeat);
            }
            StreamEvent::Refused { call_id, error } => self.on_refused(call_id, error),
            StreamEvent::Attached {
                call_id, lease_id, ..
            } => {
                stream.attaching.remove(&call_id);
                self.on_attached(lease_id);
            }
            StreamEvent::Acknowledged {
                sequence, leases, ..
            } => {
                let sent_at_us = stream.heartbeats_sent.get(&sequence).copied();
                for renewed in leases {
                    if let Some(sent_at_us) = sent_at_us {
                        self.on_acknowledged(sent_at_us, &renewed);
                    }
                }
            }
            StreamEvent::Released { call_id, result } => {
                if let Some(release) = self.releases.remove(&call_id) {
                    self.on_released(release.lease_id, release.release, Ok(result));
                }
            }
            StreamEvent::Ended { lease_id, reason } => self.on_lease_ended(lease_id, &reason),
            StreamEvent::Reconnect { .. } => self.on_stream_closed(),
            StreamEvent::ReleaseRequested { .. } | StreamEvent::Done { .. } => {}
        }
    }

    fn on_refused(&mut self, call_id: i64, error: CallError) {
        if let Some(release) = self.releases.remove(&call_id) {
            return self.on_release_refused(release, error);
        }
        let error = error_of(error);
        let stream = self.stream.as_mut();
        if let Some(lease_id) = stream.and_then(|stream| stream.attaching.remove(&call_id)) {
            self.on_attach_refused(lease_id, &error);
        } else {
            let attempt = u64::try_from(call_id).expect("a number of an attempt");
            self.on_rejected(attempt, &CallFailure::Failed(error));
        }
    }
}

/// Returns the error of a call on a stream.
pub(super) fn error_of(error: CallError) -> LockError {
    match error {
        CallError::Failed(failure) => failure.error,
        CallError::Cancelled => LockError::Cancelled,
        // The call may be repeated as a unary call.
        CallError::NotHere => LockError::StoreUnavailable,
        CallError::CallIdReused
        | CallError::TooManyLeases
        | CallError::TooManyCommands
        | CallError::Denied => LockError::Internal,
    }
}

/// Delivers the messages of a client to its broker, in order and each at its time, until the
/// connection is cut.
fn deliver(
    commands: UnboundedReceiver<(Instant, StreamCommand)>,
    cut: CancellationToken,
    link: Arc<BrokerLink>,
) -> BoxStream<'static, StreamCommand> {
    let state = (commands, cut, link);
    let delivered = stream::unfold(state, |(mut commands, cut, link)| async move {
        let arrived = async {
            let (at, command) = commands.recv().await?;
            sleep_until(at).await;
            link.ready().await;
            Some(command)
        };
        let command = tokio::select! {
            biased;
            () = cut.cancelled() => None,
            command = arrived => command,
        };
        command.map(|command| (command, (commands, cut, link)))
    });
    delivered.boxed()
}
