//! A careful client of lease streams: sends heartbeats, relies on a lease only within its validity,
//! and reconnects to the next endpoint when its stream breaks or falls silent.

mod connection;
mod messages;
mod task;

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

use self::task::Session;
use crate::{
    client::unary::{AcquireCall, Client},
    clock::boottime,
};

const SAFETY_MARGIN_MIN: Duration = Duration::from_millis(500);
/// Time without a reply to a heartbeat after which a stream with leases is abandoned.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The pending result of an acquire.
pub type AcquireReceiver = oneshot::Receiver<Result<SessionLease, Refused>>;

/// Returns the time by which a careful holder stops before the end of a validity.
#[must_use]
pub fn safety_margin(ttl: Duration) -> Duration {
    (ttl / 10).max(SAFETY_MARGIN_MIN).min(ttl / 4)
}

/// Event counters of a holder.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of streams opened.
    pub opened: watch::Sender<usize>,
    /// Number of streams that broke, fell silent, or could not be opened.
    pub broken: AtomicUsize,
    /// Number of acknowledgements that arrived after the end of the trusted validity.
    pub late_acks: AtomicUsize,
}

/// Reason for the end of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEnd {
    /// This client released the lease.
    Released,
    /// The stream reported the end.
    Reported(LeaseEndReason),
    /// The attach or the release was rejected.
    Rejected(ErrorReason),
    /// The trusted validity ended before an acknowledgement arrived.
    ValidityEnded,
}

/// State of a lease in the client.
#[derive(Debug, Clone, Copy)]
pub struct LeaseState {
    /// End of the validity, as time of `CLOCK_BOOTTIME`.
    pub valid_until: Duration,
    /// The latest TTL from the broker.
    pub ttl: Duration,
    /// Time at which the lease was attached to its current stream, if it was moved.
    pub attached_at: Option<Duration>,
    /// Time of the last acknowledgement.
    pub acknowledged_at: Option<Duration>,
    /// Time and reason of the end of the lease.
    pub end: Option<(Duration, LeaseEnd)>,
}

impl LeaseState {
    /// Returns the time until which a careful holder relies on the lease.
    #[must_use]
    pub fn trusted_until(&self) -> Duration {
        let trusted = self.valid_until.saturating_sub(safety_margin(self.ttl));
        let ended = self.end.map_or(trusted, |(at, _)| at);
        trusted.min(ended)
    }
}

/// A lease of a [`SessionClient`].
#[derive(Debug, Clone)]
pub struct SessionLease {
    /// The lease as granted.
    pub lease: Lease,
    state: watch::Receiver<LeaseState>,
}

impl SessionLease {
    /// Returns the fencing token of the lease's only lock.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.lease.grants[0].fencing_token
    }

    #[must_use]
    pub fn state(&self) -> LeaseState {
        *self.state.borrow()
    }

    /// Returns true if a careful holder relies on the lease now.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        boottime() < self.state().trusted_until()
    }

    /// Waits until the state of the lease satisfies `is_so`, and returns the state.
    pub async fn wait_until(&self, is_so: impl FnMut(&LeaseState) -> bool) -> LeaseState {
        let mut known = self.state.clone();
        *known
            .wait_for(is_so)
            .await
            .expect("its holder lives or has ended it")
    }

    /// Waits until a careful holder stops relying on the lease, and returns that time.
    pub async fn wait_until_untrusted(&self) -> Duration {
        while self.is_trusted() {
            let remaining = self.state().trusted_until().saturating_sub(boottime());
            tokio::time::sleep(remaining).await;
        }
        self.state().trusted_until()
    }
}

/// A command for a [`Session`].
enum SessionCommand {
    Acquire {
        request: Box<AcquireRequest>,
        wait_time: Duration,
        answer: oneshot::Sender<Result<SessionLease, Refused>>,
    },
    Release {
        lease_id: String,
        answer: oneshot::Sender<LeaseEnd>,
    },
    Stall(Duration),
    Close,
}

/// A client with one stream at a time, in a separate task. Dropping it breaks its stream.
#[derive(Debug)]
pub struct SessionClient {
    client: Client,
    commands: mpsc::UnboundedSender<SessionCommand>,
    pub counters: Arc<Counters>,
    task: AbortOnDropHandle<()>,
}

impl SessionClient {
    /// Starts a client at the endpoint with index `first`.
    #[must_use]
    pub fn start(name: &str, endpoints: &[SocketAddr], first: usize) -> Self {
        Self::with_silence_timeout(name, endpoints, first, SILENCE_TIMEOUT)
    }

    /// Starts a client that never abandons a stream for its silence.
    #[must_use]
    pub fn without_silence_timeout(name: &str, endpoint: SocketAddr) -> Self {
        Self::with_silence_timeout(name, &[endpoint], 0, Duration::MAX)
    }

    fn with_silence_timeout(
        name: &str,
        endpoints: &[SocketAddr],
        first: usize,
        patience: Duration,
    ) -> Self {
        let counters = Arc::<Counters>::default();
        let (commands, inbox) = mpsc::unbounded_channel();
        let keeper = Session::new(endpoints, first, patience, Arc::clone(&counters));
        Self {
            client: Client::new(name, &[], 0),
            commands,
            counters,
            task: AbortOnDropHandle::new(tokio::spawn(keeper.run(inbox))),
        }
    }

    /// Acquires a lock, and repeats the call while its outcome is unknown.
    pub async fn acquire(&self, call: &AcquireCall) -> Result<SessionLease, Refused> {
        self.start_acquire(call).await.expect("the keeper answers")
    }

    /// Starts [`SessionClient::acquire`] without waiting for the result.
    #[must_use]
    pub fn start_acquire(&self, call: &AcquireCall) -> AcquireReceiver {
        let (answer, open) = oneshot::channel();
        self.send_command(SessionCommand::Acquire {
            request: Box::new(self.client.acquire_request(call)),
            wait_time: call.wait,
            answer,
        });
        open
    }

    /// Releases a lease, and repeats the call while the lease is valid and the outcome unknown.
    pub async fn release(&self, session_lease: &SessionLease) -> LeaseEnd {
        let (answer, ended) = oneshot::channel();
        let lease_id = session_lease.lease.lease_id.clone();
        self.send_command(SessionCommand::Release { lease_id, answer });
        match ended.await {
            Ok(end) => end,
            // The lease had ended before the release.
            Err(_) => session_lease
                .state()
                .end
                .map_or(LeaseEnd::ValidityEnded, |(_, end)| end),
        }
    }

    /// Blocks the client for `time`: it neither sends heartbeats nor reads its stream.
    pub fn stall(&self, time: Duration) {
        self.send_command(SessionCommand::Stall(time));
    }

    /// Closes the stream normally.
    pub async fn close(self) {
        self.send_command(SessionCommand::Close);
        self.task.await.expect("the keeper does not panic");
    }

    /// Waits until the client has opened `count` streams.
    pub async fn wait_for_opened_streams(&self, count: usize) {
        let mut opened = self.counters.opened.subscribe();
        let opened = opened.wait_for(|opened| *opened >= count).await;
        opened.expect("the counters live");
    }

    /// Returns the number of streams that failed so far.
    #[must_use]
    pub fn broken_streams(&self) -> usize {
        self.counters.broken.load(Ordering::Relaxed)
    }

    fn send_command(&self, order: SessionCommand) {
        assert!(self.commands.send(order).is_ok(), "the keeper lives");
    }
}
