//! A broker on Redis that asks who calls, and what callers do there, raw.

use std::time::Duration;

use leasehold_proto::v1::{
    AcquireRequest, HoldRequest, HoldResponse, Lease, LockTarget, Owner, ReleaseRequest,
    RenewRequest, hold_request::Message as Ask, hold_response::Message as Told,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use uuid::Uuid;

use crate::{
    broker_process::BrokerProcess,
    callers::{Caller, Doors},
    redis_server::RedisServer,
};

/// An answer comes sooner.
pub const SOON: Duration = Duration::from_secs(5);
/// All verbs on all locks, for everybody who is known.
pub const EVERYTHING: &str = r#"
    [[rule]]
    callers = ["*"]
    verbs = ["acquire", "observe", "list", "force_release", "admin"]
"#;

/// A broker, and those who know it.
#[derive(Debug)]
pub struct Guarded {
    /// Who may come in.
    pub doors: Doors,
    /// The broker.
    pub broker: BrokerProcess,
    /// Its store.
    pub redis: RedisServer,
}

impl Guarded {
    /// With these rules and static tokens: names and secrets.
    pub async fn start(policy: &str, tokens: &[(&str, &str)]) -> Self {
        Self::start_with(policy, tokens, &[]).await
    }

    /// With these settings, too: their keys as environment variables, without the beginning.
    pub async fn start_with(
        policy: &str,
        tokens: &[(&str, &str)],
        settings: &[(&str, &str)],
    ) -> Self {
        let redis = RedisServer::start().await;
        let doors = Doors::new(policy, tokens);
        let mut options = doors.options(redis.url());
        let settings = settings.iter();
        let settings =
            settings.map(|(key, value)| (format!("LEASEHOLD__{key}"), (*value).to_owned()));
        options.env.extend(settings);
        options.init_store().await;
        Self {
            broker: BrokerProcess::start(&options).await,
            doors,
            redis,
        }
    }

    /// Somebody with this token.
    #[must_use]
    pub fn caller(&self, token: &str) -> Caller {
        Caller::new(self.broker.addr(), self.broker.admin(), Some(token))
    }

    /// Somebody without any.
    #[must_use]
    pub fn nobody(&self) -> Caller {
        Caller::new(self.broker.addr(), self.broker.admin(), None)
    }
}

/// A call for `namespace:name`, or for a name of the default namespace, for so long.
#[must_use]
pub fn acquire(name: &str, ttl: Duration) -> AcquireRequest {
    let (namespace, name) = name.split_once(':').unwrap_or(("", name));
    AcquireRequest {
        target: Some(LockTarget {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..LockTarget::default()
        }),
        owner: Some(Owner {
            id: "worker".to_owned(),
            reason: "secret business".to_owned(),
            ..Owner::default()
        }),
        ttl: ttl.try_into().ok(),
        request_id: Uuid::new_v4().to_string(),
        ..AcquireRequest::default()
    }
}

/// Acquires.
///
/// # Errors
/// As answered.
pub async fn taken(caller: &Caller, request: AcquireRequest) -> Result<Lease, Status> {
    let taken = caller.locks.clone().acquire(request).await;
    Ok(taken?.into_inner().lease.expect("a grant has a lease"))
}

/// Renews.
///
/// # Errors
/// As answered.
pub async fn renewed(caller: &Caller, lease: &Lease) -> Result<(), Status> {
    let lease = Some(lease.clone());
    let renew = RenewRequest { lease, ttl: None };
    caller.locks.clone().renew(renew).await.map(drop)
}

/// Releases.
///
/// # Errors
/// As answered.
pub async fn given_back(caller: &Caller, lease: &Lease) -> Result<(), Status> {
    let release = ReleaseRequest {
        lease: Some(lease.clone()),
        ..ReleaseRequest::default()
    };
    caller.locks.clone().release(release).await.map(drop)
}

/// A lease stream.
pub async fn stream(caller: &Caller) -> (mpsc::Sender<HoldRequest>, Streaming<HoldResponse>) {
    let (asks, requests) = mpsc::channel(64);
    let mut locks = caller.locks.clone();
    let told = locks.hold(ReceiverStream::new(requests)).await;
    (asks, told.expect("a stream").into_inner())
}

/// Says something on it.
pub async fn send(asks: &mpsc::Sender<HoldRequest>, message: Ask) {
    let message = Some(message);
    let sent = asks.send(HoldRequest { message }).await;
    sent.expect("the stream lives");
}

/// What it tells next.
pub async fn next(told: &mut Streaming<HoldResponse>) -> Told {
    let next = timeout(SOON, told.message()).await.expect("an answer");
    let next = next.expect("the stream lives").expect("it goes on");
    next.message.expect("a message")
}
