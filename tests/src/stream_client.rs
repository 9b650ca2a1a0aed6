//! A client of one lease stream, that sends what it is told to and nothing by itself.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the messages that it waits for"
)]

mod steady;

use std::{net::SocketAddr, time::Duration};

use leasehold_proto::v1::{
    AttachLease, CancelAcquire, Close, DetachLease, Heartbeat, HoldAcquire, HoldAcquireAll,
    HoldRelease, HoldRequest, HoldResponse, Lease, Queued, RefreshCredential, Refused,
    hold_request::Message as Request, hold_response::Message as Response,
    lock_service_client::LockServiceClient,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

use crate::beats::Beats;
use crate::callers::Shows;
use crate::client::{AcquireCall, Client, channel};

const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// No test waits longer for something that it does not bring about.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);
const UNSENT_MAX: usize = 4_096;

/// One stream. Dropped, it breaks.
#[derive(Debug)]
pub struct StreamClient {
    requests: mpsc::Sender<HoldRequest>,
    responses: Streaming<HoldResponse>,
    calls: i64,
    heartbeats: i64,
    beats: Option<Beats>,
}

impl StreamClient {
    /// Opens a stream on a connection of its own.
    pub async fn open(broker: SocketAddr) -> Self {
        Self::open_on(channel(broker)).await
    }

    /// Opens a stream on this connection.
    pub async fn open_on(channel: Channel) -> Self {
        Self::open_as(channel, Shows(None)).await
    }

    /// The same by somebody with a token.
    pub async fn open_as(channel: Channel, shows: Shows) -> Self {
        let (requests, outgoing) = mpsc::channel(UNSENT_MAX);
        let mut locks = LockServiceClient::with_interceptor(channel, shows);
        let responses = locks.hold(ReceiverStream::new(outgoing)).await;
        Self {
            requests,
            responses: responses.expect("a stream opens").into_inner(),
            calls: 0,
            heartbeats: 0,
            beats: None,
        }
    }

    /// Sends a message.
    pub async fn send(&self, message: Request) {
        let message = Some(message);
        let sent = self.requests.send(HoldRequest { message }).await;
        sent.expect("the stream is open");
    }

    /// Sends an acquire; its call id.
    pub async fn acquire(&mut self, call: &AcquireCall, attach_number: i32) -> i64 {
        self.calls += 1;
        let request = Client::new("stream", &[], 0).acquire_request(call);
        let acquire = HoldAcquire {
            call_id: self.calls,
            request: Some(request),
            attach_number,
            ..HoldAcquire::default()
        };
        self.send(Request::Acquire(acquire)).await;
        self.calls
    }

    /// Sends an acquire of several locks; its call id.
    pub async fn acquire_all(&mut self, names: &[&str], call: &AcquireCall) -> i64 {
        self.calls += 1;
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let request = Client::new("stream", &[], 0).acquire_all_request(&names, call);
        let acquire = HoldAcquireAll {
            call_id: self.calls,
            request: Some(request),
            attach_number: 1,
            ..HoldAcquireAll::default()
        };
        self.send(Request::AcquireAll(acquire)).await;
        self.calls
    }

    /// Shows another token; the call id.
    pub async fn refresh(&mut self, token: &str) -> i64 {
        self.calls += 1;
        let refresh = RefreshCredential {
            call_id: self.calls,
            authorization: format!("Bearer {token}"),
        };
        self.send(Request::RefreshCredential(refresh)).await;
        self.calls
    }

    /// Sends a heartbeat; its sequence.
    pub async fn heartbeat(&mut self) -> i64 {
        self.heartbeats += 1;
        let sequence = self.heartbeats;
        self.send(Request::Heartbeat(Heartbeat { sequence })).await;
        sequence
    }

    /// Puts a lease on the stream; the call id.
    pub async fn attach(&mut self, lease: &Lease, attach_number: i32) -> i64 {
        self.calls += 1;
        let attach = AttachLease {
            call_id: self.calls,
            lease: Some(lease.clone()),
            attach_number,
        };
        self.send(Request::Attach(attach)).await;
        self.calls
    }

    /// Gives a lease back; the call id.
    pub async fn release(&mut self, lease_id: &str) -> i64 {
        self.calls += 1;
        let release = HoldRelease {
            call_id: self.calls,
            lease_id: lease_id.to_owned(),
            ..HoldRelease::default()
        };
        self.send(Request::Release(release)).await;
        self.calls
    }

    /// Takes a lease off the stream; the call id.
    pub async fn detach(&mut self, lease_id: &str) -> i64 {
        self.calls += 1;
        let detach = DetachLease {
            call_id: self.calls,
            lease_id: lease_id.to_owned(),
        };
        self.send(Request::Detach(detach)).await;
        self.calls
    }

    /// Returns once the broker has read all that was sent: it refuses a message that asks nothing it
    /// can do, without the store.
    pub async fn is_read(&mut self) {
        self.calls += 1;
        let refused = self.calls;
        let nothing = HoldAcquire {
            call_id: refused,
            ..HoldAcquire::default()
        };
        self.send(Request::Acquire(nothing)).await;
        self.refused(refused).await;
    }

    /// Gives up a wait.
    pub async fn cancel(&self, call_id: i64) {
        self.send(Request::Cancel(CancelAcquire { call_id })).await;
    }

    /// Ends the stream in good order.
    pub async fn close(&self) {
        self.send(Request::Close(Close {})).await;
    }

    /// The next message.
    pub async fn next(&mut self) -> Response {
        let next = timeout(ANSWER_LIMIT, self.responses.message()).await;
        let next = next.expect("told in time").expect("the stream lives");
        next.expect("the stream goes on")
            .message
            .expect("a message")
    }

    /// The next message that is neither an acknowledgement nor a place in line.
    pub async fn told(&mut self) -> Response {
        loop {
            match self.next().await {
                Response::Ack(_) | Response::Queued(_) => {}
                told => return told,
            }
        }
    }

    /// The lease of a call, which must be granted.
    pub async fn granted(&mut self, call_id: i64) -> Lease {
        match self.told().await {
            Response::Granted(granted) if granted.call_id == call_id => {
                granted.lease.expect("a lease")
            }
            other => panic!("{other:?} instead of a grant"),
        }
    }

    /// The refusal of a call.
    pub async fn refused(&mut self, call_id: i64) -> Refused {
        match self.told().await {
            Response::Refused(refused) if refused.call_id == call_id => refused,
            other => panic!("{other:?} instead of a refusal"),
        }
    }

    /// The next place in line that a call is told.
    pub async fn queued(&mut self, call_id: i64) -> Queued {
        loop {
            match self.next().await {
                Response::Queued(queued) if queued.call_id == call_id => return queued,
                Response::Ack(_) | Response::Queued(_) => {}
                other => panic!("{other:?} instead of a place in line"),
            }
        }
    }

    /// Waits for the acknowledgement of a heartbeat; how many leases it names.
    pub async fn acknowledged(&mut self, sequence: i64) -> usize {
        loop {
            match self.next().await {
                Response::Ack(ack) if ack.sequence >= sequence => return ack.leases.len(),
                Response::Ack(_) | Response::Queued(_) => {}
                other => panic!("{other:?} instead of an acknowledgement"),
            }
        }
    }

    /// Whether the stream ends without another message, although the client could go on.
    pub async fn ends_by_itself(&mut self) -> bool {
        let end = timeout(ANSWER_LIMIT, self.responses.message()).await;
        matches!(end, Ok(Ok(None)))
    }

    /// Whether the stream ends without another message.
    pub async fn ends(mut self) -> bool {
        drop(self.requests);
        let end = timeout(ANSWER_LIMIT, self.responses.message()).await;
        matches!(end, Ok(Ok(None)))
    }

    /// The next message that is for the test, as long as messages come. Cancel safe.
    pub async fn heard<T>(&mut self, wanted: impl Fn(Response) -> Option<T>) -> T {
        loop {
            let next = timeout(SILENCE_LIMIT, self.responses.message()).await;
            let next = next.expect("the stream is not silent for so long");
            let message = next.expect("the stream lives");
            let message = message.expect("the stream goes on").message;
            if let Some(heard) = message.and_then(&wanted) {
                return heard;
            }
        }
    }

    /// Reads until the broker has ended the stream in good order. Cancel safe.
    pub async fn ended(&mut self) {
        while let Some(_told) = self.responses.message().await.expect("in good order") {}
    }

    /// Sends a heartbeat, also where nobody may read it any more.
    pub async fn late_heartbeat(&mut self) {
        self.heartbeats += 1;
        let sequence = self.heartbeats;
        let message = Some(Request::Heartbeat(Heartbeat { sequence }));
        // The other side may have ended the stream.
        let _ = self.requests.send(HoldRequest { message }).await;
    }
}
