//! A client of one lease stream that sends only the messages that a test requests, and no
//! heartbeats unless started.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the messages that it waits for"
)]

mod heartbeats;

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

use crate::access::files_and_callers::BearerTokenInterceptor;
use crate::client::heartbeat_sender::HeartbeatSender;
use crate::client::unary::{AcquireCall, Client, channel};

const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Upper bound of the time between messages that a test waits for without causing them.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);
const UNSENT_MAX: usize = 4_096;

/// A lease stream, which breaks when dropped.
#[derive(Debug)]
pub struct StreamClient {
    requests: mpsc::Sender<HoldRequest>,
    responses: Streaming<HoldResponse>,
    last_call_id: i64,
    last_sequence: i64,
    heartbeat_sender: Option<HeartbeatSender>,
}

impl StreamClient {
    /// Opens a stream on a separate connection.
    pub async fn open(broker: SocketAddr) -> Self {
        Self::open_on(channel(broker)).await
    }

    /// Opens a stream on `channel`.
    pub async fn open_on(channel: Channel) -> Self {
        Self::open_with_interceptor(channel, BearerTokenInterceptor(None)).await
    }

    /// Opens a stream on `channel`, optionally with a bearer token.
    pub async fn open_with_interceptor(channel: Channel, shows: BearerTokenInterceptor) -> Self {
        let (requests, outgoing) = mpsc::channel(UNSENT_MAX);
        let mut locks = LockServiceClient::with_interceptor(channel, shows);
        let responses = locks.hold(ReceiverStream::new(outgoing)).await;
        Self {
            requests,
            responses: responses.expect("a stream opens").into_inner(),
            last_call_id: 0,
            last_sequence: 0,
            heartbeat_sender: None,
        }
    }

    pub async fn send(&self, message: Request) {
        let message = Some(message);
        let sent = self.requests.send(HoldRequest { message }).await;
        sent.expect("the stream is open");
    }

    /// Sends an acquire and returns its call id.
    pub async fn acquire(&mut self, call: &AcquireCall, attach_number: i32) -> i64 {
        self.last_call_id += 1;
        let request = Client::new("stream", &[], 0).acquire_request(call);
        let acquire = HoldAcquire {
            call_id: self.last_call_id,
            request: Some(request),
            attach_number,
            ..HoldAcquire::default()
        };
        self.send(Request::Acquire(acquire)).await;
        self.last_call_id
    }

    /// Acquires free locks, each with its own lease.
    pub async fn acquire_each(
        &mut self,
        names: impl Iterator<Item = String>,
        ttl: Duration,
    ) -> Vec<Lease> {
        let mut count = 0;
        for name in names {
            let call = AcquireCall::new(&name, ttl, Duration::ZERO);
            self.acquire(&call, 1).await;
            count += 1;
        }
        let mut leases = Vec::new();
        while leases.len() < count {
            match self.next_event().await {
                Response::Granted(granted) => leases.push(granted.lease.expect("a lease")),
                other => panic!("{other:?} instead of a grant"),
            }
        }
        leases
    }

    /// Sends an acquire of several locks and returns its call id.
    pub async fn acquire_all(&mut self, names: &[&str], call: &AcquireCall) -> i64 {
        self.last_call_id += 1;
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let request = Client::new("stream", &[], 0).acquire_all_request(&names, call);
        let acquire = HoldAcquireAll {
            call_id: self.last_call_id,
            request: Some(request),
            attach_number: 1,
            ..HoldAcquireAll::default()
        };
        self.send(Request::AcquireAll(acquire)).await;
        self.last_call_id
    }

    /// Sends a new bearer token and returns the call id.
    pub async fn refresh_credential(&mut self, token: &str) -> i64 {
        self.last_call_id += 1;
        let refresh = RefreshCredential {
            call_id: self.last_call_id,
            authorization: format!("Bearer {token}"),
        };
        self.send(Request::RefreshCredential(refresh)).await;
        self.last_call_id
    }

    /// Sends a heartbeat and returns its sequence number.
    pub async fn heartbeat(&mut self) -> i64 {
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        self.send(Request::Heartbeat(Heartbeat { sequence })).await;
        sequence
    }

    /// Attaches a lease to the stream and returns the call id.
    pub async fn attach(&mut self, lease: &Lease, attach_number: i32) -> i64 {
        self.last_call_id += 1;
        let attach = AttachLease {
            call_id: self.last_call_id,
            lease: Some(lease.clone()),
            attach_number,
        };
        self.send(Request::Attach(attach)).await;
        self.last_call_id
    }

    /// Releases a lease and returns the call id.
    pub async fn release(&mut self, lease_id: &str) -> i64 {
        self.last_call_id += 1;
        let release = HoldRelease {
            call_id: self.last_call_id,
            lease_id: lease_id.to_owned(),
            ..HoldRelease::default()
        };
        self.send(Request::Release(release)).await;
        self.last_call_id
    }

    /// Detaches a lease from the stream and returns the call id.
    pub async fn detach(&mut self, lease_id: &str) -> i64 {
        self.last_call_id += 1;
        let detach = DetachLease {
            call_id: self.last_call_id,
            lease_id: lease_id.to_owned(),
        };
        self.send(Request::Detach(detach)).await;
        self.last_call_id
    }

    /// Returns after the broker has read everything sent before. It sends an invalid acquire, which
    /// the broker rejects without the store.
    pub async fn wait_until_read(&mut self) {
        self.last_call_id += 1;
        let refused = self.last_call_id;
        let nothing = HoldAcquire {
            call_id: refused,
            ..HoldAcquire::default()
        };
        self.send(Request::Acquire(nothing)).await;
        self.expect_refused(refused).await;
    }

    /// Cancels a waiting acquire.
    pub async fn cancel(&self, call_id: i64) {
        self.send(Request::Cancel(CancelAcquire { call_id })).await;
    }

    /// Closes the stream in an orderly way.
    pub async fn close(&self) {
        self.send(Request::Close(Close {})).await;
    }

    /// Waits for the next message.
    pub async fn next_message(&mut self) -> Response {
        let next = timeout(ANSWER_LIMIT, self.responses.message()).await;
        let next = next.expect("notified in time").expect("the stream lives");
        next.expect("the stream goes on")
            .message
            .expect("a message")
    }

    /// Waits for the next message that is neither an acknowledgement nor a queue position.
    pub async fn next_event(&mut self) -> Response {
        loop {
            match self.next_message().await {
                Response::Ack(_) | Response::Queued(_) => {}
                told => return told,
            }
        }
    }

    /// Waits for the grant of a call and returns its lease.
    pub async fn expect_granted(&mut self, call_id: i64) -> Lease {
        match self.next_event().await {
            Response::Granted(granted) if granted.call_id == call_id => {
                granted.lease.expect("a lease")
            }
            other => panic!("{other:?} instead of a grant"),
        }
    }

    /// Waits for the rejection of a call.
    pub async fn expect_refused(&mut self, call_id: i64) -> Refused {
        match self.next_event().await {
            Response::Refused(refused) if refused.call_id == call_id => refused,
            other => panic!("{other:?} instead of a refusal"),
        }
    }

    /// Waits for the next queue position of a call.
    pub async fn next_queue_position(&mut self, call_id: i64) -> Queued {
        loop {
            match self.next_message().await {
                Response::Queued(queued) if queued.call_id == call_id => return queued,
                Response::Ack(_) | Response::Queued(_) => {}
                other => panic!("{other:?} instead of a queue position"),
            }
        }
    }

    /// Waits for the acknowledgement of a heartbeat and returns the number of leases in it.
    pub async fn wait_for_ack(&mut self, sequence: i64) -> usize {
        loop {
            match self.next_message().await {
                Response::Ack(ack) if ack.sequence >= sequence => return ack.leases.len(),
                Response::Ack(_) | Response::Queued(_) => {}
                other => panic!("{other:?} instead of an acknowledgement"),
            }
        }
    }

    /// Returns true if the broker ends the stream without another message while the client keeps
    /// its side open.
    pub async fn is_ended_by_broker(&mut self) -> bool {
        let end = timeout(ANSWER_LIMIT, self.responses.message()).await;
        matches!(end, Ok(Ok(None)))
    }

    /// Returns true if the broker ends the stream without another message after the client has
    /// closed its side.
    pub async fn ends_after_half_close(mut self) -> bool {
        drop(self.requests);
        let end = timeout(ANSWER_LIMIT, self.responses.message()).await;
        matches!(end, Ok(Ok(None)))
    }

    /// Waits for the first message for which `wanted` returns a value. The timeout is per message.
    /// Cancel safe.
    pub async fn wait_for<T>(&mut self, wanted: impl Fn(Response) -> Option<T>) -> T {
        loop {
            let next = timeout(SILENCE_LIMIT, self.responses.message()).await;
            let next = next.expect("the stream is not silent for so long");
            let message = next.expect("the stream lives");
            let message = message.expect("the stream goes on").message;
            if let Some(result) = message.and_then(&wanted) {
                return result;
            }
        }
    }

    /// Reads until the broker has ended the stream in an orderly way. Cancel safe.
    pub async fn read_to_end(&mut self) {
        while let Some(_told) = self.responses.message().await.expect("in good order") {}
    }

    /// Sends a heartbeat, even if the broker may no longer read the stream.
    pub async fn try_heartbeat(&mut self) {
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        let message = Some(Request::Heartbeat(Heartbeat { sequence }));
        // The broker may have ended the stream.
        let _ = self.requests.send(HoldRequest { message }).await;
    }
}
