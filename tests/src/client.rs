//! A careful unary client: repeats calls of unknown outcome on the next endpoint with the same
//! request id, and trusts a lease only as long as its contract says.

mod call;
pub mod listing;
mod several;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_proto::v1::inspection_service_client::InspectionServiceClient;
use leasehold_proto::v1::lock_service_client::LockServiceClient;
use leasehold_proto::v1::{
    AcquireRequest, GetLockRequest, Lease, Lock, LockTarget, Owner, ReleaseRequest,
    ReleaseResponse, RenewRequest,
};
use rand::Rng;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

pub use self::call::AcquireCall;
use crate::clock::boottime;
use crate::status::{transport_error, unknown_outcome};

const CONNECT_LIMIT: Duration = Duration::from_secs(1);
const KEEP_ALIVE_EVERY: Duration = Duration::from_millis(500);
const KEEP_ALIVE_LIMIT: Duration = Duration::from_secs(1);
const CALL_LIMIT: Duration = Duration::from_secs(2);
const REPEAT_LIMIT: Duration = Duration::from_secs(10);
const REPEAT_PAUSE: Duration = Duration::from_millis(50);
const REPEAT_PAUSE_MOST: Duration = Duration::from_secs(2);
const QUEUE_LIMIT: Duration = Duration::from_secs(20);
const MARGIN_LEAST: Duration = Duration::from_millis(500);

/// A call under way; dropping it drops the call.
pub type Open = AbortOnDropHandle<Result<Held, Status>>;

/// One connection, opened at the first call and again after a break.
#[must_use]
pub fn channel(addr: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).expect("a socket address");
    endpoint
        .connect_timeout(CONNECT_LIMIT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(KEEP_ALIVE_LIMIT)
        .keep_alive_while_idle(true)
        .connect_lazy()
}

/// A lease and the moment from which its validity counts.
#[derive(Debug, Clone)]
pub struct Held {
    /// As received.
    pub lease: Lease,
    /// When the call was sent whose success was reported last.
    pub sent: Duration,
}

impl Held {
    /// The fencing token of its one lock.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.lease
            .grants
            .first()
            .expect("a lease names its lock")
            .fencing_token
    }

    /// Validity as granted.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        let ttl = self.lease.ttl.expect("a lease has a ttl");
        Duration::try_from(ttl).expect("a ttl is positive")
    }

    /// The end of its validity on the referee's clock.
    #[must_use]
    pub fn valid_until(&self) -> Duration {
        self.sent + self.ttl()
    }

    /// Until when a careful holder relies on it.
    #[must_use]
    pub fn trusted_until(&self) -> Duration {
        let ttl = self.ttl();
        self.valid_until() - (ttl / 10).max(MARGIN_LEAST).min(ttl / 4)
    }

    /// Whether a careful holder relies on it now.
    #[must_use]
    pub fn trusted(&self) -> bool {
        boottime() < self.trusted_until()
    }
}

/// What a client went through.
#[derive(Debug, Default)]
pub struct Counters {
    /// Attempts that ended with an unknown outcome.
    pub repeats: AtomicUsize,
    /// Of those, the ones whose connection failed.
    pub transport_errors: AtomicUsize,
}

/// One client of several brokers. Clones share the connections.
#[derive(Debug, Clone)]
pub struct Client {
    name: String,
    channels: Vec<Channel>,
    at: Arc<AtomicUsize>,
    /// What it went through.
    pub counters: Arc<Counters>,
}

impl Client {
    /// A client with its own connection to each endpoint, which starts with the one at `first`.
    #[must_use]
    pub fn new(name: &str, endpoints: &[SocketAddr], first: usize) -> Self {
        let channels = endpoints.iter().map(|addr| channel(*addr)).collect();
        let at = Arc::new(AtomicUsize::new(first));
        Self {
            name: name.to_owned(),
            channels,
            at,
            counters: Arc::default(),
        }
    }

    /// The same client at any of its endpoints.
    #[must_use]
    pub fn at_random(&self) -> Self {
        self.named(
            &self.name,
            rand::thread_rng().gen_range(0..self.channels.len()),
        )
    }

    /// The same connections under another name and at another endpoint.
    #[must_use]
    pub fn named(&self, name: &str, first: usize) -> Self {
        let at = Arc::new(AtomicUsize::new(first));
        Self {
            name: name.to_owned(),
            at,
            ..self.clone()
        }
    }

    /// Acquires, repeating while the outcome is unknown.
    pub async fn acquire(&self, call: &AcquireCall) -> Result<Held, Status> {
        let mut repeats = self.repeats(call.wait);
        let mut held = loop {
            if let Some(result) = repeats.judge(self.acquire_at(repeats.at(), call)).await {
                break result?;
            }
        };
        if boottime() - held.sent > held.ttl() / 2 {
            self.renew(&mut held).await?;
        }
        Ok(held)
    }

    /// Renews, repeating while the outcome is unknown; on success validity counts anew.
    pub async fn renew(&self, held: &mut Held) -> Result<(), Status> {
        let mut repeats = self.repeats(Duration::ZERO);
        loop {
            if let Some(result) = repeats.judge(self.renew_at(repeats.at(), held)).await {
                *held = result?;
                return Ok(());
            }
        }
    }

    /// Releases, repeating while the outcome is unknown.
    pub async fn release(&self, held: &Held) -> Result<ReleaseResponse, Status> {
        let mut repeats = self.repeats(Duration::ZERO);
        loop {
            if let Some(result) = repeats.judge(self.release_at(repeats.at(), held)).await {
                return result;
            }
        }
    }

    /// What the brokers know of a lock; `None` if nobody holds it or waits for it.
    pub async fn get_lock(&self, name: &str) -> Result<Option<Lock>, Status> {
        let mut repeats = self.repeats(Duration::ZERO);
        loop {
            match repeats.judge(self.get_lock_at(repeats.at(), name)).await {
                Some(Ok(lock)) => return Ok(Some(lock)),
                Some(Err(status)) if status.code() == Code::NotFound => return Ok(None),
                Some(Err(status)) => return Err(status),
                None => {}
            }
        }
    }

    /// One attempt at one endpoint.
    pub async fn acquire_at(&self, at: usize, call: &AcquireCall) -> Result<Held, Status> {
        let sent = boottime();
        let response = self.locks(at).acquire(self.acquire_request(call)).await?;
        let lease = response
            .into_inner()
            .lease
            .ok_or_else(|| Status::data_loss("no lease"))?;
        Ok(Held { lease, sent })
    }

    /// [`Client::acquire_at`] in a task of its own.
    pub fn open_at(&self, at: usize, call: &AcquireCall) -> Open {
        let (client, call) = (self.clone(), call.clone());
        let open = tokio::spawn(async move { client.acquire_at(at, &call).await });
        AbortOnDropHandle::new(open)
    }

    /// One attempt at one endpoint.
    pub async fn renew_at(&self, at: usize, held: &Held) -> Result<Held, Status> {
        let sent = boottime();
        let request = RenewRequest {
            lease: Some(held.lease.clone()),
            ttl: None,
        };
        let response = self.locks(at).renew(request).await?.into_inner();
        let mut lease = response
            .lease
            .ok_or_else(|| Status::data_loss("no lease"))?;
        if lease.lease_token.is_empty() {
            lease.lease_token.clone_from(&held.lease.lease_token);
        }
        Ok(Held { lease, sent })
    }

    /// One attempt at one endpoint.
    pub async fn release_at(&self, at: usize, held: &Held) -> Result<ReleaseResponse, Status> {
        let request = ReleaseRequest {
            lease: Some(held.lease.clone()),
            lock: None,
            request_id: String::new(),
        };
        Ok(self.locks(at).release(request).await?.into_inner())
    }

    /// One attempt at one endpoint. A lock that nobody knows is NOT_FOUND.
    pub async fn get_lock_at(&self, at: usize, name: &str) -> Result<Lock, Status> {
        let request = GetLockRequest {
            namespace: String::new(),
            name: name.to_owned(),
        };
        let mut inspection = InspectionServiceClient::new(self.channel(at));
        let response = inspection.get_lock(request).await?.into_inner();
        response.lock.ok_or_else(|| Status::data_loss("no lock"))
    }

    /// Returns once that many calls wait for a lock that somebody holds.
    pub async fn queued_at(&self, at: usize, lock: &str, length: usize) {
        let give_up = boottime() + QUEUE_LIMIT;
        loop {
            let state = self.get_lock_at(at, lock).await.expect("it is held");
            if usize::try_from(state.queue_length) == Ok(length) {
                return;
            }
            assert!(boottime() < give_up, "{length} should wait: {state:?}");
        }
    }

    /// The request of a call, as this client sends it.
    #[must_use]
    pub fn acquire_request(&self, call: &AcquireCall) -> AcquireRequest {
        let target = LockTarget {
            name: call.lock.clone(),
            mode: call.mode.into(),
            permits: call.permits.0,
            limit: call.permits.1,
            ..LockTarget::default()
        };
        AcquireRequest {
            target: Some(target),
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

    fn repeats(&self, wait: Duration) -> Repeats<'_> {
        Repeats {
            client: self,
            limit: wait + CALL_LIMIT,
            pause: REPEAT_PAUSE,
            give_up: boottime() + wait + REPEAT_LIMIT,
        }
    }
}

struct Repeats<'a> {
    client: &'a Client,
    limit: Duration,
    pause: Duration,
    give_up: Duration,
}

impl Repeats<'_> {
    fn at(&self) -> usize {
        self.client.at.load(Ordering::Relaxed)
    }

    /// `None`: the outcome is unknown, repeat at the next endpoint.
    async fn judge<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, Status>>,
    ) -> Option<Result<T, Status>> {
        let outcome = tokio::time::timeout(self.limit, attempt).await;
        let status = match outcome.unwrap_or_else(|_| Err(silent())) {
            Ok(value) => return Some(Ok(value)),
            Err(status) => status,
        };
        if !unknown_outcome(&status) || boottime() >= self.give_up {
            return Some(Err(status));
        }
        let counters = &self.client.counters;
        counters.repeats.fetch_add(1, Ordering::Relaxed);
        if transport_error(&status) {
            counters.transport_errors.fetch_add(1, Ordering::Relaxed);
        }
        self.client.at.fetch_add(1, Ordering::Relaxed);
        let jitter = rand::thread_rng().gen_range(0.5..1.5);
        tokio::time::sleep(self.pause.mul_f64(jitter)).await;
        self.pause = (self.pause * 2).min(REPEAT_PAUSE_MOST);
        None
    }
}

fn duration(of: Duration) -> prost_types::Duration {
    of.try_into().expect("a duration of seconds")
}

fn silent() -> Status {
    Status::deadline_exceeded("no answer in time")
}
