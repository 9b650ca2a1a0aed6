//! One lease stream as its client sees it: what was sent when, and whether the other side answers.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use leasehold_proto::v1::{
    Close, Heartbeat, HoldRequest, HoldResponse, hold_request::Message as Request,
    hold_response::Message as Response, lock_service_client::LockServiceClient,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Streaming, transport::Endpoint};

use crate::{client::channel, clock::boottime};

const OPEN_LIMIT: Duration = Duration::from_secs(1);

/// What a call of this stream is about: a request id or a lease id.
#[derive(Debug, Clone)]
pub(super) enum About {
    Acquire(String),
    Attach(String),
    Release(String),
}

/// One stream on a connection of its own. Dropped, it breaks.
pub(super) struct Link {
    requests: mpsc::UnboundedSender<HoldRequest>,
    responses: Streaming<HoldResponse>,
    calls: HashMap<i64, (About, Duration)>,
    last_call: i64,
    /// When each heartbeat was sent.
    beats: Vec<Duration>,
    /// The first heartbeat after the last message.
    unanswered: Option<Duration>,
    /// The client was asked to leave at this time.
    pub(super) leave_at: Option<Duration>,
}

impl Link {
    /// `None`: nobody answers there. With `pings` a dead connection is noticed by itself.
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
            calls: HashMap::new(),
            last_call: 0,
            beats: Vec::new(),
            unanswered: None,
            leave_at: None,
        })
    }

    /// The next message; `None` once the stream has ended. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Response> {
        loop {
            let response = self.responses.message().await.ok()??;
            self.unanswered = None;
            if let Some(message) = response.message {
                return Some(message);
            }
        }
    }

    /// Sends a call, made from its id.
    pub(super) fn call(&mut self, about: About, message: impl FnOnce(i64) -> Request) {
        self.last_call += 1;
        let sent = boottime();
        self.calls.insert(self.last_call, (about, sent));
        self.send(message(self.last_call));
    }

    /// What an answer is about, and when that was sent.
    pub(super) fn answered(&mut self, call_id: i64) -> Option<(About, Duration)> {
        self.calls.remove(&call_id)
    }

    /// Sends a heartbeat.
    pub(super) fn beat(&mut self) {
        let now = boottime();
        self.beats.push(now);
        self.unanswered.get_or_insert(now);
        let sequence = i64::try_from(self.beats.len()).expect("few heartbeats");
        self.send(Request::Heartbeat(Heartbeat { sequence }));
    }

    /// When a heartbeat was sent.
    pub(super) fn beat_sent(&self, sequence: i64) -> Option<Duration> {
        let index = usize::try_from(sequence).ok()?.checked_sub(1)?;
        self.beats.get(index).copied()
    }

    /// When the last heartbeat was sent.
    pub(super) fn last_beat(&self) -> Option<Duration> {
        self.beats.last().copied()
    }

    /// Whether nothing has come since a heartbeat that was sent so long ago.
    pub(super) fn is_silent(&self, patience: Duration) -> bool {
        self.unanswered
            .is_some_and(|since| boottime() - since > patience)
    }

    /// Ends it in good order.
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
        // A stream that has ended says so where it is read.
        let _ = self.requests.send(HoldRequest { message });
    }
}
