//! A careful client of lease streams: sends heartbeats, trusts a lease as long as its contract says,
//! and goes on at the next endpoint when its stream breaks or falls silent.

mod hearing;
mod keeper;
mod link;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold_proto::v1::{AcquireRequest, ErrorReason, Lease, LeaseEndReason, Refused};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use self::keeper::Keeper;
use crate::{
    client::{AcquireCall, Client},
    clock::boottime,
};

const MARGIN_LEAST: Duration = Duration::from_millis(500);
/// A stream with leases on which a heartbeat is not answered for so long is given up.
const SILENCE: Duration = Duration::from_millis(1_500);

/// A call under way.
pub type Open = oneshot::Receiver<Result<Kept, Refused>>;

/// How long before its validity ends a careful holder stops relying on a lease.
#[must_use]
pub fn margin(ttl: Duration) -> Duration {
    (ttl / 10).max(MARGIN_LEAST).min(ttl / 4)
}

/// What a holder went through.
#[derive(Debug, Default)]
pub struct Counters {
    /// Streams opened.
    pub opened: watch::Sender<usize>,
    /// Streams that broke, fell silent, or could not be opened.
    pub breaks: AtomicUsize,
    /// Acknowledgements that came after the lease was not trusted any more.
    pub too_late: AtomicUsize,
}

/// Why a lease is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// This client gave it back.
    Released,
    /// The stream said so.
    Told(LeaseEndReason),
    /// It could not be attached or released.
    Refused(ErrorReason),
    /// Trust ran out before an acknowledgement came.
    Lapsed,
}

/// What is known of a lease.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// The end of its validity on the referee's clock.
    pub valid_until: Duration,
    /// The validity that was announced last.
    pub ttl: Duration,
    /// Since when it has been on its present stream, if it was moved there.
    pub attached_at: Option<Duration>,
    /// When the last acknowledgement came, if any did.
    pub acknowledged_at: Option<Duration>,
    /// When and why it ended, if it has.
    pub ended: Option<(Duration, End)>,
}

impl Known {
    /// Until when a careful holder relies on it.
    #[must_use]
    pub fn trusted_until(&self) -> Duration {
        let trusted = self.valid_until.saturating_sub(margin(self.ttl));
        let ended = self.ended.map_or(trusted, |(at, _)| at);
        trusted.min(ended)
    }
}

/// A lease that a [`Holder`] keeps.
#[derive(Debug, Clone)]
pub struct Kept {
    /// As granted.
    pub lease: Lease,
    known: watch::Receiver<Known>,
}

impl Kept {
    /// The fencing token of its one lock.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.lease.grants[0].fencing_token
    }

    /// What is known of it now.
    #[must_use]
    pub fn known(&self) -> Known {
        *self.known.borrow()
    }

    /// Whether a careful holder relies on it now.
    #[must_use]
    pub fn trusted(&self) -> bool {
        boottime() < self.known().trusted_until()
    }

    /// Returns once that is known of it.
    pub async fn until(&self, is_so: impl FnMut(&Known) -> bool) -> Known {
        let mut known = self.known.clone();
        *known
            .wait_for(is_so)
            .await
            .expect("its holder lives or has ended it")
    }

    /// Returns as soon as a careful holder stops relying on it, with that moment.
    pub async fn distrusted(&self) -> Duration {
        while self.trusted() {
            let left = self.known().trusted_until().saturating_sub(boottime());
            tokio::time::sleep(left).await;
        }
        self.known().trusted_until()
    }
}

/// What a [`Keeper`] is asked to do.
enum Order {
    Acquire {
        request: Box<AcquireRequest>,
        wait: Duration,
        answer: oneshot::Sender<Result<Kept, Refused>>,
    },
    Release {
        lease_id: String,
        answer: oneshot::Sender<End>,
    },
    Stall(Duration),
    Close,
}

/// One client with one stream at a time, in a task of its own. Dropped, its stream breaks.
#[derive(Debug)]
pub struct Holder {
    client: Client,
    orders: mpsc::UnboundedSender<Order>,
    /// What it went through.
    pub counters: Arc<Counters>,
    task: AbortOnDropHandle<()>,
}

impl Holder {
    /// A client that starts at the endpoint at `first`.
    #[must_use]
    pub fn start(name: &str, endpoints: &[SocketAddr], first: usize) -> Self {
        Self::with_patience(name, endpoints, first, SILENCE)
    }

    /// A client that never leaves a stream that is only silent.
    #[must_use]
    pub fn patient(name: &str, endpoint: SocketAddr) -> Self {
        Self::with_patience(name, &[endpoint], 0, Duration::MAX)
    }

    fn with_patience(
        name: &str,
        endpoints: &[SocketAddr],
        first: usize,
        patience: Duration,
    ) -> Self {
        let counters = Arc::<Counters>::default();
        let (orders, inbox) = mpsc::unbounded_channel();
        let keeper = Keeper::new(endpoints, first, patience, Arc::clone(&counters));
        Self {
            client: Client::new(name, &[], 0),
            orders,
            counters,
            task: AbortOnDropHandle::new(tokio::spawn(keeper.run(inbox))),
        }
    }

    /// Acquires, again and again while the outcome is unknown.
    pub async fn acquire(&self, call: &AcquireCall) -> Result<Kept, Refused> {
        self.open(call).await.expect("the keeper answers")
    }

    /// [`Holder::acquire`] without waiting for the answer.
    #[must_use]
    pub fn open(&self, call: &AcquireCall) -> Open {
        let (answer, open) = oneshot::channel();
        self.order(Order::Acquire {
            request: Box::new(self.client.acquire_request(call)),
            wait: call.wait,
            answer,
        });
        open
    }

    /// Releases, again and again while the lease is valid and the outcome unknown.
    pub async fn release(&self, kept: &Kept) -> End {
        let (answer, ended) = oneshot::channel();
        let lease_id = kept.lease.lease_id.clone();
        self.order(Order::Release { lease_id, answer });
        match ended.await {
            Ok(end) => end,
            // It was over before.
            Err(_) => kept.known().ended.map_or(End::Lapsed, |(_, end)| end),
        }
    }

    /// Does nothing at all for a while: no heartbeats, nothing is read.
    pub fn stall(&self, time: Duration) {
        self.order(Order::Stall(time));
    }

    /// Ends its stream in good order.
    pub async fn close(self) {
        self.order(Order::Close);
        self.task.await.expect("the keeper does not panic");
    }

    /// Returns once it has opened so many streams.
    pub async fn opened(&self, count: usize) {
        let mut opened = self.counters.opened.subscribe();
        let opened = opened.wait_for(|opened| *opened >= count).await;
        opened.expect("the counters live");
    }

    /// How many of its streams failed so far.
    #[must_use]
    pub fn breaks(&self) -> usize {
        self.counters.breaks.load(Ordering::Relaxed)
    }

    fn order(&self, order: Order) {
        assert!(self.orders.send(order).is_ok(), "the keeper lives");
    }
}
