//! One lease stream as its client sees it: what was sent when, and whether the other side answers.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use leasehold_proto::v1::{
    Close, Heartbeat, HoldRequest, HoldResponse, hold_request::Message as Request,
    hold_response::Message as Response,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use crate::{
    clock,
    endpoint::{Brokers, Connection, Credential, NotOpen, OPEN_LIMIT},
};

/// Heartbeats whose time of sending is remembered. An acknowledgement of an older one is of no use.
const BEATS_KEPT: usize = 256;

/// What a call of the stream is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum About {
    /// A request.
    Acquire(String),
    /// A lease.
    Attach(String),
    /// A lease, or the part of it with this number.
    Release(String, Option<u64>),
    /// What is to be shown from now on.
    Credential(Credential),
    /// Nothing that an answer is waited for.
    Nothing,
}

/// One stream. Dropped, it breaks.
pub(crate) struct Link {
    pub(super) connection: Connection,
    requests: mpsc::UnboundedSender<HoldRequest>,
    responses: Streaming<HoldResponse>,
    calls: HashMap<i64, (About, Duration)>,
    last_call: i64,
    /// When the newest heartbeats were sent, and the sequence of the first of them.
    beats: VecDeque<Duration>,
    first_kept: i64,
    /// The first heartbeat after the last message.
    unanswered: Option<Duration>,
    /// When the credential was looked at.
    pub(super) looked_at: Duration,
}

/// The first endpoint that answers, and a stream to it.
pub(crate) async fn first_link(brokers: &Brokers) -> Result<(usize, Box<Link>), NotOpen> {
    let (mut why, mut is_denied) = (Vec::new(), true);
    for at in 0..brokers.endpoints.len() {
        match Link::open(brokers, at).await {
            Ok(link) => return Ok((at, link)),
            Err(not_open) => {
                is_denied &= not_open.is_denied;
                why.push(not_open.why);
            }
        }
    }
    let why = why.join("; ");
    Err(NotOpen { why, is_denied })
}

impl Link {
    /// Opens a stream on a connection of its own.
    pub(super) async fn open(brokers: &Brokers, at: usize) -> Result<Box<Self>, NotOpen> {
        let endpoint = &brokers.endpoints[at % brokers.endpoints.len()];
        let open = async {
            let credential = brokers.source.now();
            let credential = credential.map_err(|error| NotOpen::new(error.to_string()))?;
            let connection = endpoint.connect(credential).await?;
            let (requests, outgoing) = mpsc::unbounded_channel();
            let outgoing = UnboundedReceiverStream::new(outgoing);
            let responses = connection.hold(outgoing).await;
            let responses = responses.map_err(|not_open| NotOpen {
                why: format!("{}: {}", endpoint.name(), not_open.why),
                // A credential that was replaced meanwhile says nothing of the next one.
                is_denied: not_open.is_denied
                    && brokers.source.is_still(connection.credential.as_ref()),
            })?;
            Ok(Box::new(Self {
                connection,
                requests,
                responses,
                calls: HashMap::new(),
                last_call: 0,
                beats: VecDeque::new(),
                first_kept: 1,
                unanswered: None,
                looked_at: clock::now(),
            }))
        };
        let late = |_| {
            let why = format!("{}: no answer within {OPEN_LIMIT:?}", endpoint.name());
            Err(NotOpen::new(why))
        };
        timeout(OPEN_LIMIT, open).await.unwrap_or_else(late)
    }

    /// The next message; `None` once the stream has ended. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Response> {
        loop {
            let response = self.responses.message().await.ok()??;
            self.unanswered = None;
            // An unknown message is of a newer broker.
            if let Some(message) = response.message {
                return Some(message);
            }
        }
    }

    /// Sends a call, made from its id, which it returns.
    pub(super) fn call(&mut self, about: About, message: impl FnOnce(i64) -> Request) -> i64 {
        self.last_call += 1;
        let sent = clock::now();
        self.send(message(self.last_call));
        self.calls.insert(self.last_call, (about, sent));
        self.last_call
    }

    /// Sends a message that is no call.
    pub(super) fn send(&self, message: Request) {
        let message = Some(message);
        // A stream that has ended says so where it is read.
        let _ = self.requests.send(HoldRequest { message });
    }

    /// What a call is about that has no answer yet.
    pub(super) fn asked(&self, call_id: i64) -> Option<&About> {
        self.calls.get(&call_id).map(|(about, _)| about)
    }

    /// Whether the broker was shown a newer credential, and has not answered.
    pub(super) fn is_showing(&self) -> bool {
        let mut calls = self.calls.values();
        calls.any(|(about, _)| matches!(about, About::Credential(_)))
    }

    /// What an answer is about, and when that was sent.
    pub(super) fn answered(&mut self, call_id: i64) -> Option<(About, Duration)> {
        self.calls.remove(&call_id)
    }

    /// Sends a heartbeat.
    pub(super) fn beat(&mut self) {
        let now = clock::now();
        self.unanswered.get_or_insert(now);
        if self.beats.len() == BEATS_KEPT {
            self.beats.pop_front();
            self.first_kept += 1;
        }
        self.beats.push_back(now);
        let sequence = self
            .first_kept
            .saturating_add_unsigned(self.beats.len() as u64)
            - 1;
        self.send(Request::Heartbeat(Heartbeat { sequence }));
    }

    /// When a heartbeat was sent.
    pub(super) fn beat_sent(&self, sequence: i64) -> Option<Duration> {
        let index = sequence.checked_sub(self.first_kept)?;
        self.beats.get(usize::try_from(index).ok()?).copied()
    }

    /// When the newest heartbeat was sent.
    pub(super) fn last_beat(&self) -> Option<Duration> {
        self.beats.back().copied()
    }

    /// Since when nothing has answered a heartbeat.
    pub(super) fn silent_since(&self) -> Option<Duration> {
        self.unanswered
    }

    /// Ends it in good order: the broker releases every lease that is on it.
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
}
