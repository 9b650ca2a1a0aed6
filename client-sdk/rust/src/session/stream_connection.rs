//! One lease stream of a client: its calls, heartbeats, and silence of the broker.

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
    endpoint::{Connection, Credential, Endpoints, OPEN_TIMEOUT, OpenError},
};

/// Number of heartbeats whose send time is stored. Confirmations of older ones are ignored.
const HEARTBEATS_STORED_MAX: usize = 256;

/// The subject of a call on the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallKind {
    /// An acquire, by its request id.
    Acquire(String),
    /// The attachment of a lease, by its id.
    Attach(String),
    /// The release of a lease by its id, or of its part with this number.
    Release(String, Option<u64>),
    /// A refresh of the credential.
    Credential(Credential),
    /// A call whose response is ignored.
    Ignored,
}

/// A lease stream. Dropping it breaks the stream.
pub(crate) struct StreamConnection {
    pub(super) connection: Connection,
    requests: mpsc::UnboundedSender<HoldRequest>,
    responses: Streaming<HoldResponse>,
    pending_calls: HashMap<i64, (CallKind, Duration)>,
    last_call_id: i64,
    /// Send times of the newest heartbeats. `first_kept` is the sequence number of the first of
    /// them.
    heartbeats: VecDeque<Duration>,
    first_stored: i64,
    /// Send time of the first heartbeat since the last received message.
    unanswered_since: Option<Duration>,
    /// Time at which the credential was checked last.
    pub(super) credential_checked_at: Duration,
}

/// Opens a stream to the first endpoint that responds, and returns it with the endpoint's index.
pub(crate) async fn open_first_stream(
    brokers: &Endpoints,
) -> Result<(usize, Box<StreamConnection>), OpenError> {
    let (mut reasons, mut is_denied) = (Vec::new(), true);
    for at in 0..brokers.list.len() {
        match StreamConnection::open(brokers, at).await {
            Ok(link) => return Ok((at, link)),
            Err(error) => {
                is_denied &= error.is_denied;
                reasons.push(error.reason);
            }
        }
    }
    let reason = reasons.join("; ");
    Err(OpenError { reason, is_denied })
}

impl StreamConnection {
    /// Opens a stream on a new connection.
    pub(super) async fn open(brokers: &Endpoints, at: usize) -> Result<Box<Self>, OpenError> {
        let endpoint = &brokers.list[at % brokers.list.len()];
        let open = async {
            let credential = brokers.credentials.current();
            let credential = credential.map_err(|error| OpenError::new(error.to_string()))?;
            let connection = endpoint.connect(credential).await?;
            let (requests, outgoing) = mpsc::unbounded_channel();
            let outgoing = UnboundedReceiverStream::new(outgoing);
            let responses = connection.hold(outgoing).await;
            let responses = responses.map_err(|error| OpenError {
                reason: format!("{}: {}", endpoint.name(), error.reason),
                // If the credential was replaced meanwhile, its rejection does not apply to the new
                // one.
                is_denied: error.is_denied
                    && brokers
                        .credentials
                        .is_current(connection.credential.as_ref()),
            })?;
            Ok(Box::new(Self {
                connection,
                requests,
                responses,
                pending_calls: HashMap::new(),
                last_call_id: 0,
                heartbeats: VecDeque::new(),
                first_stored: 1,
                unanswered_since: None,
                credential_checked_at: clock::now(),
            }))
        };
        let timeout_error = |_| {
            let message = format!("{}: no answer within {OPEN_TIMEOUT:?}", endpoint.name());
            Err(OpenError::new(message))
        };
        timeout(OPEN_TIMEOUT, open)
            .await
            .unwrap_or_else(timeout_error)
    }

    /// Returns the next message, or `None` after the end of the stream. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Response> {
        loop {
            let response = self.responses.message().await.ok()??;
            self.unanswered_since = None;
            // An unknown message comes from a newer broker.
            if let Some(message) = response.message {
                return Some(message);
            }
        }
    }

    /// Sends the call that `message` creates from a call id. Returns that id.
    pub(super) fn send_call(
        &mut self,
        kind: CallKind,
        message: impl FnOnce(i64) -> Request,
    ) -> i64 {
        self.last_call_id += 1;
        let sent = clock::now();
        self.send(message(self.last_call_id));
        self.pending_calls.insert(self.last_call_id, (kind, sent));
        self.last_call_id
    }

    /// Sends a message that has no call id.
    pub(super) fn send(&self, message: Request) {
        let message = Some(message);
        // The end of the stream is reported by `next`.
        let _ = self.requests.send(HoldRequest { message });
    }

    /// Returns the subject of a call that has no response yet.
    pub(super) fn pending(&self, call_id: i64) -> Option<&CallKind> {
        self.pending_calls.get(&call_id).map(|(kind, _)| kind)
    }

    /// Returns true while a refresh of the credential has no response.
    pub(super) fn is_refreshing_credential(&self) -> bool {
        let mut calls = self.pending_calls.values();
        calls.any(|(kind, _)| matches!(kind, CallKind::Credential(_)))
    }

    /// Removes a call that has a response. Returns its subject and the time at which it was sent.
    pub(super) fn complete(&mut self, call_id: i64) -> Option<(CallKind, Duration)> {
        self.pending_calls.remove(&call_id)
    }

    pub(super) fn send_heartbeat(&mut self) {
        let now = clock::now();
        self.unanswered_since.get_or_insert(now);
        if self.heartbeats.len() == HEARTBEATS_STORED_MAX {
            self.heartbeats.pop_front();
            self.first_stored += 1;
        }
        self.heartbeats.push_back(now);
        let sequence = self
            .first_stored
            .saturating_add_unsigned(self.heartbeats.len() as u64)
            - 1;
        self.send(Request::Heartbeat(Heartbeat { sequence }));
    }

    /// Returns the time at which a heartbeat was sent, if it is stored.
    pub(super) fn heartbeat_sent_at(&self, sequence: i64) -> Option<Duration> {
        let index = sequence.checked_sub(self.first_stored)?;
        self.heartbeats.get(usize::try_from(index).ok()?).copied()
    }

    /// Returns the time at which the newest heartbeat was sent.
    pub(super) fn last_heartbeat_at(&self) -> Option<Duration> {
        self.heartbeats.back().copied()
    }

    /// Returns the send time of the first heartbeat without a response, if there is one.
    pub(super) fn unanswered_since(&self) -> Option<Duration> {
        self.unanswered_since
    }

    /// Closes the stream gracefully: the broker releases every lease that is attached to it.
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
