//! A careful unary client: repeats calls of unknown outcome at the next endpoint with the same
//! request id, and relies on a lease only within its validity.

mod call;
pub mod listing;
mod recording;
mod several;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_proto::v1::inspection_service_client::InspectionServiceClient;
use leasehold_proto::v1::lock_service_client::LockServiceClient;
use leasehold_proto::v1::{
    AcquireRequest, GetLockRequest, Lease, Lock, Owner, ReleaseRequest, ReleaseResponse,
    RenewRequest,
};
use rand::Rng;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

pub use self::call::AcquireCall;
use self::recording::receive_lease;
use crate::clock::boottime;
use crate::history::recorder::HistoryRecorder;
use crate::status::{has_unknown_outcome, is_transport_error};

const CONNECT_LIMIT: Duration = Duration::from_secs(1);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(500);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(1);
const CALL_LIMIT: Duration = Duration::from_secs(2);
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);
const QUEUE_LIMIT: Duration = Duration::from_secs(20);
const SAFETY_MARGIN_MIN: Duration = Duration::from_millis(500);

/// A pending call. Dropping it cancels the call.
pub type AcquireHandle = AbortOnDropHandle<Result<HeldLease, Status>>;

/// Returns a channel that connects at its first call and reconnects after a break.
#[must_use]
pub fn channel(addr: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).expect("a socket address");
    endpoint
        .connect_timeout(CONNECT_LIMIT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_lazy()
}

/// A lease, and the time from which its validity counts.
#[derive(Debug, Clone)]
pub struct HeldLease {
    /// The lease as received.
    pub lease: Lease,
    /// Send time of the last successful call.
    pub sent_at: Duration,
}

impl HeldLease {
    /// Returns the fencing token of the lease's only lock.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.lease
            .grants
            .first()
            .expect("a lease names its lock")
            .fencing_token
    }

    /// Returns the TTL of the lease.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        let ttl = self.lease.ttl.expect("a lease has a ttl");
        Duration::try_from(ttl).expect("a ttl is positive")
    }

    /// Returns the end of the validity, as time of `CLOCK_BOOTTIME`.
    #[must_use]
    pub fn valid_until(&self) -> Duration {
        self.sent_at + self.ttl()
    }

    /// Returns the time until which a careful holder relies on the lease.
    #[must_use]
    pub fn trusted_until(&self) -> Duration {
        let ttl = self.ttl();
        self.valid_until() - (ttl / 10).max(SAFETY_MARGIN_MIN).min(ttl / 4)
    }

    /// Returns true if a careful holder relies on the lease now.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        boottime() < self.trusted_until()
    }
}

/// Event counters of a client.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of attempts with an unknown outcome.
    pub repeats: AtomicUsize,
    /// Number of these attempts whose connection failed.
    pub transport_errors: AtomicUsize,
}

/// A client of several brokers. Clones share the connections.
#[derive(Debug, Clone)]
pub struct Client {
    name: String,
    channels: Vec<Channel>,
    endpoint: Arc<AtomicUsize>,
    pub counters: Arc<Counters>,
    /// Recorder of what the client sends and receives.
    recorder: Option<Arc<HistoryRecorder>>,
}

impl Client {
    /// Creates a client with a connection to each endpoint, which starts at index `first`.
    #[must_use]
    pub fn new(name: &str, endpoints: &[SocketAddr], first: usize) -> Self {
        let channels = endpoints.iter().map(|addr| channel(*addr)).collect();
        let endpoint = Arc::new(AtomicUsize::new(first));
        Self {
            name: name.to_owned(),
            channels,
            endpoint,
            counters: Arc::default(),
            recorder: None,
        }
    }

    /// Returns a clone that starts at a random endpoint.
    #[must_use]
    pub fn at_random_endpoint(&self) -> Self {
        self.at_endpoint(rand::thread_rng().gen_range(0..self.channels.len()))
    }

    /// Returns a clone that starts at this endpoint.
    #[must_use]
    pub fn at_endpoint(&self, first: usize) -> Self {
        self.with_name(&self.name, first)
    }

    /// Returns the number of endpoints.
    #[must_use]
    pub fn endpoint_count(&self) -> usize {
        self.channels.len()
    }

    /// Returns a clone with the same connections, another name and another first endpoint.
    #[must_use]
    pub fn with_name(&self, name: &str, first: usize) -> Self {
        let at = Arc::new(AtomicUsize::new(first));
        Self {
            name: name.to_owned(),
            endpoint: at,
            ..self.clone()
        }
    }

    /// Acquires, and repeats the call while its outcome is unknown. Renews the lease if the call
    /// took longer than half of its TTL.
    pub async fn acquire(&self, call: &AcquireCall) -> Result<HeldLease, Status> {
        let mut held = self.acquire_without_renewal(call).await?;
        if boottime() - held.sent_at > held.ttl() / 2 {
            self.renew(&mut held).await?;
        }
        Ok(held)
    }

    /// Acquires as [`Client::acquire`], but does not renew the lease.
    pub async fn acquire_without_renewal(&self, call: &AcquireCall) -> Result<HeldLease, Status> {
        let mut repeats = self.retry_loop(call.wait);
        loop {
            if let Some(result) = repeats
                .run_attempt(self.acquire_at(repeats.endpoint(), call))
                .await
            {
                return result;
            }
        }
    }

    /// Renews, and repeats the call while its outcome is unknown. On success a new validity starts.
    pub async fn renew(&self, held: &mut HeldLease) -> Result<(), Status> {
        let mut repeats = self.retry_loop(Duration::ZERO);
        loop {
            if let Some(result) = repeats
                .run_attempt(self.renew_at(repeats.endpoint(), held))
                .await
            {
                *held = result?;
                return Ok(());
            }
        }
    }

    /// Releases, and repeats the call while its outcome is unknown.
    pub async fn release(&self, held: &HeldLease) -> Result<ReleaseResponse, Status> {
        let mut repeats = self.retry_loop(Duration::ZERO);
        loop {
            if let Some(result) = repeats
                .run_attempt(self.release_at(repeats.endpoint(), held))
                .await
            {
                return result;
            }
        }
    }

    /// Returns the state of a lock, or `None` if it has no holder and no waiter.
    pub async fn get_lock(&self, name: &str) -> Result<Option<Lock>, Status> {
        let mut repeats = self.retry_loop(Duration::ZERO);
        loop {
            match repeats
                .run_attempt(self.get_lock_at(repeats.endpoint(), name))
                .await
            {
                Some(Ok(lock)) => return Ok(Some(lock)),
                Some(Err(status)) if status.code() == Code::NotFound => return Ok(None),
                Some(Err(status)) => return Err(status),
                None => {}
            }
        }
    }

    /// Attempts an acquire once, at one endpoint.
    pub async fn acquire_at(&self, at: usize, call: &AcquireCall) -> Result<HeldLease, Status> {
        let request = self.acquire_request(call);
        let recorded = self.record_acquire(at, request.target.as_slice(), call, None);
        let mut locks = self.locks(at);
        let reply = Box::pin(async { Ok(locks.acquire(request).await?.into_inner().lease) });
        receive_lease(recorded, reply).await
    }

    /// Starts [`Client::acquire_at`] in a separate task.
    pub fn start_acquire_at(&self, at: usize, call: &AcquireCall) -> AcquireHandle {
        let (client, call) = (self.clone(), call.clone());
        let open = tokio::spawn(async move { client.acquire_at(at, &call).await });
        AbortOnDropHandle::new(open)
    }

    /// Attempts a renewal once, at one endpoint.
    pub async fn renew_at(&self, at: usize, held: &HeldLease) -> Result<HeldLease, Status> {
        let request = RenewRequest {
            lease: Some(held.lease.clone()),
            ttl: None,
        };
        let mut locks = self.locks(at);
        let reply = Box::pin(async { Ok(locks.renew(request).await?.into_inner().lease) });
        let mut renewed = receive_lease(None, reply).await;
        if let Ok(HeldLease { lease, .. }) = &mut renewed
            && lease.lease_token.is_empty()
        {
            lease.lease_token.clone_from(&held.lease.lease_token);
        }
        self.record_renewal(&held.lease, &renewed);
        renewed
    }

    /// Attempts a release once, at one endpoint.
    pub async fn release_at(&self, at: usize, held: &HeldLease) -> Result<ReleaseResponse, Status> {
        let request = ReleaseRequest {
            lease: Some(held.lease.clone()),
            lock: None,
            request_id: String::new(),
        };
        self.send_release(at, request).await
    }

    /// Reads a lock once, at one endpoint. An unknown lock fails with NOT_FOUND.
    pub async fn get_lock_at(&self, at: usize, name: &str) -> Result<Lock, Status> {
        let request = GetLockRequest {
            namespace: String::new(),
            name: name.to_owned(),
        };
        let mut inspection = InspectionServiceClient::new(self.channel(at));
        let response = inspection.get_lock(request).await?.into_inner();
        response.lock.ok_or_else(|| Status::data_loss("no lock"))
    }

    /// Waits until `length` calls wait for a lock that is held.
    pub async fn wait_for_queue_length_at(&self, at: usize, lock: &str, length: usize) {
        let give_up = boottime() + QUEUE_LIMIT;
        loop {
            let state = self.get_lock_at(at, lock).await.expect("it is held");
            if usize::try_from(state.queue_length) == Ok(length) {
                return;
            }
            assert!(boottime() < give_up, "{length} should wait: {state:?}");
        }
    }

    /// Returns the request that this client sends for a call.
    #[must_use]
    pub fn acquire_request(&self, call: &AcquireCall) -> AcquireRequest {
        AcquireRequest {
            target: Some(call.target()),
            owner: Some(Owner {
                id: self.name.clone(),
                ..Owner::default()
            }),
            ttl: Some(duration(call.ttl)),
            wait_timeout: Some(duration(call.wait)),
            request_id: call.request_id.clone(),
            max_hold: (!call.max_hold.is_zero()).then(|| duration(call.max_hold)),
            disconnect_grace: call.disconnect_grace.map(duration),
            ..AcquireRequest::default()
        }
    }

    fn locks(&self, at: usize) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel(at))
    }

    fn channel(&self, at: usize) -> Channel {
        self.channels[at % self.channels.len()].clone()
    }

    fn retry_loop(&self, wait: Duration) -> RetryLoop<'_> {
        RetryLoop {
            client: self,
            limit: wait + CALL_LIMIT,
            pause: RETRY_PAUSE,
            deadline: boottime() + wait + RETRY_TIMEOUT,
        }
    }
}

struct RetryLoop<'a> {
    client: &'a Client,
    limit: Duration,
    pause: Duration,
    deadline: Duration,
}

impl RetryLoop<'_> {
    fn endpoint(&self) -> usize {
        self.client.endpoint.load(Ordering::Relaxed)
    }

    /// Returns the result of an attempt, or `None` if its outcome is unknown and the call must be
    /// repeated at the next endpoint. In that case it waits for the retry pause first.
    async fn run_attempt<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, Status>>,
    ) -> Option<Result<T, Status>> {
        let outcome = tokio::time::timeout(self.limit, attempt).await;
        let status = match outcome.unwrap_or_else(|_| Err(deadline_exceeded())) {
            Ok(value) => return Some(Ok(value)),
            Err(status) => status,
        };
        if !has_unknown_outcome(&status) || boottime() >= self.deadline {
            return Some(Err(status));
        }
        let counters = &self.client.counters;
        counters.repeats.fetch_add(1, Ordering::Relaxed);
        if is_transport_error(&status) {
            counters.transport_errors.fetch_add(1, Ordering::Relaxed);
        }
        self.client.endpoint.fetch_add(1, Ordering::Relaxed);
        let jitter = rand::thread_rng().gen_range(0.5..1.5);
        tokio::time::sleep(self.pause.mul_f64(jitter)).await;
        self.pause = (self.pause * 2).min(RETRY_PAUSE_MAX);
        None
    }
}

fn duration(of: Duration) -> prost_types::Duration {
    of.try_into().expect("a duration of seconds")
}

fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("no answer in time")
}
