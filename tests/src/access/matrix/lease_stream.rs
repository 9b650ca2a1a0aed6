//! A lease stream of a role, over which a test sends arbitrary messages.

use std::time::Duration;

use bytes::Bytes;
use leasehold_proto::v1::{
    HoldAcquire, HoldAcquireAll, HoldRequest, HoldResponse, Lease, LockRef,
    hold_request::Message as Ask, hold_response::Message as Told,
};
use prost::Message as _;
use tokio::{sync::mpsc, time::timeout};
use tonic::{Status, Streaming};

use super::{
    connection::RoleConnection,
    raw_call::open_call,
    requests::{acquire_all_request, acquire_request, owner, target},
};

const HOLD: &str = "/leasehold.v1.LockService/Hold";
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const UNSENT_MAX: usize = 16;
/// Call id of the acquire. No other call on the stream may use it.
const ACQUIRE_CALL_ID: i64 = 1;

/// An open lease stream. Dropping it breaks the stream.
#[derive(Debug)]
pub struct LeaseStream {
    requests: mpsc::Sender<Vec<u8>>,
    responses: Streaming<Bytes>,
}

impl LeaseStream {
    /// Opens a lease stream.
    ///
    /// # Errors
    /// Returns the status with which the broker rejects the stream.
    pub async fn open(line: &RoleConnection) -> Result<Self, Status> {
        let (requests, outgoing) = mpsc::channel(UNSENT_MAX);
        let authorization = line.authorization.as_deref();
        let (responses, _) = open_call(&line.api, HOLD, authorization, outgoing).await?;
        Ok(Self {
            requests,
            responses,
        })
    }

    pub async fn send(&self, message: Ask) {
        let message = Some(message);
        self.send_encoded(HoldRequest { message }.encode_to_vec())
            .await;
    }

    /// Sends an encoded message.
    pub async fn send_encoded(&self, message: Vec<u8>) {
        self.requests.send(message).await.expect("the stream lives");
    }

    /// Returns the next message from the broker, encoded.
    pub async fn next_encoded(&mut self) -> Bytes {
        let next = timeout(ANSWER_LIMIT, self.responses.message()).await;
        let next = next.expect("an answer").expect("the stream lives");
        next.expect("it goes on")
    }

    /// Returns the next message from the broker.
    pub async fn next(&mut self) -> Told {
        let responses = HoldResponse::decode(self.next_encoded().await);
        responses.expect("a response").message.expect("a message")
    }

    /// Sends a message, and returns the next message from the broker.
    pub async fn send_and_receive(&mut self, message: Ask) -> Told {
        self.send(message).await;
        self.next().await
    }

    /// Acquires free locks.
    pub async fn acquire(&mut self, locks: &[LockRef]) -> Lease {
        let (call_id, attach_number) = (ACQUIRE_CALL_ID, 1);
        let ask = match locks {
            [one] => Ask::Acquire(HoldAcquire {
                call_id,
                attach_number,
                request: Some(acquire_request(target(one), owner("matrix"))),
                ..HoldAcquire::default()
            }),
            several => Ask::AcquireAll(HoldAcquireAll {
                call_id,
                attach_number,
                request: Some(acquire_all_request(several)),
                ..HoldAcquireAll::default()
            }),
        };
        let Told::Granted(granted) = self.send_and_receive(ask).await else {
            panic!("they are free");
        };
        granted.lease.expect("a grant has a lease")
    }
}
