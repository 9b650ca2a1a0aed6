//! One lease stream of a client: pending calls, times of heartbeats, and detection of silence.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use leasehold_proto::v1::{
    Close, Heartbeat, HoldRequest, HoldResponse, hold_request::Message as Request,
    hold_response::Message as Response, lock_service_client::LockServiceClient,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Streaming, transport::Endpoint};

use crate::{client::unary::channel, clock::boottime};

const OPEN_LIMIT: Duration = Duration::from_secs(1);

/// The subject of a call: a request id or a lease id.
#[derive(Debug, Clone)]
pub(super) enum CallKind {
    Acquire(String),
    Attach(String),
    Release(String),
}

/// A stream on its own connection. Dropping it breaks the stream.
pub(super) struct StreamConnection {
    requests: mpsc::UnboundedSender<HoldRequest>,
    responses: Streaming<HoldResponse>,
    pending_calls: HashMap<i64, (CallKind, Duration)>,
    last_call: i64,
    /// Send times of the heartbeats.
    heartbeats: Vec<Duration>,
    /// Send time of the first heartbeat after the last received message.
    unanswered_since: Option<Duration>,
    /// Time at which the broker requested the client to leave.
    pub(super) reconnect_at: Option<Duration>,
}

impl StreamConnection {
    /// Opens a stream. Returns `None` if the broker does not respond. With `pings`, HTTP/2
    /// keepalive detects a dead connection.
    pub(super) async fn open(broker: SocketAddr, pings: bool) -> Option<Self> {
        let (requests, outgoing) = mpsc::unbounded_channel();
        let channel = if pings {
            channel(broker)
        } else {
            let endpoint = Endpoint::from_shared(format!("http://{broker}"));
            endpoint.expect("a socket address").connect_lazy()
        };
        let mut locks = LockServiceClient::new(channel);
        let opened = locks.hold(UnboundedReceiverStream::new(outgoing));
        let responses = timeout(OPEN_LIMIT, opened).await.ok()?.ok()?.into_inner();
        Some(Self {
            requests,
            responses,
            pending_calls: HashMap::new(),
            last_call: 0,
            heartbeats: Vec::new(),
            unanswered_since: None,
            reconnect_at: None,
        })
    }

    /// Returns the next message, or `None` once the stream has ended. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Response> {
        loop {
            let response = self.responses.message().await.ok()??;
            self.unanswered_since = None;
            if let Some(message) = response.message {
                return Some(message);
            }
        }
    }

    /// Sends a call, built from its id.
    pub(super) fn send_call(&mut self, about: CallKind, message: impl FnOnce(i64) -> Request) {
        self.last_call += 1;
        let sent = boottime();
        self.pending_calls.insert(self.last_call, (about, sent));
        self.send(message(self.last_call));
    }

    /// Removes a pending call, and returns its subject and its send time.
    pub(super) fn complete(&mut self, call_id: i64) -> Option<(CallKind, Duration)> {
        self.pending_calls.remove(&call_id)
    }

    pub(super) fn send_heartbeat(&mut self) {
        let now = boottime();
        self.heartbeats.push(now);
        self.unanswered_since.get_or_insert(now);
        let sequence = i64::try_from(self.heartbeats.len()).expect("few heartbeats");
        self.send(Request::Heartbeat(Heartbeat { sequence }));
    }

    /// Returns the send time of a heartbeat.
    pub(super) fn heartbeat_sent_at(&self, sequence: i64) -> Option<Duration> {
        let index = usize::try_from(sequence).ok()?.checked_sub(1)?;
        self.heartbeats.get(index).copied()
    }

    /// Returns the send time of the last heartbeat.
    pub(super) fn last_heartbeat_at(&self) -> Option<Duration> {
        self.heartbeats.last().copied()
    }

    /// Returns true if no message has arrived since a heartbeat that was sent more than `patience`
    /// ago.
    pub(super) fn is_silent(&self, patience: Duration) -> bool {
        self.unanswered_since
            .is_some_and(|since| boottime() - since > patience)
    }

    /// Closes the stream normally.
    pub(super) async fn close(self) {
        self.send(Request::Close(Close {}));
        let Self {
            requests,
            mut responses,
            ..
        } = self;
        drop(requests);
        while let Ok(Some(_)) = responses.message().await {}
    }

    fn send(&self, message: Request) {
        let message = Some(message);
        // If the stream has ended, the reader detects it.
        let _ = self.requests.send(HoldRequest { message });
    }
}
