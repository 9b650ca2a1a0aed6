//! A lease stream of some role, that sends what it is told to.

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
    ask::{acquire, acquire_all, owner, target},
    line::Line,
    wire::open,
};

const HOLD: &str = "/leasehold.v1.LockService/Hold";
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const UNSENT_MOST: usize = 16;
/// Of the call that takes the locks. No other call on the stream may have it.
const TAKES: i64 = 1;

/// One stream. Dropped, it breaks.
#[derive(Debug)]
pub struct LeaseStream {
    asks: mpsc::Sender<Vec<u8>>,
    told: Streaming<Bytes>,
}

impl LeaseStream {
    /// Opens one.
    ///
    /// # Errors
    /// If the broker refuses it.
    pub async fn open(line: &Line) -> Result<Self, Status> {
        let (asks, asked) = mpsc::channel(UNSENT_MOST);
        let shown = line.authorization.as_deref();
        let (told, _) = open(&line.api, HOLD, shown, asked).await?;
        Ok(Self { asks, told })
    }

    /// Sends a message.
    pub async fn send(&self, message: Ask) {
        let message = Some(message);
        self.send_encoded(HoldRequest { message }.encode_to_vec())
            .await;
    }

    /// Sends one as it goes over the wire.
    pub async fn send_encoded(&self, message: Vec<u8>) {
        self.asks.send(message).await.expect("the stream lives");
    }

    /// What is told next, as it came.
    pub async fn next_encoded(&mut self) -> Bytes {
        let next = timeout(ANSWER_LIMIT, self.told.message()).await;
        let next = next.expect("an answer").expect("the stream lives");
        next.expect("it goes on")
    }

    /// What is told next.
    pub async fn next(&mut self) -> Told {
        let told = HoldResponse::decode(self.next_encoded().await);
        told.expect("a response").message.expect("a message")
    }

    /// Sends a message; its answer, which is the next that is told.
    pub async fn ask(&mut self, message: Ask) -> Told {
        self.send(message).await;
        self.next().await
    }

    /// Takes locks that are free.
    pub async fn take(&mut self, locks: &[LockRef]) -> Lease {
        let (call_id, attach_number) = (TAKES, 1);
        let ask = match locks {
            [one] => Ask::Acquire(HoldAcquire {
                call_id,
                attach_number,
                request: Some(acquire(target(one), owner("matrix"))),
                ..HoldAcquire::default()
            }),
            several => Ask::AcquireAll(HoldAcquireAll {
                call_id,
                attach_number,
                request: Some(acquire_all(several)),
                ..HoldAcquireAll::default()
            }),
        };
        let Told::Granted(granted) = self.ask(ask).await else {
            panic!("they are free");
        };
        granted.lease.expect("a grant has a lease")
    }
}
