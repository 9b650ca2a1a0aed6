//! One lock that is handed off between waiters, each of which has its own stream.

use std::net::SocketAddr;

use futures::stream;
use leasehold_proto::v1::{
    Granted, HoldRelease, HoldRequest, HoldResponse, hold_request::Message as Request,
    hold_response::Message as Response, lock_service_client::LockServiceClient,
};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

use super::{
    calls::call_of,
    heartbeats::{HEARTBEAT_INTERVAL, HeartbeatTimes},
    wire::{acquire, connection, request},
};
use crate::{
    grpc::CHANNELS,
    hand_off::{self, HandOffLatencies, Waiter, waiting_request},
};

/// A waiter that acquires and releases the lock repeatedly.
struct StreamWaiter {
    outgoing: mpsc::Sender<HoldRequest>,
    responses: Streaming<HoldResponse>,
    call_id: i64,
    lease_id: String,
}

impl Waiter for StreamWaiter {
    async fn acquire(&mut self, lock: &str) {
        self.call_id += 1;
        let acquire = acquire(self.call_id, waiting_request(lock));
        let answer = self.call(acquire).await;
        let Response::Granted(Granted {
            lease: Some(lease), ..
        }) = answer
        else {
            panic!("the queue moves on, but {answer:?}")
        };
        self.lease_id = lease.lease_id;
    }

    async fn release(&mut self) {
        self.call_id += 1;
        let release = HoldRelease {
            call_id: self.call_id,
            lease_id: self.lease_id.clone(),
            ..HoldRelease::default()
        };
        let answer = self.call(Request::Release(release)).await;
        assert!(
            matches!(answer, Response::Released(_)),
            "a holder can release, but {answer:?}"
        );
    }
}

impl StreamWaiter {
    /// Opens a stream whose heartbeats start at `first`.
    async fn open(connection: Channel, first: Instant) -> Self {
        let (outgoing, unsent) = mpsc::channel(1);
        let heartbeats =
            HeartbeatTimes::of_new_stream(Instant::now()).at_intervals(HEARTBEAT_INTERVAL, first);
        let all = stream::select(ReceiverStream::new(unsent), heartbeats);
        let responses = LockServiceClient::new(connection).hold(all).await;
        Self {
            outgoing,
            responses: responses.expect("a stream opens").into_inner(),
            call_id: 0,
            lease_id: String::new(),
        }
    }

    async fn call(&mut self, message: Request) -> Response {
        let sent = self.outgoing.send(request(message)).await;
        sent.expect("the stream is open");
        loop {
            let response = self.responses.message().await.expect("the stream lives");
            let message = response.expect("the stream goes on").message;
            if let Some(message) =
                message.filter(|response| call_of(response) == Some(self.call_id))
            {
                return message;
            }
        }
    }
}

/// Runs one round of `waiters` at `addr`.
pub(crate) async fn run(addr: SocketAddr, waiters: usize, lock: String) -> HandOffLatencies {
    let connections: Vec<_> = (0..CHANNELS).map(|_| connection(addr)).collect();
    let mut streams = Vec::new();
    for at in 0..=waiters {
        let first = Instant::now() + HEARTBEAT_INTERVAL.mul_f64(at as f64 / (waiters + 1) as f64);
        let connection = connections[at % CHANNELS].clone();
        streams.push(StreamWaiter::open(connection, first).await);
    }
    let first = streams.pop().expect("one more than wait");
    hand_off::run_round(connection(addr), lock, first, streams).await
}
