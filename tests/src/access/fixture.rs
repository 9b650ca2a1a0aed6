//! A broker on Redis that authenticates its callers, and raw calls to it.

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
    access::files_and_callers::{AccessFiles, Caller},
    broker::process::BrokerProcess,
    redis::server::RedisServer,
};

/// Upper bound of the time until a reply.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Rules that permit all verbs on all locks to every authenticated caller.
pub const ALLOW_ALL_POLICY: &str = r#"
    [[rule]]
    callers = ["*"]
    verbs = ["acquire", "observe", "list", "force_release", "admin"]
"#;

/// A broker with access control and its Redis.
#[derive(Debug)]
pub struct AccessControlFixture {
    /// Files with tokens, keys and rules.
    pub access_files: AccessFiles,
    pub broker: BrokerProcess,
    pub redis: RedisServer,
}

impl AccessControlFixture {
    /// Starts a broker with these rules and static tokens (pairs of name and secret).
    pub async fn start(policy: &str, tokens: &[(&str, &str)]) -> Self {
        Self::start_with(policy, tokens, &[]).await
    }

    /// Starts a broker with additional settings. Keys are environment variables without
    /// `LEASEHOLD__`.
    pub async fn start_with(
        policy: &str,
        tokens: &[(&str, &str)],
        settings: &[(&str, &str)],
    ) -> Self {
        let redis = RedisServer::start().await;
        let access_files = AccessFiles::new(policy, tokens);
        let mut options = access_files.options(redis.url());
        let settings = settings.iter();
        let settings =
            settings.map(|(key, value)| (format!("LEASEHOLD__{key}"), (*value).to_owned()));
        options.env.extend(settings);
        options.init_store().await;
        Self {
            broker: BrokerProcess::start(&options).await,
            access_files,
            redis,
        }
    }

    /// Returns a caller that presents `token`.
    #[must_use]
    pub fn caller(&self, token: &str) -> Caller {
        Caller::new(self.broker.addr(), self.broker.admin(), Some(token))
    }

    /// Returns a caller without a credential.
    #[must_use]
    pub fn anonymous_caller(&self) -> Caller {
        Caller::new(self.broker.addr(), self.broker.admin(), None)
    }
}

/// Returns a request for `namespace:name`, or for a name in the default namespace.
#[must_use]
pub fn acquire_request(name: &str, ttl: Duration) -> AcquireRequest {
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

/// Sends `Acquire` and returns the granted lease.
///
/// # Errors
/// The status that the broker returned.
pub async fn send_acquire(caller: &Caller, request: AcquireRequest) -> Result<Lease, Status> {
    let taken = caller.locks.clone().acquire(request).await;
    Ok(taken?.into_inner().lease.expect("a grant has a lease"))
}

/// Sends `Renew`.
///
/// # Errors
/// The status that the broker returned.
pub async fn send_renew(caller: &Caller, lease: &Lease) -> Result<(), Status> {
    let lease = Some(lease.clone());
    let renew = RenewRequest { lease, ttl: None };
    caller.locks.clone().renew(renew).await.map(drop)
}

/// Sends `Release`.
///
/// # Errors
/// The status that the broker returned.
pub async fn send_release(caller: &Caller, lease: &Lease) -> Result<(), Status> {
    let release = ReleaseRequest {
        lease: Some(lease.clone()),
        ..ReleaseRequest::default()
    };
    caller.locks.clone().release(release).await.map(drop)
}

/// Opens a lease stream.
pub async fn open_stream(caller: &Caller) -> (mpsc::Sender<HoldRequest>, Streaming<HoldResponse>) {
    let (asks, requests) = mpsc::channel(64);
    let mut locks = caller.locks.clone();
    let responses = locks.hold(ReceiverStream::new(requests)).await;
    (asks, responses.expect("a stream").into_inner())
}

/// Sends a message on a lease stream.
pub async fn send_message(asks: &mpsc::Sender<HoldRequest>, message: Ask) {
    let message = Some(message);
    let sent = asks.send(HoldRequest { message }).await;
    sent.expect("the stream lives");
}

/// Waits for the next message of a lease stream.
pub async fn next_message(responses: &mut Streaming<HoldResponse>) -> Told {
    let next = timeout(REPLY_TIMEOUT, responses.message())
        .await
        .expect("an answer");
    let next = next.expect("the stream lives").expect("it goes on");
    next.message.expect("a message")
}
