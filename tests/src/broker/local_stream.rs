//! Calls and a lease stream of a broker in this process, without a network.

use std::{sync::Arc, time::Duration};

use futures::stream::StreamExt as _;
use leasehold_server::{
    broker::{
        Broker,
        lease_stream::{StreamAge, StreamCaller, StreamCommand, StreamEvent},
    },
    lock::{AcquireCall, ExpectedAttachment, Lease, LeaseRef, LockFailure, ReleaseScope},
    quotas::Quotas,
    store::Store,
    trace::Span,
};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::task::AbortOnDropHandle;

use crate::redlock::broker::unlimited_quotas;

const DAY: Duration = Duration::from_secs(86_400);

/// A stream and its client.
pub struct LocalStream {
    commands: UnboundedSender<StreamCommand>,
    events: UnboundedReceiver<StreamEvent>,
}

impl LocalStream {
    /// Opens a stream of a client without a name.
    #[must_use]
    pub fn open(broker: &Broker) -> Self {
        let (commands, received) = mpsc::unbounded_channel();
        let (sink, events) = mpsc::unbounded_channel();
        let caller = StreamCaller {
            name: Arc::default(),
            expires: None,
            reconnects_at: None,
        };
        let received = UnboundedReceiverStream::new(received).boxed();
        let sink = Arc::new(move |event| sink.send(event).is_ok());
        let opened = broker.hold(caller, received, sink);
        opened.expect("there is room for a stream");
        Self { commands, events }
    }

    pub fn send(&self, command: StreamCommand) {
        assert!(self.commands.send(command).is_ok(), "the stream is open");
    }

    /// Sends an acquire, as of the first attachment of its lease.
    pub fn acquire(&self, call_id: i64, call: AcquireCall) {
        self.send(StreamCommand::Acquire {
            call_id,
            call: Box::new(call),
            number: 1,
            span: Span::default(),
        });
    }

    /// Returns the next event, or `None` after the end of the stream.
    pub async fn event(&mut self) -> Option<StreamEvent> {
        self.events.recv().await
    }

    /// Closes the stream, waits until the broker has ended it, and returns its last events.
    pub async fn close(mut self) -> Vec<StreamEvent> {
        self.send(StreamCommand::Close);
        drop(self.commands);
        let mut events = Vec::new();
        while let Some(event) = self.events.recv().await {
            events.push(event);
        }
        events
    }

    /// Returns the lease of the next grant, which must be that of the call.
    pub async fn granted(&mut self, expected: i64) -> Lease {
        loop {
            match self.event().await {
                Some(StreamEvent::Granted { call_id, lease, .. }) => {
                    assert_eq!(call_id, expected);
                    return lease;
                }
                Some(StreamEvent::Queued(_)) => {}
                event => panic!("{event:?}"),
            }
        }
    }
}

/// Returns a broker with quotas and stream ages that no test reaches.
#[must_use]
pub fn unlimited_broker(store: Arc<dyn Store>) -> Broker {
    let age = StreamAge {
        max_age: DAY,
        grace: DAY,
    };
    Broker::new(store, Quotas::new(unlimited_quotas), age)
}

/// A pending call. Dropping it cancels the call.
pub type AcquireHandle = AbortOnDropHandle<Result<Lease, LockFailure>>;

/// Starts an acquire in a separate task.
pub fn start_acquire(broker: &Broker, call: &AcquireCall) -> AcquireHandle {
    let (broker, call) = (broker.clone(), call.clone());
    let acquired = async move { broker.acquire(&Arc::from("caller"), call).await };
    AbortOnDropHandle::new(tokio::spawn(acquired))
}

/// Releases a lease and asserts success.
pub async fn expect_released(broker: &Broker, lease: &Lease) {
    let locks = references(lease);
    let released = broker.release(&locks, ReleaseScope::All, ExpectedAttachment::Any);
    released.await.expect("it is held");
}

/// Returns references to the locks of a lease.
#[must_use]
pub fn references(lease: &Lease) -> Vec<LeaseRef> {
    let locks = lease.locks.iter().map(|held| LeaseRef {
        lock: held.lock.clone(),
        lease_id: lease.lease_id,
        fencing_token: held.grant.fencing_token,
    });
    locks.collect()
}
