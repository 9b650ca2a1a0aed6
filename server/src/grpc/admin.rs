//! AdminService: revokes leases and sets limits for operators.

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

use super::{caller_of, decode, encode};
use crate::{
    access::{AccessControl, Verb},
    broker::{Broker, spans},
    config::ReloadableConfig,
    lock::{LockError, LockKey, RevokeMode},
    recent_events::{AuditEvent, AuditEventKind},
    request::{RequestContext, RequestError},
    trace::Span,
};

pub(super) struct AdminServiceImpl {
    /// Empty until the store is verified, because the admin listener starts earlier.
    pub(super) broker: Arc<OnceLock<Broker>>,
    pub(super) access: AccessControl,
    pub(super) live: watch::Receiver<ReloadableConfig>,
}

impl AdminServiceImpl {
    fn context<T>(&self, request: &Request<T>) -> Result<RequestContext, RequestError> {
        let (caller, peer) = caller_of(request)?;
        RequestContext::new(&self.access, self.live.borrow().limits, caller, peer)
    }

    fn record_audit(&self, event: AuditEvent) {
        if let Some(broker) = self.broker.get() {
            broker.history().record_audit(event);
        }
    }

    fn broker(&self) -> Result<&Broker, LockError> {
        self.broker.get().ok_or(LockError::StoreUnavailable)
    }
}

#[tonic::async_trait]
impl AdminService for AdminServiceImpl {
    async fn force_release_lease(
        &self,
        request: Request<ForceReleaseLeaseRequest>,
    ) -> Result<Response<ForceReleaseLeaseResponse>, Status> {
        let context = self.context(&request)?;
        let peer = context.peer;
        let revoke = decode::force_release(request.into_inner(), &context)?;
        let span = Span::current();
        spans::record_locks(&span, [&revoke.lock]);
        spans::lease_id(&span, revoke.lease_id);
        let revoked = match self.broker() {
            Ok(broker) => broker.revoke(&revoke).await,
            Err(error) => Err(error),
        };
        let (holder, queue_length) = revoked.map_err(|error| not_revoked(error, &revoke.lock))?;
        if revoke.mode != RevokeMode::DryRun {
            tracing::warn!(
                target: "audit",
                lock = revoke.lock.to_string(),
                lease_id = %revoke.lease_id,
                owner = holder.as_ref().map(|holder| holder.owner.id.as_str()),
                reason = revoke.reason,
                grace_ms = revoke.grace_ms,
                unsafe_now = revoke.mode == RevokeMode::Immediate,
                caller = &*context.caller.name,
                peer = peer.map(tracing::field::display),
                "an operator has revoked a lease"
            );
            let lock = revoke.lock.clone();
            let event = audit_event(AuditEventKind::ForceRelease, lock, &context, peer);
            self.record_audit(AuditEvent {
                lease_id: Some(revoke.lease_id),
                detail: revoke.reason,
                ..event
            });
        }
        let holder = holder.filter(|_| context.can(Verb::Observe, &revoke.lock));
        let holder = holder.map(|holder| encode::holder(&revoke.lock, &holder));
        Ok(Response::new(ForceReleaseLeaseResponse {
            holder: Some(
                holder.unwrap_or_else(|| encode::unknown_holder(&revoke.lock, revoke.lease_id)),
            ),
            queue_length: encode::count(queue_length),
        }))
    }

    async fn set_lock_limit(
        &self,
        request: Request<SetLockLimitRequest>,
    ) -> Result<Response<SetLockLimitResponse>, Status> {
        let context = self.context(&request)?;
        let peer = context.peer;
        let (lock, limit) = decode::set_lock_limit(request.into_inner(), &context)?;
        let previous = match self.broker() {
            Ok(broker) => broker.set_limit(&lock, limit).await,
            Err(error) => Err(error),
        };
        let previous = previous.map_err(|error| limit_not_set(error, &lock))?;
        let previous = previous.unwrap_or(0);
        let caller = &*context.caller.name;
        let (kind, changed, new) = match limit {
            Some(limit) => (AuditEventKind::SetLimit, "set", limit.to_string()),
            None => (AuditEventKind::RemoveLimit, "removed", "none".to_owned()),
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
        let event = audit_event(kind, lock, &context, peer);
        self.record_audit(AuditEvent {
            detail: format!("from {previous} to {new}"),
            ..event
        });
        Ok(Response::new(SetLockLimitResponse {
            previous_limit: encode::count(previous),
        }))
    }
}

/// Creates an audit event with the current time, without details.
fn audit_event(
    kind: AuditEventKind,
    lock: LockKey,
    context: &RequestContext,
    peer: Option<SocketAddr>,
) -> AuditEvent {
    AuditEvent {
        at: SystemTime::now(),
        kind,
        caller: context.caller.name.to_string(),
        peer: peer.map(|peer| peer.to_string()).unwrap_or_default(),
        lock: Some(lock),
        lease_id: None,
        detail: String::new(),
    }
}

/// Returns the error of a revocation that failed, or found no lease to revoke.
fn not_revoked(error: LockError, lock: &LockKey) -> RequestError {
    let explanations = [
        (
            LockError::LeaseExpired,
            "the lease has already expired: there is nothing to revoke",
        ),
        (
            LockError::LeaseReleased,
            "the lease was already released: there is nothing to revoke",
        ),
        (
            LockError::LeaseNotFound,
            "the lease does not hold this lock; call GetLock to see its holders",
        ),
    ];
    let entry = explanations
        .iter()
        .find(|(explained, _)| *explained == error);
    match entry {
        Some((_, explanation)) => RequestError::explained(error, lock, explanation),
        None => error.for_lock(lock).into(),
    }
}

/// Returns the error of a change of a limit that changed nothing.
fn limit_not_set(error: LockError, lock: &LockKey) -> RequestError {
    if !matches!(error, LockError::LimitMismatch { .. }) {
        return error.for_lock(lock).into();
    }
    let explanation = "the lock is held or waited for as an exclusive or shared lock, which has no \
                       limit; set the limit when the lock is idle";
    RequestError::explained(error, lock, explanation)
}
