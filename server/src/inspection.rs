//! Inspection of locks and actions of operators, in plain types: authorizes and redacts what
//! callers read, and records what operators change. `grpc` and `console` are built on it.

mod listing;
mod watch;

use std::{
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use futures::stream::Stream;
use tokio::sync::watch::Receiver;

#[cfg(feature = "fuzzing")]
pub(crate) use self::listing::page_token;
pub use self::{
    listing::{ListRequest, ListedLock, LockPage},
    watch::{LockEvent, WatchRequest},
};
use crate::{
    access::{AccessControl, Verb},
    broker::{Broker, spans},
    config::ReloadableConfig,
    lock::{
        ActiveClosure, CloseCommand, Holder, LockError, LockFailure, LockKey, LockState,
        RevokeCommand, RevokeMode,
    },
    recent_events::{AuditEvent, AuditEventKind},
    request::{FieldValidator, RequestContext, RequestError},
    trace::Span,
    transport::Peer,
};

/// Reads locks, and revokes leases, sets limits, and closes and opens locks for operators. Cheap to
/// clone.
///
/// Each method checks the caller's credential again, because a page of the operator console calls
/// several of them.
#[derive(Clone)]
pub struct InspectionService {
    /// Empty until the store is verified, because the admin listener starts earlier.
    broker: Arc<OnceLock<Broker>>,
    access: AccessControl,
    live: Receiver<ReloadableConfig>,
    page_bounds: PageBounds,
}

/// Bounds of the size of a page.
#[derive(Debug, Clone, Copy)]
pub struct PageBounds {
    /// Maximum size of a page in bytes.
    pub max_bytes: usize,
    /// Returns the size of a lock on a page in bytes.
    pub size: fn(&ListedLock) -> usize,
}

impl InspectionService {
    /// Creates a service whose requests fail until `broker` is set.
    #[must_use]
    pub fn new(
        broker: Arc<OnceLock<Broker>>,
        access: AccessControl,
        live: Receiver<ReloadableConfig>,
        page_bounds: PageBounds,
    ) -> Self {
        Self {
            broker,
            access,
            live,
            page_bounds,
        }
    }

    /// Creates a service without authentication and without a bound of the size of pages.
    #[cfg(test)]
    pub(crate) fn without_authentication(broker: Broker) -> Self {
        let live = ReloadableConfig {
            limits: crate::lock::Limits::default(),
            drain_timeout: std::time::Duration::ZERO,
            quotas: crate::quotas::QuotaLimits::UNLIMITED,
            log_filter: String::new(),
        };
        let page_bounds = PageBounds {
            max_bytes: usize::MAX,
            size: |_| 0,
        };
        let (_, live) = tokio::sync::watch::channel(live);
        let broker = Arc::new(OnceLock::from(broker));
        Self::new(broker, AccessControl::allow_all(), live, page_bounds)
    }

    /// Returns the broker, once its store is verified.
    #[must_use]
    pub fn broker(&self) -> Option<&Broker> {
        self.broker.get()
    }

    /// Authenticates a caller by its connection and a bearer token, and returns the context of its
    /// requests.
    ///
    /// # Errors
    /// Those of [`RequestContext::authenticate`].
    pub fn authenticate(
        &self,
        peer: Option<&Peer>,
        bearer: Option<&str>,
    ) -> Result<RequestContext, RequestError> {
        let limits = self.live.borrow().limits;
        RequestContext::authenticate(&self.access, limits, peer, bearer)
    }

    /// Returns the state of a lock, or `None` if it has no holders and no waiters, and is not closed.
    ///
    /// # Errors
    /// If the caller may not observe the lock, or the store does not answer.
    pub async fn get(
        &self,
        context: &RequestContext,
        lock: &LockKey,
    ) -> Result<Option<LockState>, RequestError> {
        context.check_credential()?;
        context.authorize(Verb::Observe, [lock])?;
        let state = self.broker_for(lock)?.get(lock).await;
        Ok(state.map_err(|error| error.for_lock(lock))?)
    }

    /// Lists locks that the caller may list, without their waiters. Holders are listed only if the
    /// caller may observe the lock. A page may be short, or empty, without being the last one.
    ///
    /// # Errors
    /// If the caller may list no lock, the request is invalid, or the store does not answer.
    pub async fn list(
        &self,
        context: &RequestContext,
        request: ListRequest,
    ) -> Result<LockPage, RequestError> {
        context.check_credential()?;
        context.authorize_any(Verb::List)?;
        let query = request.validate()?;
        listing::page(self.started_broker()?, context, query, self.page_bounds).await
    }

    /// Watches the locks that the caller may list.
    ///
    /// # Errors
    /// If the caller may list no lock, the request is invalid, or the caller has too many watches.
    pub async fn watch(
        &self,
        context: RequestContext,
        request: WatchRequest,
    ) -> Result<impl Stream<Item = Result<LockEvent, RequestError>> + Send + use<>, RequestError>
    {
        context.check_credential()?;
        context.authorize_any(Verb::List)?;
        let filter = request.validate()?;
        let broker = self.started_broker()?;
        let watch = broker.watch(&context.caller.name).await?;
        let lifetime = broker.stream_lifetime();
        Ok(watch::events(
            watch,
            lifetime,
            context,
            filter,
            request.resumes,
        ))
    }

    /// Revokes the hold of a lease on a lock. Returns the holder, if there is one and the caller may
    /// observe the lock, and the length of the queue.
    ///
    /// # Errors
    /// If the caller may not revoke leases on the lock, there is no lease to revoke, or the store
    /// does not answer.
    pub async fn revoke(
        &self,
        context: &RequestContext,
        command: &RevokeCommand,
    ) -> Result<(Option<Holder>, u32), RequestError> {
        let lock = &command.lock;
        context.check_credential()?;
        context.authorize(Verb::ForceRelease, [lock])?;
        let span = Span::current();
        spans::record_locks(&span, [lock]);
        spans::lease_id(&span, command.lease_id);
        let broker = self.broker_for(lock)?;
        let revoked = broker.revoke(command).await;
        let (holder, queue_length) = revoked.map_err(|error| not_revoked(error, lock))?;
        if command.mode != RevokeMode::DryRun {
            tracing::warn!(
                target: "audit",
                lock = lock.to_string(),
                lease_id = %command.lease_id,
                owner = holder.as_ref().map(|holder| holder.owner.id.as_str()),
                reason = command.reason,
                grace_ms = command.grace_ms,
                unsafe_now = command.mode == RevokeMode::Immediate,
                caller = &*context.caller.name,
                peer = context.peer.map(tracing::field::display),
                "an operator has revoked a lease"
            );
            let event = audit_event(AuditEventKind::ForceRelease, lock, context);
            broker.history().record_audit(AuditEvent {
                lease_id: Some(command.lease_id),
                detail: command.reason.clone(),
                ..event
            });
        }
        let may_observe = context.can(Verb::Observe, lock);
        Ok((holder.filter(|_| may_observe), queue_length))
    }

    /// Sets the limit of a semaphore, or removes the limit if `limit` is `None`. Returns the
    /// previous limit, if there was one.
    ///
    /// # Errors
    /// If the caller may not set the limit, the lock is in use as another kind of lock, or the store
    /// does not answer.
    pub async fn set_limit(
        &self,
        context: &RequestContext,
        lock: &LockKey,
        limit: Option<u32>,
    ) -> Result<Option<u32>, RequestError> {
        context.check_credential()?;
        context.authorize(Verb::SetLimit, [lock])?;
        let broker = self.broker_for(lock)?;
        let previous = broker.set_limit(lock, limit).await;
        let previous = previous.map_err(|error| limit_not_set(error, lock))?;
        let logged = previous.unwrap_or(0);
        let (kind, changed, new) = match limit {
            Some(limit) => (AuditEventKind::SetLimit, "set", limit.to_string()),
            None => (AuditEventKind::RemoveLimit, "removed", "none".to_owned()),
        };
        tracing::info!(
            target: "audit",
            lock = lock.to_string(),
            limit,
            previous = logged,
            caller = &*context.caller.name,
            peer = context.peer.map(tracing::field::display),
            "a limit was {changed}"
        );
        broker.history().record_audit(AuditEvent {
            detail: format!("from {logged} to {new}"),
            ..audit_event(kind, lock, context)
        });
        Ok(previous)
    }

    /// Closes a lock until a time, and returns the closure that is in effect then.
    ///
    /// # Errors
    /// If the caller may not close the lock, the time has passed by the clock of the store, or the
    /// store does not answer.
    pub async fn close(
        &self,
        context: &RequestContext,
        command: &CloseCommand,
    ) -> Result<ActiveClosure, RequestError> {
        let lock = &command.lock;
        context.check_credential()?;
        context.authorize(Verb::Admin, [lock])?;
        let broker = self.broker_for(lock)?;
        let closure = broker.close(command).await;
        let closure = closure.map_err(|error| error.for_lock(lock))?;
        let Some(closure) = closure else {
            let mut fields = FieldValidator::default();
            fields.violation("until_time", "must not be in the past");
            return fields.finish(None);
        };
        tracing::warn!(
            target: "audit",
            lock = lock.to_string(),
            closed_ms = closure.remaining_ms,
            reason = command.operator.reason,
            caller = &*context.caller.name,
            peer = context.peer.map(tracing::field::display),
            "an operator has closed a lock"
        );
        broker.history().record_audit(AuditEvent {
            detail: command.operator.reason.clone(),
            ..audit_event(AuditEventKind::Close, lock, context)
        });
        Ok(closure)
    }

    /// Ends the closure of a lock, and returns it. `None` if the lock was not closed.
    ///
    /// # Errors
    /// If the caller may not open the lock, or the store does not answer.
    pub async fn open(
        &self,
        context: &RequestContext,
        lock: &LockKey,
    ) -> Result<Option<ActiveClosure>, RequestError> {
        context.check_credential()?;
        context.authorize(Verb::Admin, [lock])?;
        let broker = self.broker_for(lock)?;
        let closure = broker.open(lock).await;
        let mut closure = closure.map_err(|error| error.for_lock(lock))?;
        if let Some(ended) = &mut closure {
            tracing::warn!(
                target: "audit",
                lock = lock.to_string(),
                closed_by = ended.closure.owner.id,
                remaining_ms = ended.remaining_ms,
                caller = &*context.caller.name,
                peer = context.peer.map(tracing::field::display),
                "an operator has opened a lock"
            );
            broker.history().record_audit(AuditEvent {
                detail: format!("closed by {}", ended.closure.owner.id),
                ..audit_event(AuditEventKind::Open, lock, context)
            });
            if !context.can(Verb::Observe, lock) {
                ended.redact();
            }
        }
        Ok(closure)
    }

    fn started_broker(&self) -> Result<&Broker, LockError> {
        self.broker.get().ok_or(LockError::StoreUnavailable)
    }

    fn broker_for(&self, lock: &LockKey) -> Result<&Broker, LockFailure> {
        let broker = self.started_broker();
        broker.map_err(|error| error.for_lock(lock))
    }
}

/// Creates an audit event with the current time, without a lease and a detail.
fn audit_event(kind: AuditEventKind, lock: &LockKey, context: &RequestContext) -> AuditEvent {
    let peer = context.peer.map(|peer| peer.to_string());
    AuditEvent {
        at: SystemTime::now(),
        kind,
        caller: context.caller.name.to_string(),
        peer: peer.unwrap_or_default(),
        lock: Some(lock.clone()),
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
