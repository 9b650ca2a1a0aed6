//! A stream that beats by itself and listens for as long as it takes.

use std::{net::SocketAddr, time::Duration};

use leasehold_proto::v1::{
    AcquireRequest, Granted, HoldAcquire, hold_request::Message as Request,
    hold_response::Message as Response,
};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::transport::Endpoint;

use super::{ANSWER_LIMIT, StreamClient};
use crate::beats::Beats;

/// Longer than any broker is stopped.
const PATIENCE: Duration = Duration::from_secs(40);

impl StreamClient {
    /// Opens a stream on a connection that does not notice when its broker is stopped.
    pub async fn open_patient(broker: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{broker}"));
        Self::open_on(endpoint.expect("a socket address").connect_lazy()).await
    }

    /// Sends this acquire; its call id.
    pub async fn acquire_as(&mut self, request: AcquireRequest, attach_number: i32) -> i64 {
        self.calls += 1;
        let acquire = HoldAcquire {
            call_id: self.calls,
            request: Some(request),
            attach_number,
            ..HoldAcquire::default()
        };
        self.send(Request::Acquire(acquire)).await;
        self.calls
    }

    /// Sends all heartbeats from now on by itself, while the stream lives.
    pub fn beat(&mut self, every: Duration) {
        self.beats = Some(Beats::start(self.requests.clone(), every));
    }

    /// When that heartbeat was sent.
    #[must_use]
    pub fn beat_sent(&self, sequence: i64) -> Duration {
        self.beats.as_ref().expect("it beats").sent(sequence)
    }

    /// The next message that tells of a lease or a call; `None` when the stream is over.
    pub async fn hear(&mut self) -> Option<Response> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let next = timeout_at(give_up, self.responses.message()).await;
            match next.expect("told in time").ok()??.message {
                Some(Response::Queued(_) | Response::ReleaseRequested(_)) | None => {}
                Some(told) => return Some(told),
            }
        }
    }

    /// The grant of a call whose turn may be long in coming, if the stream lives so long.
    pub async fn turn(&mut self, call_id: i64) -> Option<Granted> {
        loop {
            let told = self.hear().await?;
            if let Response::Granted(granted) = told {
                assert_eq!(granted.call_id, call_id, "another call's turn");
                return Some(granted);
            }
            let is_ack = matches!(told, Response::Ack(_));
            assert!(is_ack, "{told:?} instead of a grant");
        }
    }

    /// Ends its own side, with Close; what it is still told until the broker ends the stream in
    /// good order.
    pub async fn close_and_hear(self) -> Vec<Response> {
        self.close().await;
        let Self {
            requests,
            mut responses,
            beats,
            ..
        } = self;
        drop((requests, beats));
        let mut told = Vec::new();
        loop {
            let next = timeout(ANSWER_LIMIT, responses.message()).await;
            match next.expect("told in time").expect("no break") {
                Some(response) => told.extend(response.message),
                None => return told,
            }
        }
    }
}
