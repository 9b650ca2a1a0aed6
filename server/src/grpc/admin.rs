//! AdminService: what operators change.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use leasehold_proto::v1::{
    ForceReleaseLeaseRequest, ForceReleaseLeaseResponse, SetLockLimitRequest, SetLockLimitResponse,
    admin_service_server::AdminService,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{address, admit::Asking, decode, encode, status};
use crate::{
    access::{Gate, Verb},
    broker::{Broker, traced as spans},
    config::Live,
    history::{Deed, DeedKind},
    lock::{Force, LockError, LockKey},
    trace::Traced,
};

pub(super) struct Admin {
    /// Empty until the store is verified: the admin listener is up before.
    pub(super) broker: Arc<OnceLock<Broker>>,
    pub(super) gate: Gate,
    pub(super) live: watch::Receiver<Live>,
}

impl Admin {
    fn asking<T>(&self, request: &Request<T>) -> Result<Asking, Status> {
        Asking::by(&self.gate, self.live.borrow().limits, request)
    }

    fn done(&self, deed: Deed) {
        if let Some(broker) = self.broker.get() {
            broker.history().done(deed);
        }
    }

    fn broker(&self) -> Result<&Broker, LockError> {
        self.broker.get().ok_or(LockError::StoreUnavailable)
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn force_release_lease(
        &self,
        request: Request<ForceReleaseLeaseRequest>,
    ) -> Result<Response<ForceReleaseLeaseResponse>, Status> {
        let peer = address(&request);
        let asking = self.asking(&request)?;
        let revoke = decode::force_release(request.into_inner(), &asking)?;
        let traced = Traced::current();
        spans::about(&traced, [&revoke.lock]);
        spans::lease_id(&traced, revoke.lease_id);
        let revoked = match self.broker() {
            Ok(broker) => broker.revoke(&revoke).await,
            Err(error) => Err(error),
        };
        let (holder, queue_length) =
            revoked.map_err(|error| status::not_taken(&error, &revoke.lock))?;
        if revoke.force != Force::None {
            tracing::warn!(
                target: "audit",
                lock = revoke.lock.to_string(),
                lease_id = %revoke.lease_id,
                owner = holder.as_ref().map(|holder| holder.owner.id.as_str()),
                reason = revoke.reason,
                grace_ms = revoke.grace_ms,
                unsafe_now = revoke.force == Force::Unsafe,
                caller = &*asking.caller.name,
                peer = peer.map(tracing::field::display),
                "an operator has taken a lease away"
            );
            let lock = revoke.lock.clone();
            let deed = deed(DeedKind::ForceRelease, lock, (&asking, peer));
            self.done(Deed {
                lease_id: Some(revoke.lease_id),
                why: revoke.reason,
                ..deed
            });
        }
        let holder = holder.filter(|_| asking.may(Verb::Observe, &revoke.lock));
        let holder = holder.map(|holder| encode::holder(&revoke.lock, &holder));
        Ok(Response::new(ForceReleaseLeaseResponse {
            holder: Some(holder.unwrap_or_else(|| encode::gone(&revoke.lock, revoke.lease_id))),
            queue_length: encode::count(queue_length),
        }))
    }

    async fn set_lock_limit(
        &self,
        request: Request<SetLockLimitRequest>,
    ) -> Result<Response<SetLockLimitResponse>, Status> {
        let peer = address(&request);
        let asking = self.asking(&request)?;
        let (lock, limit) = decode::set_lock_limit(request.into_inner(), &asking)?;
        let previous = match self.broker() {
            Ok(broker) => broker.set_limit(&lock, limit).await,
            Err(error) => Err(error),
        };
        let previous = previous.map_err(|error| status::limit_not_set(&error, &lock))?;
        let caller = &*asking.caller.name;
        let (kind, changed, new) = match limit {
            Some(limit) => (DeedKind::SetLimit, "set", limit.to_string()),
            None => (DeedKind::RemoveLimit, "removed", "none".to_owned()),
        };
        tracing::info!(
            target: "audit",
            lock = lock.to_string(),
            limit,
            previous,
            caller,
            peer = peer.map(tracing::field::display),
            "an operator has {changed} a limit"
        );
        let deed = deed(kind, lock, (&asking, peer));
        self.done(Deed {
            why: format!("from {previous} to {new}"),
            ..deed
        });
        Ok(Response::new(SetLockLimitResponse {
            previous_limit: encode::count(previous),
        }))
    }
}

/// What an operator has done now, without the particulars.
fn deed(kind: DeedKind, lock: LockKey, (asking, peer): (&Asking, Option<SocketAddr>)) -> Deed {
    Deed {
        at: SystemTime::now(),
        kind,
        caller: asking.caller.name.to_string(),
        peer: peer.map(|peer| peer.to_string()).unwrap_or_default(),
        lock: Some(lock),
        lease_id: None,
        why: String::new(),
    }
}
