//! Callers that share streams: each call is one message with a call id.

use std::{net::SocketAddr, sync::Arc};

use futures::stream;
use leasehold_proto::v1::{
    AcquireRequest, ErrorReason, Granted, HoldRelease, HoldRequest, HoldResponse,
    hold_request::Message as Request, hold_response::Message as Response,
    lock_service_client::LockServiceClient,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{
    heartbeats::{HEARTBEAT_INTERVAL, HeartbeatTimes},
    wire::{acquire, connection, request},
};
use crate::{
    grpc::{CHANNELS, acquire_request, lock_name, named},
    hand_off::{AGAIN_AFTER, Waiter, waiting_request},
    pairs::{self, Pair, Sample},
};

/// A caller, which has at most one pending call.
pub(crate) struct Caller {
    outgoing: mpsc::Sender<HoldRequest>,
    answers: Answers,
    lock: String,
    /// Id of the held lease.
    lease_id: String,
    /// Id of the last call. It grows by the number of callers of the stream, so that it identifies
    /// the caller.
    call_id: i64,
    callers: i64,
}

/// Source of the responses for a caller.
enum Answers {
    /// The stream of a single caller.
    Own(Box<Streaming<HoldResponse>>),
    /// Responses from a task that reads the stream for all callers.
    Routed {
        answers: mpsc::Receiver<Response>,
        /// The task, which ends with the last caller.
        _reader: Arc<JoinSet<()>>,
    },
}

impl Pair for Caller {
    async fn pair(&mut self) {
        self.acquire(acquire_request(named(&self.lock))).await;
        self.release().await;
    }
}

impl Waiter for Caller {
    async fn acquire(&mut self, lock: &str) {
        self.acquire(waiting_request(lock)).await;
    }

    async fn release(&mut self) {
        let release = HoldRelease {
            call_id: self.next_call(),
            lease_id: std::mem::take(&mut self.lease_id),
            ..HoldRelease::default()
        };
        let answer = self.call(Request::Release(release)).await;
        let Response::Released(released) = answer else {
            panic!("a holder can release, but {answer:?}")
        };
        assert!(!released.already_released, "a lease is released once");
    }
}

impl Caller {
    async fn acquire(&mut self, request: AcquireRequest) {
        loop {
            let call_id = self.next_call();
            let answer = self.call(acquire(call_id, request.clone())).await;
            if let Response::Refused(refused) = &answer
                && refused.reason() == ErrorReason::Overloaded
            {
                sleep(AGAIN_AFTER).await;
                continue;
            }
            let Response::Granted(Granted {
                lease: Some(lease), ..
            }) = answer
            else {
                panic!("it is granted in the end, but {answer:?}")
            };
            self.lease_id = lease.lease_id;
            return;
        }
    }

    fn next_call(&mut self) -> i64 {
        self.call_id += self.callers;
        self.call_id
    }

    async fn call(&mut self, message: Request) -> Response {
        let sent = self.outgoing.send(request(message)).await;
        sent.expect("the stream is open");
        match &mut self.answers {
            Answers::Own(responses) => next_answer(responses).await,
            Answers::Routed { answers, .. } => answers.recv().await,
        }
        .expect("the stream goes on")
    }
}

/// Runs one round of `callers` on at most [`CHANNELS`] streams, each on its own connection.
pub(crate) async fn pairs(addr: SocketAddr, callers: usize) -> Sample {
    let names: Vec<_> = (0..callers).map(lock_name).collect();
    pairs::run(on_streams(addr, &names, CHANNELS).await).await
}

/// Returns a caller for each lock, on at most `streams` streams, each on its own connection.
pub(crate) async fn on_streams(addr: SocketAddr, names: &[String], streams: usize) -> Vec<Caller> {
    let mut all = Vec::new();
    let streams = streams.min(names.len());
    for stream in 0..streams {
        let names = names.iter().skip(stream).step_by(streams).cloned();
        all.extend(on_one_stream(addr, names.collect()).await);
    }
    all
}

async fn on_one_stream(addr: SocketAddr, names: Vec<String>) -> Vec<Caller> {
    let (outgoing, unsent) = mpsc::channel(names.len());
    let mut locks = LockServiceClient::new(connection(addr));
    let now = Instant::now();
    let heartbeats = HeartbeatTimes::of_new_stream(now)
        .at_intervals(HEARTBEAT_INTERVAL, now + HEARTBEAT_INTERVAL);
    let all = stream::select(ReceiverStream::new(unsent), heartbeats);
    let responses = locks.hold(all).await;
    let responses = responses.expect("a stream opens").into_inner();
    let answers = match names.len() {
        1 => vec![Answers::Own(Box::new(responses))],
        callers => routed(responses, callers),
    };
    let callers = i64::try_from(names.len()).expect("few callers");
    let caller = |(call_id, (lock, answers)): (i64, (String, _))| Caller {
        outgoing: outgoing.clone(),
        answers,
        lock,
        lease_id: String::new(),
        call_id,
        callers,
    };
    (0..)
        .zip(names.into_iter().zip(answers))
        .map(caller)
        .collect()
}

fn routed(responses: Streaming<HoldResponse>, callers: usize) -> Vec<Answers> {
    let (routes, answers): (Vec<_>, Vec<_>) = (0..callers).map(|_| mpsc::channel(1)).unzip();
    let mut reader = JoinSet::new();
    reader.spawn(route(responses, routes));
    let reader = Arc::new(reader);
    let routed = |answers| Answers::Routed {
        answers,
        _reader: Arc::clone(&reader),
    };
    answers.into_iter().map(routed).collect()
}

/// Sends each response to its caller.
async fn route(mut responses: Streaming<HoldResponse>, routes: Vec<mpsc::Sender<Response>>) {
    while let Some(message) = next_answer(&mut responses).await {
        let call_id = call_of(&message).and_then(|call_id| usize::try_from(call_id).ok());
        let call_id = call_id.expect("calls count up from 0");
        // A caller whose round has ended receives nothing.
        let _ = routes[call_id % routes.len()].send(message).await;
    }
}

/// Returns the next message that completes a call.
async fn next_answer(responses: &mut Streaming<HoldResponse>) -> Option<Response> {
    loop {
        // The echo server sends an empty response to a heartbeat.
        let message = responses.message().await.ok()??.message;
        if let Some(message) = message.filter(|response| call_of(response).is_some()) {
            return Some(message);
        }
    }
}

/// Returns the id of the call that the message completes.
pub(crate) fn call_of(message: &Response) -> Option<i64> {
    match message {
        Response::Granted(granted) => Some(granted.call_id),
        Response::Refused(refused) => Some(refused.call_id),
        Response::Released(released) => Some(released.call_id),
        Response::Queued(_)
        | Response::Attached(_)
        | Response::Ack(_)
        | Response::Ended(_)
        | Response::ReleaseRequested(_)
        | Response::Reconnect(_)
        | Response::Done(_) => None,
    }
}
