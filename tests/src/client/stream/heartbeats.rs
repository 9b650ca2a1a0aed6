//! Methods of a lease stream that sends heartbeats automatically and tolerates long pauses of the
//! broker.

use std::{net::SocketAddr, time::Duration};

use leasehold_proto::v1::{
    AcquireRequest, Granted, HoldAcquire, hold_request::Message as Request,
    hold_response::Message as Response,
};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::transport::Endpoint;

use super::{ANSWER_LIMIT, StreamClient};
use crate::client::heartbeat_sender::HeartbeatSender;

/// Time that exceeds the pause of any broker in the tests.
const BROKER_PAUSE_MAX: Duration = Duration::from_secs(40);

impl StreamClient {
    /// Opens a stream on a connection without keepalive, which survives a pause of its broker.
    pub async fn open_without_keepalive(broker: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{broker}"));
        Self::open_on(endpoint.expect("a socket address").connect_lazy()).await
    }

    /// Sends this acquire and returns its call id.
    pub async fn send_acquire(&mut self, request: AcquireRequest, attach_number: i32) -> i64 {
        self.last_call_id += 1;
        let acquire = HoldAcquire {
            call_id: self.last_call_id,
            request: Some(request),
            attach_number,
            ..HoldAcquire::default()
        };
        self.send(Request::Acquire(acquire)).await;
        self.last_call_id
    }

    /// Sends heartbeats automatically while the stream is open. Do not send others.
    pub fn start_heartbeats(&mut self, every: Duration) {
        self.heartbeat_sender = Some(HeartbeatSender::start(self.requests.clone(), every));
    }

    /// Returns the time at which a heartbeat was sent.
    #[must_use]
    pub fn heartbeat_sent_at(&self, sequence: i64) -> Duration {
        self.heartbeat_sender
            .as_ref()
            .expect("it beats")
            .sent_at(sequence)
    }

    /// Waits for the next message that is neither a queue position nor a release request. Returns
    /// `None` at the end of the stream.
    pub async fn next_lease_message(&mut self) -> Option<Response> {
        let give_up = Instant::now() + BROKER_PAUSE_MAX;
        loop {
            let next = timeout_at(give_up, self.responses.message()).await;
            match next.expect("notified in time").ok()??.message {
                Some(Response::Queued(_) | Response::ReleaseRequested(_)) | None => {}
                Some(message) => return Some(message),
            }
        }
    }

    /// Waits for the grant of a call. Returns `None` if the stream ends before.
    pub async fn wait_for_grant(&mut self, call_id: i64) -> Option<Granted> {
        loop {
            let message = self.next_lease_message().await?;
            if let Response::Granted(granted) = message {
                assert_eq!(granted.call_id, call_id, "another call's turn");
                return Some(granted);
            }
            let is_ack = matches!(message, Response::Ack(_));
            assert!(is_ack, "{message:?} instead of a grant");
        }
    }

    /// Sends `Close` and closes the client's side. Returns the messages that arrive until the
    /// broker ends the stream in an orderly way.
    pub async fn close_and_drain(self) -> Vec<Response> {
        self.close().await;
        let Self {
            requests,
            mut responses,
            heartbeat_sender: beats,
            ..
        } = self;
        drop((requests, beats));
        let mut message = Vec::new();
        loop {
            let next = timeout(ANSWER_LIMIT, responses.message()).await;
            match next.expect("notified in time").expect("no break") {
                Some(response) => message.extend(response.message),
                None => return message,
            }
        }
    }
}
